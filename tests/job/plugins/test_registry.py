"""Implementations of other distributions, found without ``importlib.metadata``."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from farandole.job.plugins import registry

_ENTRY_POINTS = """\
[console_scripts]
tool = tool:main

[farandole.codecs]
mine = mine.codec:Mine
other=mine.codec:Other [extra]

[farandole.wires]
mesh = mine.wire:wire
"""


@pytest.mark.parametrize("kind", registry.GROUPS)
def test_entry_points_are_those_of_importlib(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry parses entry_points.txt itself, since importlib.metadata takes longer than the
    start of a job.
    """
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(_ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = {
        point.name: point.value.partition("[")[0].strip()
        for point in metadata.entry_points(group=registry.GROUPS[kind])
    }
    assert registry._installed(kind) == expected
    assert bool(expected) or kind not in ("codec", "wire")
    assert set(registry.names(kind)) == {*registry.BUILT_IN[kind], *expected}
