"""The number of nodes and ranks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from azureml.exceptions import UserErrorException

if TYPE_CHECKING:
    from azureml.core.runconfig import RunConfiguration

_MPI = ("mpi", "openmpi", "intelmpi")


class Layout(NamedTuple):
    """The nodes of a run, the ranks on each, and TensorFlow's workers among the ranks."""

    nodes: int
    ranks_per_node: int
    tf_workers: int = 0

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def layout_of(config: RunConfiguration) -> Layout:
    """Return the layout of a run configuration.

    Raises UserErrorException for a number below 1, or for ranks that are not a multiple of the
    nodes.
    """
    framework, communicator = config.framework.lower(), str(config.communicator).lower()
    if framework == "tensorflow" and communicator == "parameterserver":
        job = config.tensorflow
        count = job.worker_count + job.parameter_server_count
        return Layout(_positive("worker_count", job.worker_count) and count, 1, job.worker_count)
    nodes = _positive("node_count", config.node_count)
    if communicator in _MPI:
        each = _positive("process_count_per_node", config.mpi.process_count_per_node)
        return Layout(nodes, each)
    if framework == "pytorch" and config.pytorch.process_count is not None:
        total = _positive("process_count", config.pytorch.process_count)
        if total % nodes:
            raise UserErrorException(
                f"process_count={total} is the number of all ranks and must be a multiple of"
                f" node_count={nodes}"
            )
        return Layout(nodes, total // nodes)
    return Layout(nodes, 1)


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise UserErrorException(f"{name}={value!r} must be a whole number of at least 1")
    return value
