"""The change of a rank to its node's working directory, before its program begins.

Each node of a run has its own working directory and temporary folder, even if several nodes share a
host, because programs expect not to share these folders.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, MutableMapping, Sequence

from farandole.job.runs.folder import RUN_ID_VARIABLE, RUN_VARIABLE, make_private

NODE_RANKS_VARIABLE = "FARANDOLE_RANKS_PER_NODE"
# The number of TensorFlow's workers among the ranks; the others are parameter servers.
TF_WORKERS_VARIABLE = "FARANDOLE_TF_WORKERS"
# The hosts of an elastic run in the order of its nodes; on one host, nodes are counted by slots.
NODE_HOSTS_VARIABLE = "FARANDOLE_NODE_HOSTS"
# Set for the runs of farandole-azureml.
AZUREML_VARIABLE = "AZUREML_ARM_PROJECT_NAME"


def enter(rank: int, size: int, env: MutableMapping[str, str]) -> None:
    """Change to the working directory of ``rank`` and set the variables that scripts read.

    The variables have the names of Open MPI, torchrun and Azure Batch. A run that was not submitted
    has no working directories, so its ranks stay in their directory.
    """
    per_node = int(env.get(NODE_RANKS_VARIABLE, "0"))
    folder = env[RUN_VARIABLE]
    if not per_node:
        return
    if NODE_HOSTS_VARIABLE in env:
        node, local = _elastic_node(per_node, env)
    else:
        node, local = divmod(rank, per_node)
    nodes = -(-size // per_node)
    local_size = max(1, min(per_node, size - node * per_node))
    env.update(node_variables(rank, size, node, nodes, local, local_size))
    env.setdefault("NCCL_SOCKET_IFNAME", "^docker0,lo")
    work = os.path.join(folder, "work", f"node-{node}")
    if os.path.isdir(work):
        os.chdir(os.path.join(work, "source"))
        env["TMPDIR"] = os.path.join(work, "tmp")
        env["PWD"] = os.getcwd()
        if AZUREML_VARIABLE in env:
            _set_azureml_variables(folder, env)


def _elastic_node(per_node: int, env: Mapping[str, str]) -> tuple[int, int]:
    """Return the node of a process of an elastic run, and its number on the node. They follow from
    its host and slot, because its rank changes.
    """
    hosts = env[NODE_HOSTS_VARIABLE].split(",")
    slot, host = int(env["HOROVOD_LOCAL_RANK"]), env["HOROVOD_HOSTNAME"]
    return hosts.index(host) + slot // per_node, slot % per_node


def _set_azureml_variables(folder: str, env: MutableMapping[str, str]) -> None:
    """Set the variables of Azure ML's runs, and keep the files that the program writes to ``logs``
    in its working directory.
    """
    env["AZUREML_RUN_ID"] = env[RUN_ID_VARIABLE]
    env["AZUREML_OUTPUT_DIRECTORY"] = os.path.join(os.getcwd(), "outputs")
    with contextlib.suppress(FileExistsError):
        os.symlink(make_private(os.path.join(folder, "outputs", "logs")), "logs")


def name_master(env: MutableMapping[str, str]) -> None:
    """Set Azure Batch's variables for the address of rank 0 from torchrun's variables."""
    if NODE_RANKS_VARIABLE in env:
        env["AZ_BATCH_MASTER_NODE"] = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        env["AZ_BATCHAI_MPI_MASTER_NODE"] = env["MASTER_ADDR"]


def task_of(rank: int, workers: int) -> tuple[str, int]:
    """Return TensorFlow's task type and index of a rank: workers, then parameter servers."""
    return ("worker", rank) if rank < workers else ("ps", rank - workers)


def tf_config(rank: int, workers: int, addresses: Sequence[str]) -> str:
    """Return ``TF_CONFIG`` for a rank, given the addresses ``host:port`` of all ranks."""
    cluster = {"worker": list(addresses[:workers])}
    if addresses[workers:]:
        cluster["ps"] = list(addresses[workers:])
    kind, index = task_of(rank, workers)
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def node_variables(
    rank: int, size: int, node: int, nodes: int, local_rank: int, local_size: int
) -> dict[str, str]:
    """Return a rank's environment variables of Open MPI and torchrun."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "NODE_COUNT": str(nodes),
    }
