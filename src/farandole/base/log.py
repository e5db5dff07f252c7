"""The package's logger, in Horovod's line format with the rank in front.

``logging`` takes several milliseconds to import, so it is imported with the first message, or by
the program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import logging

_LEVELS = {"trace": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "fatal": 50}
_NAME = "farandole"
Prepare = Callable[["logging.Logger"], None]


class _Logger:
    """A lazy ``logging.getLogger("farandole")``: messages below the level do not import
    ``logging``.
    """

    def __init__(self) -> None:
        self._level = _LEVELS["warning"]  # the default of ``logging``
        self._prepare: list[Prepare] = [_silence]
        self._lock = threading.RLock()

    def debug(self, text: str, *args: object) -> None:
        self.log(_LEVELS["debug"], text, *args)

    def info(self, text: str, *args: object) -> None:
        self.log(_LEVELS["info"], text, *args)

    def warning(self, text: str, *args: object) -> None:
        self.log(_LEVELS["warning"], text, *args)

    def log(self, level: int, text: str, *args: object) -> None:
        if level >= self._level or "logging" in sys.modules:
            self._real().log(level, text, *args, stacklevel=3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def prepare(self, level: int | None, how: Prepare) -> None:
        """See ``prepare``. ``level`` is the minimum level of messages; None keeps it."""
        self._level = self._level if level is None else level
        with self._lock:
            self._prepare.append(how)
        if "logging" in sys.modules:
            self._real()

    def forget(self, how: Prepare) -> None:
        with self._lock:
            self._prepare = [other for other in self._prepare if other is not how]

    def _real(self) -> logging.Logger:
        import logging

        found = logging.getLogger(_NAME)
        with self._lock:
            while self._prepare:
                self._prepare.pop(0)(found)
        return found


def _silence(found: logging.Logger) -> None:
    import logging

    found.addHandler(logging.NullHandler())


_lazy = _Logger()
logger = cast("logging.Logger", _lazy)


def prepare(how: Prepare) -> None:
    """Call ``how`` to set up the handlers of the package's logger: now, or when ``logging`` is
    imported.
    """
    _lazy.prepare(None, how)


def forget(how: Prepare) -> None:
    """Cancel a pending ``prepare``."""
    _lazy.forget(how)


def configure(level: str, *, who: str, hide_time: bool) -> None:
    """Write the package's log to stderr at ``level``, unless the program has set up its own
    handler.

    ``who`` names this process, such as "rank 3".
    """
    number = _LEVELS[level.lower()]

    def write(found: logging.Logger) -> None:
        import logging

        found.setLevel(number)
        for handler in list(found.handlers):
            if isinstance(handler, logging.NullHandler) or handler.name == _NAME:
                found.removeHandler(handler)
        if not found.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.name = _NAME
            handler.setFormatter(_formatter(who, hide_time))
            found.addHandler(handler)
            found.propagate = False

    _lazy.prepare(number, write)


def _formatter(who: str, hide_time: bool) -> logging.Formatter:
    import logging
    from datetime import datetime

    class Format(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            stamp = "" if hide_time else f"{datetime.fromtimestamp(record.created)}: "
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + self.formatException(record.exc_info)
            return f"[{stamp}{record.levelname[0]} farandole {who}] {message}"

    return Format()
