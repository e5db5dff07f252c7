"""The telemetry setting. No data leaves the machine."""

from __future__ import annotations

from typing import Any

from azureml._farandole.texts import notice

__all__ = ["set_diagnostics_collection"]


def set_diagnostics_collection(send_diagnostics: bool = True, verbosity: Any = None) -> None:
    """Report that no diagnostics leave the machine; both arguments are ignored."""
    notice("no diagnostics are collected, and nothing leaves this machine")
