"""Detects mistakes that train the wrong model without an error.

A check makes a ``Finding`` of facts that a framework gives (its file ``checks``). To import this
package adds the checks at a job's end; every framework's package does.
"""

from __future__ import annotations

from farandole.checks import missing_exchange as missing_exchange
from farandole.checks.finding import Finding, findings

__all__ = ["Finding", "findings"]
