"""The options of an elastic job, checked once before it starts."""

from __future__ import annotations

import re
from typing import NamedTuple

from farandole.errors import SettingsError
from farandole.job.config import Settings

# Horovod's limits of the cooldown range, in seconds.
SHORTEST_COOLDOWN, LONGEST_COOLDOWN = 1.0, 3600.0
_NUMBER = r"(\d+(?:\.\d+)?)"


class ElasticOptions(NamedTuple):
    """The options of an elastic job.

    - ``np``: The number of slots to wait for at the start.
    - ``min_np``: The minimum number of ranks. The job fails after ``timeout`` seconds with fewer.
    - ``max_np``: The maximum number of ranks; None: one per slot.
    - ``timeout``: Seconds to wait for ``np`` slots at the start, and for ``min_np`` afterwards.
    - ``start_timeout``: Seconds to wait for ``np`` slots at the start instead; 0: ``timeout``.
    - ``reset_limit``: The maximum number of membership changes; None: no limit.
    - ``cooldown``: Seconds (minimum, maximum) for which a failed host is excluded; None: forever.
    - ``warning``: Seconds for which ranks that have left a membership wait for another rank before
      it is reported; 0: never.
    - ``patience``: Seconds after which that rank counts as failed and is ended; 0: ``timeout``, or
      ``SHORTEST_PATIENCE`` of the coordinator if that is longer.
    - ``on_disk``: Whether commits are written to a folder from which ranks can load a lost state.
    """

    np: int
    min_np: int
    max_np: int | None = None
    timeout: float = 600.0
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    warning: float = 60.0
    patience: float = 0.0
    start_timeout: float = 0.0
    on_disk: bool = False


def options_of(np: int | None, settings: Settings) -> ElasticOptions:
    """Return the checked options of an elastic job with ``settings``.

    ``np``: ranks at the start; None: ``min_np``. Raises SettingsError for options that contradict
    each other.
    """
    start = np or settings.min_np
    if not start:
        raise SettingsError(
            "the number of processes to start with is missing: pass -np or --min-np"
        )
    if 0 < settings.leave_out_stragglers <= 1:
        raise SettingsError(
            f"leave_out_stragglers={settings.leave_out_stragglers:g} would exclude hosts that are"
            " as fast as the others. Use a multiple above 1, such as --leave-out-stragglers 2"
        )
    watches = not settings.stall_check_disable
    options = ElasticOptions(
        np=start,
        min_np=settings.min_np or start,
        # a rank without a share of the global batch would be idle
        max_np=settings.max_np or (start if settings.fixed_global_batch else None),
        timeout=settings.elastic_timeout,
        reset_limit=settings.reset_limit or None,
        cooldown=parse_cooldown(settings.cooldown_range),
        warning=settings.stall_warning_seconds if watches else 0.0,
        patience=settings.stall_shutdown_seconds if watches else 0.0,
        on_disk=bool(settings.commit_dir),
    )
    return check_options(options)


def check_options(options: ElasticOptions) -> ElasticOptions:
    """Return ``options`` if they do not contradict each other. Raises SettingsError otherwise."""
    np, least, most = options.np, options.min_np, options.max_np
    if least < 1:
        raise SettingsError(f"min_np={least} must be >= 1: a job needs a rank (--min-np)")
    if most is not None and most < least:
        raise SettingsError(
            f"max_np={most} is less than min_np={least}. Raise --max-np or lower --min-np"
        )
    if not least <= np:
        raise SettingsError(
            f"np={np} is less than min_np={least}: the job would start too small. Raise -np or"
            " lower --min-np"
        )
    if most is not None and np > most:
        raise SettingsError(
            f"np={np} is more than max_np={most}: the job would start too large. Lower -np or raise"
            " --max-np"
        )
    if options.timeout <= 0:
        raise SettingsError(f"elastic_timeout={options.timeout:g} must be > 0 seconds")
    if options.reset_limit is not None and options.reset_limit < 0:
        raise SettingsError(f"reset_limit={options.reset_limit} must be >= 0 (--reset-limit)")
    if options.cooldown is not None:
        _check_cooldown(*options.cooldown)
    return options


def _check_cooldown(least: float, most: float) -> None:
    if least < SHORTEST_COOLDOWN or most > LONGEST_COOLDOWN or least > most:
        raise SettingsError(
            f"cooldown_range={least:g}:{most:g} must be from {SHORTEST_COOLDOWN:g} to"
            f" {LONGEST_COOLDOWN:g} seconds, the lower number first (--cooldown-range 10:100)"
        )


def parse_cooldown(text: str) -> tuple[float, float] | None:
    """Parse ``10:100`` (or ``10,100``, ``10 100``) into seconds; None for an empty string.

    Raises SettingsError for any other string, and for numbers outside Horovod's limits.
    """
    if not text.strip():
        return None
    found = re.fullmatch(rf"\s*{_NUMBER}\s*[:, ]\s*{_NUMBER}\s*", text)
    if found is None:
        raise SettingsError(
            f"cooldown_range={text!r} must be two numbers of seconds: --cooldown-range 10:100"
        )
    least, most = float(found[1]), float(found[2])
    _check_cooldown(least, most)
    return least, most
