"""Targets on existing hosts."""

from __future__ import annotations

from typing import Any

from azureml.core.compute.amlcompute import AmlCompute
from azureml.core.compute_target import ComputeTarget, TargetConfiguration
from azureml.exceptions import ComputeTargetException

SLOTS = 8  # ranks on one attached host; ``farandole targets add`` sets other numbers


class RemoteCompute(ComputeTarget):
    """A host reached by ssh."""

    _compute_type = "VirtualMachine"

    @staticmethod
    def attach_configuration(
        username: str | None = None,
        address: str | None = None,
        ssh_port: int = 22,
        password: str = "",
        private_key_file: str = "",
        private_key_passphrase: str = "",
        resource_id: str | None = None,
    ) -> TargetConfiguration:
        """Return the configuration of a host, on which up to 8 ranks run.

        Arguments:
            username: The user on the host; by default the choice of ssh.
            address: The name or address of the host.
            ssh_port: The port of its ssh server.
            password: Not supported, because ssh must log in without a prompt.
            private_key_file: The path of a key without a passphrase; by default the choice of ssh.
            private_key_passphrase: Not supported.
            resource_id: Not used.

        Raises ComputeTargetException without an address, and for a password or passphrase.
        """
        if not address:
            raise ComputeTargetException(
                "RemoteCompute needs address=, the host's name; a resource id means nothing outside"
                " of Azure"
            )
        if password or private_key_passphrase:
            raise ComputeTargetException(
                "passwords and passphrases of ssh are not supported: put the key into an ssh-agent,"
                " or pass private_key_file= of a key without a passphrase"
            )
        options: dict[str, Any] = {
            "hosts": f"{f'{username}@' if username else ''}{address}:{SLOTS}"
        }
        if ssh_port != 22:
            options["port"] = ssh_port
        if private_key_file:
            options["identity"] = private_key_file
        return TargetConfiguration("RemoteCompute", "ssh", {"options": options})


class DsvmCompute(RemoteCompute):
    """A virtual machine, which only Azure can create; attach an existing one."""

    @staticmethod
    def provisioning_configuration(*args: Any, **kwargs: Any) -> TargetConfiguration:
        """Raise ComputeTargetException: there is no service that creates machines."""
        raise ComputeTargetException(
            "DsvmCompute cannot create virtual machines outside of Azure; attach an existing host"
            " with RemoteCompute.attach_configuration(username=..., address=...)"
        )


class ComputeInstance(AmlCompute):
    """A cluster of one node: this host."""

    _compute_type = "ComputeInstance"

    @staticmethod
    def provisioning_configuration(  # type: ignore[override]  # as in the SDK
        vm_size: str = "",
        tags: dict[str, str] | None = None,
        description: str | None = None,
        **kwargs: Any,
    ) -> TargetConfiguration:
        """Return the configuration of one node on this host."""
        facts = {"vm_size": vm_size, "tags": tags, "description": description}
        return TargetConfiguration("ComputeInstance", "local", {"max_nodes": 1}, facts)

    def start(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Accept the call: this host is running."""

    def stop(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Accept the call: this host keeps running."""

    def restart(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Accept the call: this host keeps running."""


class BatchCompute(ComputeTarget):
    """A cluster of Slurm, which ``farandole targets add NAME --kind slurm`` defines."""

    _compute_type = "Batch"

    @staticmethod
    def attach_configuration(*args: Any, **kwargs: Any) -> TargetConfiguration:
        """Raise ComputeTargetException: the target is defined outside of this SDK."""
        raise ComputeTargetException(
            "Azure Batch is not available; define a Slurm cluster with farandole targets add NAME"
            " --kind slurm --option partition=gpu, then use ComputeTarget(workspace, NAME)"
        )


class KubernetesCompute(ComputeTarget):
    """A cluster of Kubernetes, which Farandole's jobs do not support yet."""

    _compute_type = "Kubernetes"

    @staticmethod
    def attach_configuration(*args: Any, **kwargs: Any) -> TargetConfiguration:
        """Raise ComputeTargetException: runs cannot be started on Kubernetes."""
        raise ComputeTargetException(
            "runs on Kubernetes are not supported; use AmlCompute for this host, RemoteCompute for"
            " a host reached by ssh, or farandole targets add for Slurm and Spark"
        )
