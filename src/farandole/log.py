"""One logger for the package, in Horovod's line format, with the rank in front."""

from __future__ import annotations

import logging
import sys
from datetime import datetime

logger = logging.getLogger("farandole")
logger.addHandler(logging.NullHandler())

_LEVELS = {
    "trace": 5, "debug": logging.DEBUG, "info": logging.INFO,
    "warning": logging.WARNING, "error": logging.ERROR, "fatal": logging.CRITICAL,
}  # fmt: skip


class _Format(logging.Formatter):
    def __init__(self, rank: int, hide_time: bool) -> None:
        super().__init__()
        self.rank, self.hide_time = rank, hide_time

    def format(self, record: logging.LogRecord) -> str:
        stamp = "" if self.hide_time else f"{datetime.fromtimestamp(record.created)}: "
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return f"[{stamp}{record.levelname[0]} farandole rank {self.rank}] {message}"


def configure(level: str, *, rank: int, hide_time: bool) -> None:
    """Write the package's log to stderr at ``level``, unless the program has set up a handler of its own."""
    logger.setLevel(_LEVELS[level.lower()])
    for handler in list(logger.handlers):
        if isinstance(handler, logging.NullHandler) or isinstance(handler.formatter, _Format):
            logger.removeHandler(handler)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Format(rank, hide_time))
        logger.addHandler(handler)
        logger.propagate = False
