"""The entry of a rank into its node's working directory, before its program begins.

Each node of a run has a working directory and a temporary folder of its own, also where several
nodes are on one host, because programs rely on both being theirs.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from farandole.job.runs.folder import RUN_VARIABLE

NODE_RANKS_VARIABLE = "FARANDOLE_RANKS_PER_NODE"


def enter(rank: int, size: int, env: MutableMapping[str, str]) -> None:
    """Change to the working directory of ``rank`` and set the variables that scripts read.

    They are named as Open MPI, torchrun and Azure Batch name them. A run without working
    directories (one that was not submitted) keeps its directory.
    """
    per_node = int(env.get(NODE_RANKS_VARIABLE, "0"))
    folder = env[RUN_VARIABLE]
    if not per_node:
        return
    node, local = divmod(rank, per_node)
    nodes = -(-size // per_node)
    local_size = min(per_node, size - node * per_node)
    env.update(node_variables(rank, size, node, nodes, local, local_size))
    master, port = env.get("MASTER_ADDR", "127.0.0.1"), env.get("MASTER_PORT", "0")
    env["AZ_BATCH_MASTER_NODE"] = f"{master}:{port}"
    env["AZ_BATCHAI_MPI_MASTER_NODE"] = master
    env.setdefault("NCCL_SOCKET_IFNAME", "^docker0,lo")
    work = os.path.join(folder, "work", f"node-{node}")
    if os.path.isdir(work):
        os.chdir(os.path.join(work, "source"))
        env["TMPDIR"] = os.path.join(work, "tmp")
        env["PWD"] = os.getcwd()


def node_variables(
    rank: int, size: int, node: int, nodes: int, local_rank: int, local_size: int
) -> dict[str, str]:
    """Return the variables of Open MPI and torchrun for a rank."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "NODE_COUNT": str(nodes),
    }
