"""The managed cluster, which is this host."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from typing import Any

from azureml._farandole.errors import raised_as
from azureml._farandole.texts import say
from azureml.core.compute_target import ComputeTarget, TargetConfiguration
from azureml.exceptions import ComputeTargetException
from farandole.base.host import cores
from farandole.cli.machine import memory, visible_gpus
from farandole.job.runs.states import FINAL
from farandole.jobs import targets
from farandole.jobs.references import listed


class ScaleSettings:
    """The limits of a cluster's size."""

    def __init__(self, minimum: int, maximum: int, idle_seconds: float) -> None:
        self.minimum_node_count = minimum
        self.maximum_node_count = maximum
        self.idle_seconds_before_scaledown = idle_seconds

    def serialize(self) -> dict[str, Any]:
        return {
            "minNodeCount": self.minimum_node_count,
            "maxNodeCount": self.maximum_node_count,
            "nodeIdleTimeBeforeScaleDown": f"PT{int(self.idle_seconds_before_scaledown)}S",
        }


class AmlComputeStatus:
    """The state of a cluster."""

    def __init__(self, target: AmlCompute) -> None:
        spec, facts, counts = target._spec(), target._facts(), target._counts()
        self.allocation_state = "Steady"
        self.allocation_state_transition_time = facts.get("created")
        self.creation_time = facts.get("created")
        self.modified_time = facts.get("created")
        self.provisioning_state = "Succeeded"
        self.provisioning_state_transition_time = None
        self.errors = None
        self.current_node_count = sum(counts)
        self.target_node_count = sum(counts)
        self.node_state_counts = {
            "preparingNodeCount": counts.preparing,
            "runningNodeCount": counts.running,
            "idleNodeCount": counts.idle,
            "unusableNodeCount": counts.unusable,
            "leavingNodeCount": counts.leaving,
            "preemptedNodeCount": 0,
        }
        self.scale_settings = ScaleSettings(spec.min_nodes, spec.max_nodes, spec.idle_seconds)
        self.vm_priority = facts.get("vm_priority", "dedicated")
        self.vm_size = facts.get("vm_size", "")

    def serialize(self) -> dict[str, Any]:
        """Return the state with the keys of Azure's service."""
        return {
            "currentNodeCount": self.current_node_count,
            "targetNodeCount": self.target_node_count,
            "nodeStateCounts": dict(self.node_state_counts),
            "allocationState": self.allocation_state,
            "allocationStateTransitionTime": self.allocation_state_transition_time,
            "errors": self.errors,
            "creationTime": self.creation_time,
            "modifiedTime": self.modified_time,
            "provisioningState": self.provisioning_state,
            "provisioningStateTransitionTime": self.provisioning_state_transition_time,
            "scaleSettings": self.scale_settings.serialize(),
            "vmPriority": self.vm_priority,
            "vmSize": self.vm_size,
        }

    def __repr__(self) -> str:
        return str(self.serialize())


class AmlCompute(ComputeTarget):
    """A cluster of up to ``max_nodes`` nodes. Its nodes are processes of this host: each has its
    own working directory and its own ``TMPDIR``.
    """

    _compute_type = "AmlCompute"

    @staticmethod
    def provisioning_configuration(
        vm_size: str = "",
        vm_priority: str = "dedicated",
        min_nodes: int = 0,
        max_nodes: int | None = None,
        idle_seconds_before_scaledown: int = 1800,
        tags: dict[str, str] | None = None,
        description: str | None = None,
        **kwargs: Any,
    ) -> TargetConfiguration:
        """Return the configuration of a cluster.

        Arguments:
            vm_size: A string that is stored but unused, because the nodes are on this host.
            vm_priority: A string that is stored but unused.
            min_nodes: The smallest number of nodes.
            max_nodes: The largest number of nodes; by default 4.
            idle_seconds_before_scaledown: Seconds after which an idle node above ``min_nodes`` is
                released.
            tags: Tags of the target.
            description: A description of the target.
            **kwargs: Accounts and networks of Azure, which are ignored.

        Raises ComputeTargetException if ``min_nodes`` exceeds ``max_nodes``.
        """
        most = 4 if max_nodes is None else max_nodes
        if min_nodes > most:
            raise ComputeTargetException(f"min_nodes={min_nodes} exceeds max_nodes={most}")
        return TargetConfiguration(
            "AmlCompute",
            "local",
            {
                "min_nodes": min_nodes,
                "max_nodes": most,
                "idle_seconds": float(idle_seconds_before_scaledown),
            },
            {
                "vm_size": vm_size,
                "vm_priority": vm_priority,
                "tags": tags,
                "description": description,
            },
        )

    @staticmethod
    def supported_vmsizes(workspace: Any, location: str | None = None) -> list[dict[str, Any]]:
        """Return the only size of nodes: this host. ``vm_size`` accepts any string."""
        return [
            {
                "name": "local",
                "vCPUs": cores(),
                "gpus": visible_gpus(os.environ),
                "memoryGB": memory().total / (1 << 30),
                "maxResourceVolumeMB": shutil.disk_usage(workspace._storage()).total >> 20,
            }
        ]

    def get_status(self) -> AmlComputeStatus:
        """Return the state of the cluster."""
        return AmlComputeStatus(self)

    @property
    def status(self) -> AmlComputeStatus:
        return self.get_status()

    @property
    def scale_settings(self) -> ScaleSettings:
        return self.get_status().scale_settings

    def wait_for_completion(
        self,
        show_output: bool = False,
        min_node_count: int | None = None,
        timeout_in_minutes: int | None = 25,
        **kwargs: Any,
    ) -> None:
        """Return immediately: a cluster is ready when created."""
        if show_output:
            say(
                "Succeeded\nAmlCompute wait for completion finished\n\n"
                "Minimum number of nodes requested have been provisioned"
            )

    def update(
        self,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        idle_seconds_before_scaledown: int | None = None,
    ) -> None:
        """Change the limits of the cluster's size; None keeps a limit.

        Raises ComputeTargetException for invalid limits.
        """
        new: dict[str, Any] = {
            "min_nodes": min_nodes,
            "max_nodes": max_nodes,
            "idle_seconds": idle_seconds_before_scaledown and float(idle_seconds_before_scaledown),
        }
        spec = dataclasses.replace(
            self._spec(), **{name: value for name, value in new.items() if value is not None}
        )
        with raised_as(ComputeTargetException):
            targets.save_target(self._workspace._home, spec)

    def list_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes, which have no addresses because they are on this host."""
        counts = self._counts()
        states = ["running"] * counts.running + ["idle"] * counts.idle
        return [
            {"nodeId": f"{self.name}-{number}", "nodeState": state, "runId": None, "port": None}
            for number, state in enumerate(states)
        ]

    def get_active_runs(
        self, type: str | None = None, tags: Any = None, properties: Any = None, status: Any = None
    ) -> Iterator[Any]:
        """Yield the runs on this target that have not ended, newest first."""
        from azureml.core.run import Run

        for row in listed(self._workspace._home, "target = ?", (self.name,)):
            if row.state not in FINAL:
                yield Run.get(self._workspace, row.run_id)
