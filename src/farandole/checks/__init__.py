"""Detection of mistakes that silently train the wrong model.

A check derives a ``Finding`` from facts that a framework supplies (in its module ``checks``).
Importing this package registers the checks at a job's end; every framework's package imports it. A
job without mistakes loads only the checks it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base import lazy
from farandole.job import context

if TYPE_CHECKING:
    from farandole.checks.finding import Finding as Finding
    from farandole.checks.finding import findings as findings

__getattr__, __dir__ = lazy.names(__name__, {"finding": ["Finding", "findings"]})


def _at_end(end: context.JobEnd) -> None:
    if end.unread or end.exchanges.no_gradients(end.size):
        from farandole.checks.missing_exchange import at_end

        at_end(end)


context.end_checks.append(_at_end)
