"""A launcher with agents is one file and a line among a distribution's entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from tests.kits.launcher import Drive, LauncherKit, here

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LINE = "toy = tests.job.launch.toy_launcher:ToyLauncher\n"


class TestToy(LauncherKit):
    options: ClassVar = {"launcher": "toy"}

    @pytest.fixture(scope="class")
    @classmethod
    def drive(cls, tmp_path_factory: pytest.TempPathFactory) -> Drive:
        """A distribution that has the launcher, on the path of the driver and of the ranks."""
        site = tmp_path_factory.mktemp("site")
        info = site / "toy-1.0.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(f"[farandole.launchers]\n{LINE}")
        path = os.pathsep.join(map(str, (site, ROOT / "src", ROOT)))

        def drive(driver: Path, env: Mapping[str, str]) -> str:
            return here([sys.executable, str(driver)], {**env, "PYTHONPATH": path})

        return drive
