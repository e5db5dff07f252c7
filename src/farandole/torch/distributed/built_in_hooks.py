"""DDP's built-in communication hook ``FP16_COMPRESS``. It is C++, and takes no future of Python."""

from __future__ import annotations

from typing import Any

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from farandole.torch.distributed.process_group import FarandoleProcessGroup

_register = DistributedDataParallel._register_builtin_comm_hook


def _register_in_python(model: Any, comm_hook_type: Any) -> None:
    """``model._register_builtin_comm_hook``: for tensors of the CPU the hook of the same name in
    Python, which gives the same numbers.
    """
    group = model.process_group
    compresses = comm_hook_type == distributed.BuiltinCommHookType.FP16_COMPRESS
    if compresses and model.device_type == "cpu" and isinstance(group, FarandoleProcessGroup):
        # 7 ms
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(group, fp16_compress_hook)
    else:
        _register(model, comm_hook_type)


def install() -> None:
    """Again: nothing."""
    DistributedDataParallel._register_builtin_comm_hook = _register_in_python
