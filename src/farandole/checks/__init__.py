"""Detects mistakes that train the wrong model without an error.

To import this package adds the checks at a job's end; every framework's package does.
"""

from __future__ import annotations

from farandole.checks.missing_exchange import at_end

__all__ = ["at_end"]
