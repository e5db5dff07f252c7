"""Jobs whose ranks are all started again after a failure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import JobFailedError
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, settings_for
from tests.kits.messages import mentioning, mentions

# Fails until there are enough files, one for each start of rank 0.
FAILING = """
[ "$HOROVOD_RANK" = 0 ] && echo x >> "$0/starts"
echo "restart $FARANDOLE_RESTART_COUNT left=$FARANDOLE_MAX_RESTARTS"
[ "$FARANDOLE_RESTART_COUNT" -ge "$1" ] || exit 3
"""


def run(
    folder: Path, needed: int, restarts: int, said: io.StringIO | None = None, **options: Any
) -> tuple[int, str]:
    """Run a job that fails until restart ``needed``; return its starts and messages, which are also
    in ``said``.
    """
    said = said or io.StringIO()
    job = Job(
        np=2,
        settings=settings_for({}, {"max_restarts": restarts}),
        display=Display(say=said, out=io.StringIO(), err=io.StringIO(), **options),
        command=["sh", "-c", FAILING, str(folder), str(needed)],
    )
    try:
        driver.run(job)
    finally:
        starts = (folder / "starts").read_text().count("x")
    return starts, said.getvalue()


def test_all_ranks_are_started_again(tmp_path: Path) -> None:
    starts, said = run(tmp_path, 2, 3, output_dir=str(tmp_path / "out"))
    assert starts == 3
    assert mentions(said, "restart 1", "3")
    assert mentions(said, "restart 2", "3")
    texts = [path.read_text() for path in sorted((tmp_path / "out").rglob("*0/stdout"))]
    # the settings of the job are not passed on to jobs that its ranks start
    assert texts == [f"restart {number} left=\n" for number in range(3)]


def test_the_last_failure_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match=mentioning("exited with code 3")):
        run(tmp_path, 9, 1, said := io.StringIO())
    assert (tmp_path / "starts").read_text().count("x") == 2
    assert mentions(said.getvalue(), "restart", "left", "1")
