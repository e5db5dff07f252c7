from __future__ import annotations

import errno
import re
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from farandole import cli
from farandole.errors import SettingsError
from farandole.job.launch.job import check_ranks, ranks_of
from farandole.job.launch.limits import check_open_files, check_proc, crowding, cure
from tests.kits.messages import mentioning, mentions


def test_many_ranks_on_few_cores() -> None:
    assert crowding(3, 2) == crowding(1, 1) == ""
    assert mentions(crowding(2, 1), "2 ranks", "1 core")
    assert (
        crowding(8, 4)
        == "8 ranks share 4 cores of this machine and take turns: training takes longer than with"
        " -np 4"
    )


def test_more_ranks_than_open_files() -> None:
    check_open_files(2, logs=True)
    with pytest.raises(SettingsError, match=mentioning("10000000", "ulimit")):
        check_open_files(10_000_000, logs=True)


def test_a_limit_that_stops_ranks_is_reported_with_its_cure() -> None:
    assert re.search(
        r"a process may have \d+ open files here \(`ulimit -n`\): raise",
        cure(OSError(errno.EMFILE, "")),
    )
    assert re.search(
        r"a user may have -?\d+ processes .*`ulimit -u`.*pids.max", cure(OSError(errno.EAGAIN, ""))
    )
    assert re.search(r"`ulimit -s`.* shorten", cure(OSError(errno.E2BIG, "")))
    assert cure(OSError(errno.ENOENT, "none")) == cure(None) == ""


def test_processes_that_cannot_be_found(tmp_path: Path) -> None:
    """Jobs must neither be reported as killed by SIGTERM, nor leave their daemons running."""
    check_proc()
    with pytest.raises(SettingsError, match=mentioning(str(tmp_path), "mount -t proc")):
        check_proc(str(tmp_path))
    (tmp_path / "self").symlink_to("4711")
    with pytest.raises(SettingsError, match=mentioning("4711", "--mount-proc")):
        check_proc(str(tmp_path))


def test_ranks_to_show() -> None:
    assert ranks_of("0", 1) == (0,)
    assert ranks_of("0, 2-3", 4) == (0, 2, 3)
    assert check_ranks([1], 2) == (1,)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ranks_of("x", 2), ("--show-ranks='x'", "0,2-3")),
        (lambda: ranks_of("", 2), "--show-ranks=''"),
        (lambda: ranks_of("1-0", 2), "--show-ranks='1-0'"),
        (lambda: ranks_of("-1", 2), "--show-ranks='-1'"),
        (lambda: ranks_of("\u00b2", 2), "--show-ranks='²'"),
        (
            lambda: ranks_of("0-999999999999", 2),
            ("show_ranks", "999999999999", "2"),
        ),
        (lambda: ranks_of("1-2", 2), ("show_ranks", "2", "0", "1")),
        (lambda: check_ranks("0", 2), "show_ranks='0'"),
        (lambda: check_ranks(0, 2), "show_ranks=0"),
        (lambda: check_ranks([True], 2), "True"),
    ],
)
def test_ranks_that_are_none(call: Any, text: str | tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=mentioning(text)):
        call()


def test_the_thread_limit_of_a_failed_job_is_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    assert cli.main(["run", "-np", "2", "true"]) == 2
    said = capfd.readouterr().err
    assert mentions(said, "'farandole-store'", "thread")
    assert "`ulimit -u`" in said
    assert mentions(said, "fewer ranks")
    assert "ulimit -v" not in said
    monkeypatch.setattr(resource, "getrlimit", lambda _: (120 << 20, 120 << 20))
    assert cli.main(["run", "-np", "2", "true"]) == 2
    assert mentions(capfd.readouterr().err, "120 MiB", "`ulimit -v`")
