"""Collect the log messages of a job."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from tests.run_job import job


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """Yield the list of messages that are logged in the block."""
    from farandole.base.log import logger

    handler = _Handler()
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


def heard(n: int, *programs: Callable[[int], Any], **settings: Any) -> list[list[list[str]]]:
    """Return, for each rank, the messages of each program; one job runs the programs in turn."""
    cloudpickle.register_pickle_by_value(sys.modules[programs[0].__module__])

    def body(rank: int) -> list[list[str]]:
        found = []
        for program in programs:
            with listening() as texts:
                program(rank)
            found.append(list(texts))
        return found

    return job(n, body, **settings)


def reported(program: str, text: str, n: int = 2) -> list[str]:
    """Return rank 0's messages with ``text`` while n ranks run ``program`` (source) as a script."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        name = script.name

        def body(rank: int) -> list[str]:
            with listening() as texts:
                exec(compile(program, name, "exec"), {"__name__": "__main__"})
            return texts

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        texts = job(n, body, store=True)[0]
    return [each for each in texts if text in each]
