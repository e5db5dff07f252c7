"""Farandole's engine as a backend of torch.distributed: ``dist.init_process_group("farandole")``.

Where Farandole is installed, the name alone suffices; otherwise import this module first. The
backend serves tensors on the CPU; tensors on a GPU use the backend that
``"cpu:farandole,cuda:nccl"`` names for them.
"""

from __future__ import annotations

from farandole.job.plugins.autoload import register
from farandole.torch.distributed import built_in_hooks
from farandole.torch.distributed.process_group import (
    FarandoleProcessGroup,
    create,
    monitored_barrier,
)

__all__ = ["FarandoleProcessGroup", "create", "monitored_barrier", "register"]

register()
built_in_hooks.install()
