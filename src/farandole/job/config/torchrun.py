"""torchrun's variables, as torch.distributed and scripts read them."""

from __future__ import annotations

from farandole.job.config.placement import Placement

TORCH = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# torch.distributed's variable: torchrun serves the store instead of rank 0.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


def torch_variables(placement: Placement, address: str, port: int) -> dict[str, str]:
    """Return torchrun's variables, which ``torch.distributed.init_process_group`` and scripts
    read.

    Rank 0 creates torch.distributed's store at ``address`` and ``port``.
    """
    values = {
        "RANK": placement.rank,
        "WORLD_SIZE": placement.size,
        "LOCAL_RANK": placement.local_rank,
        "LOCAL_WORLD_SIZE": placement.local_size,
        "GROUP_RANK": placement.cross_rank,
        "GROUP_WORLD_SIZE": placement.cross_size,
        "ROLE_RANK": placement.rank,
        "ROLE_WORLD_SIZE": placement.size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}
