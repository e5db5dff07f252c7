"""Collectives on GPU memory: by NCCL if every rank has its own GPU, else through host memory."""

from __future__ import annotations

from collections.abc import Callable

from farandole.base.contracts import Transport
from farandole.core.engine import devices
from farandole.errors import HorovodInternalError
from farandole.job.config import Settings
from farandole.torch.device.cuda import Cuda
from farandole.torch.device.transport import TorchTransport

cuda = Cuda()


def _over(
    host: Transport, settings: Settings, lost: Callable[[HorovodInternalError], None]
) -> TorchTransport:
    return TorchTransport(host, settings, lost, cuda)


devices.register("GPU", _over)
