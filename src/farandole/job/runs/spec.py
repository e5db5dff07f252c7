"""The specification of a run: everything needed to submit it again.

Values are plain data, so other programs and later versions can read ``spec.json`` of a run's
folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POLICIES = ("current", "build", "strict")
INPUT_MODES = ("path", "mount", "download")


@dataclass(frozen=True)
class EnvironmentSpec:
    """The Python environment of a run.

    - ``policy``: ``current`` runs in the submitting interpreter and reports differences from
      ``file``; ``build`` builds an environment from ``file``; ``strict`` refuses to run if the
      interpreter differs from ``file``.
    - ``file``: A requirements file, ``pyproject.toml`` or conda file in the snapshot; or empty.
    - ``python``: The path of an existing interpreter; or empty.
    - ``image``: A container image; or empty.
    - ``name``: A name for messages.
    - ``content``: The content of ``file``, which a submission fills in.
    """

    policy: str = "current"
    file: str = ""
    python: str = ""
    image: str = ""
    name: str = ""
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InputSpec:
    """A named input of a run.

    - ``source``: A path or a URL that fsspec reads.
    - ``mode``: ``path`` passes a local path unchanged. ``mount`` and ``download`` fetch the source
      into a cache once per host: ranks read it there (``mount``) or get a copy in the run's working
      directory (``download``).
    - ``digest``: The etag or size at submission, to detect a change; empty if unknown.
    """

    name: str
    source: str
    mode: str = "mount"
    digest: str = ""


@dataclass(frozen=True)
class Resources:
    """The resources of a run on a target.

    - ``nodes``, ``ranks_per_node``: Their product is the number of ranks, in an elastic run at the
      start.
    - ``cores``, ``gpus``: The number per rank.
    - ``memory``: Bytes per rank; 0 for no requirement.
    - ``min_nodes``, ``max_nodes``: The least and the greatest number of nodes of an elastic run,
      both at least 1; both 0 for a run of a fixed size.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    cores: float = 1.0
    memory: int = 0
    gpus: int = 0
    min_nodes: int = 0
    max_nodes: int = 0

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def elastic(self) -> bool:
        return bool(self.min_nodes or self.max_nodes)

    @property
    def most_nodes(self) -> int:
        """The number of nodes that the run may occupy."""
        return max(self.nodes, self.max_nodes)

    @property
    def most_ranks(self) -> int:
        """The number of ranks that the run may have."""
        return self.most_nodes * self.ranks_per_node


@dataclass(frozen=True)
class RunSpec:
    """A run's specification.

    - ``experiment``: The name of the group to which the run belongs.
    - ``name``: A display name; empty for none.
    - ``command``: The command of every rank, with ``{input}`` for the path of an input; empty for a
      function, which is in the file ``function.pkl`` of the run's folder.
    - ``environment``: The Python environment.
    - ``target``: The name of the target, such as ``local``.
    - ``resources``: Nodes, ranks, cores, memory and GPUs.
    - ``settings``: Settings of ``farandole run`` by name, such as ``{"strategy": "ps"}``.
    - ``variables``: Extra environment variables.
    - ``secret_variables``: Names of variables whose values are stored outside the run's folder.
    - ``inputs``: Named inputs.
    - ``retries``: The number of times that a failed run may start again.
    - ``time_limit``: Seconds after which a running run is stopped; 0 for no limit.
    - ``grace_seconds``: Seconds between the request to stop and the kill.
    - ``priority``: Runs with higher numbers start first.
    - ``after``: Ids of runs that must complete first.
    - ``tags``: Free text by name.
    - ``parent``: The id of the run that submitted this one, or empty.
    - ``parameters``: Hyperparameters by name, for comparison and sweeps.
    - ``tf_workers``: For programs that read ``TF_CONFIG``: the number of workers. The first ranks
      are workers, the others parameter servers. 0 sets no ``TF_CONFIG``.
    - ``source``: The folder that the snapshot copied; for information only.
    """

    experiment: str
    command: tuple[str, ...] = ()
    name: str = ""
    environment: EnvironmentSpec = EnvironmentSpec()
    target: str = "local"
    resources: Resources = Resources()
    settings: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    secret_variables: tuple[str, ...] = ()
    inputs: tuple[InputSpec, ...] = ()
    retries: int = 0
    time_limit: float = 0.0
    grace_seconds: float = 30.0
    priority: int = 0
    after: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tf_workers: int = 0
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunSpec:
        """Return the spec from JSON data, without unknown fields of later versions.

        Raises TypeError if a required field is missing.
        """
        values = _known(RunSpec, data)
        if "environment" in values:
            environment = _known(EnvironmentSpec, values["environment"])
            values["environment"] = EnvironmentSpec(**environment)
        if "resources" in values:
            values["resources"] = Resources(**_known(Resources, values["resources"]))
        if "inputs" in values:
            values["inputs"] = tuple(
                InputSpec(**_known(InputSpec, each)) for each in values["inputs"]
            )
        for name in ("command", "after", "secret_variables"):
            if name in values:
                values[name] = tuple(values[name])
        return RunSpec(**values)


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in data.items() if name in names}
