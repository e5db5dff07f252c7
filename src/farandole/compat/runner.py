"""``horovod.run``: runs a function on several ranks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from farandole.base.log import logger
from farandole.compat import elastic, with_note
from farandole.errors import SettingsError
from farandole.job.launch import api
from farandole.job.launch.launchers import mpi
from farandole.job.launch.plan import read_hostfile

T = TypeVar("T")


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: Any = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[T]:
    """Call ``func(*args, **kwargs)`` on ``num_proc`` processes and return the results in rank
    order.

    The arguments are Horovod's. In an elastic job (``min_num_proc``, ``max_num_proc`` or
    ``host_discovery_script``), the results come from the last ranks. Raises ValueError for
    incompatible arguments, and RuntimeError (JobFailedError) when a rank fails.
    """
    num_proc = _renamed("num_proc", num_proc, "np", np)
    bounds = {
        "min_num_proc": _renamed("min_num_proc", min_num_proc, "min_np", min_np),
        "max_num_proc": _renamed("max_num_proc", max_num_proc, "max_np", max_np),
        "host_discovery_script": host_discovery_script,
    }
    others = {"slots": slots, "reset_limit": reset_limit, "cooldown_range": cooldown_range}
    come_and_go = any(value is not None for value in bounds.values())
    if not come_and_go:
        _note_ignored(**others)
    if hosts and hostfile:
        raise SettingsError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise SettingsError("Argument use_gloo and use_mpi only allow one set True.")
    if executable and executable != sys.executable:
        raise SettingsError(
            f"executable={executable!r}: ranks run the Python of this process, {sys.executable};"
            " call horovod.run from the desired interpreter"
        )
    by_mpi = _starts_by_mpi(use_mpi, mpi_args)
    remote: dict[str, Any] = {
        "start_timeout": None if start_timeout is None else float(start_timeout),
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "network_interfaces": network_interfaces or network_interface,
    }
    settings = {name: value for name, value in remote.items() if value is not None}
    return with_note(api.run)(
        func,
        args,
        kwargs,
        np=num_proc,
        hosts=read_hostfile(hostfile) if hostfile else hosts,
        launcher="mpi" if by_mpi else "auto",
        output_dir=output_filename,
        verbose=bool(verbose),
        **settings,
        **(elastic.settings(**bounds, **others) if come_and_go else {}),
    )


def _note_ignored(**arguments: Any) -> None:
    """Log the arguments that apply only to elastic jobs."""
    for name, value in arguments.items():
        if value is not None:
            logger.info("horovod.run: %s=%r has no effect: this is not an elastic job", name, value)


def _starts_by_mpi(use_mpi: bool | None, mpi_args: str | None) -> bool:
    """Return whether mpirun starts the ranks; log the arguments that have no effect."""
    by_mpi = bool(use_mpi) and mpi.found() is not None
    if mpi_args or (use_mpi and not by_mpi):
        why = (
            "mpirun reads options from its own variables"
            if by_mpi
            else "ranks are not started with mpirun"
        )
        ignored = "mpi_args" if by_mpi or not use_mpi else "use_mpi"
        logger.info("horovod.run: %s has no effect: %s", ignored, why)
    return by_mpi


def _renamed(name: str, value: Any, old_name: str, old: Any) -> Any:
    if old is None:
        return value
    warnings.warn(f"{old_name} is deprecated, use {name} instead", DeprecationWarning, stacklevel=3)
    return old
