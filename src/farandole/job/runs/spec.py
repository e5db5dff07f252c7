"""The specification of a run: everything that submitting it again would need.

Values are plain data, so that ``spec.json`` of a run's folder can be read by other programs and by
later versions.
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

    - ``policy``: ``current`` runs in the submitting interpreter and reports what differs from
      ``file``; ``build`` makes an environment from ``file``; ``strict`` refuses to run if the
      interpreter differs.
    - ``file``: A requirements file, ``pyproject.toml`` or conda file in the snapshot, or none.
    - ``python``: The path of an existing interpreter, or none.
    - ``image``: A container image, or none.
    - ``name``: A name for messages.
    - ``content``: The content of ``file``, which a submission adds.
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
    - ``mode``: ``path`` passes a local path as it is; ``mount`` and ``download`` copy the source
      once per host into a cache (mount: read in place from the cache; download: a copy in the
      run's working directory).
    - ``digest``: The expected etag or size at submission, to detect a change; empty if unknown.
    """

    name: str
    source: str
    mode: str = "mount"
    digest: str = ""


@dataclass(frozen=True)
class Resources:
    """The resources of a run on a target.

    - ``nodes``, ``ranks_per_node``: Their product is the number of ranks.
    - ``cores``, ``gpus``: Per rank.
    - ``memory``: Bytes per rank; 0 does not limit the choice of a place.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    cores: float = 1.0
    memory: int = 0
    gpus: int = 0

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class RunSpec:
    """A run's specification.

    - ``experiment``: The name of the group of runs it belongs to.
    - ``name``: A display name; empty for none.
    - ``command``: The command of every rank, with ``{input}`` for the path of an input; empty for a
      function, which is the file ``function.pkl`` of the folder.
    - ``environment``: Its Python environment.
    - ``target``: The name of the target, such as ``local``.
    - ``resources``: Nodes, ranks, cores, memory and GPUs.
    - ``settings``: Settings of ``farandole run`` by name, such as ``{"strategy": "ps"}``.
    - ``variables``: Extra environment variables.
    - ``secret_variables``: Names of further ones, whose values are kept outside the run's folder.
    - ``inputs``: Named inputs.
    - ``retries``: How often a failed run may be started again.
    - ``time_limit``: Seconds after which a running run is ended; 0 for no limit.
    - ``grace_seconds``: Time between the request to end and the kill.
    - ``priority``: Runs with higher numbers start first.
    - ``after``: Ids of runs that must complete first.
    - ``tags``: Free text by name.
    - ``parent``: The id of the run that submitted this one, or empty.
    - ``parameters``: Hyperparameters by name, for comparison and sweeps.
    - ``tf_workers``: For programs that read ``TF_CONFIG``: the number of workers, the first ranks;
      the others are parameter servers. 0 sets no ``TF_CONFIG``.
    - ``source``: The folder from which the snapshot was made; for information only.
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
        """Return the spec of JSON data; fields of later versions are ignored.

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
