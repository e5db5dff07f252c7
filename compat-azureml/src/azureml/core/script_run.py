"""Submitted runs of scripts."""

from __future__ import annotations

from azureml.core.run import Run


class ScriptRun(Run):
    """A submitted run."""
