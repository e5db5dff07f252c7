"""DDP's built-in communication hook ``FP16_COMPRESS``, whose C++ version does not accept Python
futures.
"""

from __future__ import annotations

from typing import Any

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from farandole.torch.distributed.process_group import FarandoleProcessGroup

_register = DistributedDataParallel._register_builtin_comm_hook


def _register_in_python(model: Any, comm_hook_type: Any) -> None:
    """Register a built-in hook; on the CPU, the Python hook of the same name, whose results are
    equal. Replaces ``model._register_builtin_comm_hook``.
    """
    group = model.process_group
    compresses = comm_hook_type == distributed.BuiltinCommHookType.FP16_COMPRESS
    if compresses and model.device_type == "cpu" and isinstance(group, FarandoleProcessGroup):
        # takes 7 ms to import
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(group, fp16_compress_hook)
    else:
        _register(model, comm_hook_type)


def install() -> None:
    """Install the replacement. Repeated calls have no effect."""
    DistributedDataParallel._register_builtin_comm_hook = _register_in_python
