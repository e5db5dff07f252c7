"""A build hook that refuses environments with a distribution of Microsoft's SDK."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AloneHook(BuildHookInterface):  # type: ignore[type-arg]
    """Checks the environment of the building interpreter, which is ``pip``'s."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise ImportError if the environment has a distribution named ``azureml-*``."""
        file = Path(self.root, "src", "azureml", "_farandole", "alone.py")
        check = runpy.run_path(str(file))["check_alone"]
        check([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
