"""The utilization, memory and power of this rank's GPU, if nvidia-ml-py is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


class Gpu:
    """The GPU of a rank: the visible GPU whose index is the local rank."""

    def __init__(self, env: Mapping[str, str], library: Any = None) -> None:
        """``library``: the module ``pynvml``; by default imported, if it is installed."""
        self._library = library or _pynvml()
        self._handle: Any = None
        if self._library is None:
            return
        try:
            self._library.nvmlInit()
            self._handle = self._find(env)
        except Exception:  # no driver, no GPU: NVMLError and its many subclasses
            self._library = None

    def _find(self, env: Mapping[str, str]) -> Any:
        library = self._library
        visible = env.get("CUDA_VISIBLE_DEVICES")
        local = int(env.get("FARANDOLE_LOCAL_RANK") or env.get("LOCAL_RANK") or 0)
        if visible is None:
            return library.nvmlDeviceGetHandleByIndex(local % library.nvmlDeviceGetCount())
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if not names or names[0].startswith("-"):
            return None
        name = names[local % len(names)]
        if name.isdecimal():
            return library.nvmlDeviceGetHandleByIndex(int(name))
        return library.nvmlDeviceGetHandleByUUID(name)

    def sample(self) -> dict[str, float]:
        """Return utilization in percent, used memory in bytes and power in watts; {} without a
        GPU.
        """
        if self._handle is None:
            return {}
        library, found = self._library, {}
        with contextlib.suppress(Exception):  # this GPU may not report the value
            used = library.nvmlDeviceGetUtilizationRates(self._handle)
            found["system/gpu_percent"] = float(used.gpu)
        with contextlib.suppress(Exception):
            memory = library.nvmlDeviceGetMemoryInfo(self._handle)
            found["system/gpu_memory_bytes"] = float(memory.used)
        with contextlib.suppress(Exception):
            found["system/gpu_watts"] = library.nvmlDeviceGetPowerUsage(self._handle) / 1000
        return found

    def close(self) -> None:
        if self._library is not None:
            with contextlib.suppress(Exception):
                self._library.nvmlShutdown()
            self._library = self._handle = None


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
