from __future__ import annotations

import errno
import io
import logging
import random
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.launch import output
from farandole.job.launch.output import OutputStreams
from tests.kits.messages import mentioning, mentions
from tests.kits.opened import opened


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make(
    size: int = 2, directory: Path | None = None, **options: bool
) -> tuple[OutputStreams, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return (
        OutputStreams(size, out, err, directory=str(directory) if directory else None, **options),
        out,
        err,
    )


def test_lines_are_prefixed() -> None:
    streams, out, err = make()
    streams.feed(0, "stdout", b"one\ntwo\n")
    streams.feed(1, "stderr", b"three\n")
    assert out.getvalue() == "[0]<stdout>:one\n[0]<stdout>:two\n"
    assert err.getvalue() == "[1]<stderr>:three\n"


def test_a_line_is_written_when_it_is_complete() -> None:
    streams, out, _ = make()
    streams.feed(0, "stdout", b"be")
    streams.feed(1, "stdout", b"other\n")
    streams.feed(0, "stdout", b"gin\nrest")
    assert out.getvalue() == "[1]<stdout>:other\n[0]<stdout>:begin\n"
    streams.pause(0, "stdout")
    streams.close()
    assert out.getvalue().endswith("[0]<stdout>:rest\n")


def test_empty_lines_stay() -> None:
    streams, out, _ = make()
    streams.feed(0, "stdout", b"\n\na\n")
    assert out.getvalue() == "[0]<stdout>:\n[0]<stdout>:\n[0]<stdout>:a\n"


def test_a_character_cut_in_two() -> None:
    streams, out, _ = make()
    for byte in "grün 🎉\n".encode():
        streams.feed(0, "stdout", bytes([byte]))
    streams.feed(0, "stdout", b"\xff\xfe\n")
    assert out.getvalue() == "[0]<stdout>:grün 🎉\n[0]<stdout>:\ufffd\ufffd\n"


def test_a_progress_bar_is_prefixed_at_every_return() -> None:
    streams, _, err = make()
    streams.feed(0, "stderr", b"\r 0%\r 50%")
    streams.feed(0, "stderr", b"\r100%\n")
    assert err.getvalue() == "[0]<stderr>: 0%\r[0]<stderr>: 50%\r[0]<stderr>:100%\n"


def test_progress_bars_of_two_ranks_do_not_overwrite_each_other() -> None:
    streams, _, err = make()
    streams.feed(0, "stderr", b"10%\r20%\r")
    streams.feed(1, "stderr", b"30%\r")
    streams.feed(0, "stderr", b"40%\r")
    streams.close()
    lines = err.getvalue().split("\n")
    assert lines == [
        "[0]<stderr>:10%\r[0]<stderr>:20%\r",
        "[1]<stderr>:30%\r",
        "[0]<stderr>:40%\r",
        "",
    ]


@pytest.mark.parametrize(
    "pieces", [[b"a\r\nb\r\n"], [b"a\r", b"\nb\r\n"], [b"a", b"\r\nb", b"\r", b"\n"]]
)
def test_lines_that_end_as_on_windows(pieces: list[bytes]) -> None:
    streams, out, _ = make()
    for piece in pieces:
        streams.feed(0, "stdout", piece)
    assert out.getvalue().replace("\r\n", "\n") == "[0]<stdout>:a\n[0]<stdout>:b\n"


def test_a_very_long_line_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LONGEST", 1000)
    streams, out, _ = make()
    for _ in range(50):
        streams.feed(0, "stdout", b"x" * 99)
    streams.feed(0, "stdout", b"\n")
    assert out.getvalue() == f"[0]<stdout>:{'x' * 4950}\n"


def test_any_cutting_of_the_bytes_gives_the_same_lines() -> None:
    rng = random.Random(3)
    text = "".join(rng.choice(["a", "ä", "🎉", "\n", "xyz\n"]) for _ in range(400)) + "\n"
    data = text.encode()
    for _ in range(50):
        streams, out, _ = make()
        position = 0
        while position < len(data):
            step = rng.randint(1, 40)
            streams.feed(0, "stdout", data[position : position + step])
            position += step
        assert out.getvalue() == "".join(f"[0]<stdout>:{line}\n" for line in text.split("\n")[:-1])


def test_a_time_stamp_in_front() -> None:
    streams, out, _ = make(timestamp=True)
    streams.feed(0, "stdout", b"x\n")
    stamp, _, rest = out.getvalue().partition("[0]")
    assert len(stamp.split()) == 5
    assert rest == "<stdout>:x\n"


TRACEBACK = (
    b'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: boom\n'
)


GROUP = b"""  + Exception Group Traceback (most recent call last):
  |   File "x.py", line 1, in <module>
  | ExceptionGroup: many (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: a
    +------------------------------------
"""


class TestTracebacks:
    @pytest.mark.parametrize("text", [TRACEBACK, GROUP])
    def test_one_that_ends_its_rank_is_left_to_the_driver(self, text: bytes) -> None:
        streams, _, err = make()
        end = text.index(b"\n") + 3
        streams.feed(0, "stderr", b"before\n" + text[:end])
        streams.feed(0, "stderr", text[end:])
        assert streams.tails() == {0: text.decode()}
        streams.close(drop={0})
        assert err.getvalue() == "[0]<stderr>:before\n"

    def test_one_of_a_rank_that_lives_on_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(output, "HOLD", 0.0)
        streams, _, err = make()
        streams.feed(0, "stderr", TRACEBACK)
        streams.show_stale(10.0)
        streams.feed(0, "stderr", b"goes on\n")
        assert "ValueError: boom\n[0]<stderr>:goes on\n" in err.getvalue()

    def test_one_of_a_failed_rank_waits_for_the_verdict(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "HOLD", 0.0)
        streams, _, err = make()
        streams.ending.add(0)
        streams.feed(0, "stderr", TRACEBACK)
        streams.show_stale(10.0)
        assert err.getvalue() == ""

    def test_nothing_is_lost_at_the_end(self) -> None:
        streams, _, err = make()
        streams.feed(1, "stderr", TRACEBACK + b"unfinished")
        streams.close()
        assert err.getvalue().count("[1]<stderr>:") == 4
        assert err.getvalue().endswith("unfinished\n")

    def test_a_long_one_is_shown(self) -> None:
        streams, _, err = make()
        streams.feed(0, "stderr", TRACEBACK + b"x\n" * output.HOLD_LIMIT)
        streams.feed(0, "stderr", b"y\n")
        assert "ValueError" in err.getvalue()


def test_the_last_lines() -> None:
    streams, _, _ = make()
    streams.feed(
        1, "stderr", b"".join(b"line %d\n" % number for number in range(100)) + b"10%\r90%\nend\n"
    )
    assert streams.tails()[1].split("\n") == [f"line {number}" for number in range(82, 100)] + [
        "90%",
        "end",
    ]


class TestFiles:
    def test_output_of_older_runs_is_kept_in_run_folders(self, tmp_path: Path) -> None:
        for run, size in enumerate((11, 2, 1)):  # with two digits, and with one
            streams = OutputStreams(size, io.StringIO(), io.StringIO(), directory=str(tmp_path))
            streams.feed(0, "stdout", b"run %d" % run)
            streams.close()
        assert (tmp_path / "rank.0" / "stdout").read_text() == "run 2"
        assert not (tmp_path / "rank.1").exists()
        older = sorted(tmp_path.glob("run-*"))
        assert [len(list(each.iterdir())) for each in older] == [11, 2]
        assert (older[0] / "rank.00" / "stdout").read_text() == "run 0"
        assert (older[1] / "rank.0" / "stdout").read_text() == "run 1"

    def test_jobs_that_run_at_the_same_time_keep_theirs_apart(self, tmp_path: Path) -> None:
        jobs = [
            OutputStreams(2, io.StringIO(), io.StringIO(), directory=str(tmp_path))
            for _ in range(3)
        ]
        for number, streams in enumerate(jobs):
            streams.feed(1, "stdout", b"job %d" % number)
        for streams in jobs:
            streams.close()
        assert (tmp_path / "rank.1" / "stdout").read_text() == "job 0"
        others = sorted(path.read_text() for path in tmp_path.glob("run-*/rank.1/stdout"))
        assert others == ["job 1", "job 2"]
        assert jobs[0].notes == []
        notes = [note for streams in jobs[1:] for note in streams.notes]
        assert all(f"{tmp_path};" in note and f"{tmp_path}/run-" in note for note in notes)

    def test_the_folder_of_an_older_run_is_reported(self, tmp_path: Path) -> None:
        for moved in (False, True):
            streams = OutputStreams(1, io.StringIO(), io.StringIO(), directory=str(tmp_path))
            streams.feed(0, "stdout", b"x")
            streams.close()
            (older,) = tmp_path.glob("run-*") if moved else [""]
            assert len(streams.notes) == moved
            assert not moved or mentions(streams.notes[0], str(tmp_path), str(older))

    def test_one_per_rank_and_stream(self, tmp_path: Path) -> None:
        streams, _, _ = make(11, tmp_path / "logs")
        streams.feed(3, "stdout", b"plain\r\n\xff")
        streams.feed(10, "stderr", TRACEBACK)
        streams.close(drop={10})
        assert (tmp_path / "logs" / "rank.03" / "stdout").read_bytes() == b"plain\r\n\xff"
        assert (tmp_path / "logs" / "rank.10" / "stderr").read_bytes() == TRACEBACK
        assert len(list((tmp_path / "logs").iterdir())) == 11

    def test_one_rank(self, tmp_path: Path) -> None:
        streams, _, _ = make(1, tmp_path)
        streams.feed(0, "stdout", b"x\n")
        streams.close()
        assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"x\n"

    def test_a_full_disk_costs_one_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for rank in range(2):
            (tmp_path / f"rank.{rank}").mkdir()
            (tmp_path / f"rank.{rank}" / "stdout").symlink_to("/dev/full")
        streams, out, _ = make(2, tmp_path)
        with caplog.at_level(logging.WARNING, "farandole"):
            for rank in (0, 1, 0, 1):
                streams.feed(rank, "stdout", b"x\n")
            streams.feed(0, "stderr", b"y\n")
        streams.close()
        assert len(caplog.records) == 1
        assert mentions(caplog.text, "No space left")
        assert out.getvalue().count("x\n") == 4
        assert (tmp_path / "rank.0" / "stderr").read_bytes() == b"y\n", "what can be kept is kept"

    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        before = opened()
        with pytest.raises(SettingsError, match=mentioning("--output-dir")):
            make(2, tmp_path / "file")
        assert opened() <= before


class TestConsole:
    def test_a_reader_that_went_away(self) -> None:
        class Gone(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError

        streams = OutputStreams(1, Gone(), io.StringIO())
        streams.feed(0, "stdout", b"x\n")
        streams.feed(0, "stdout", b"y\n")
        streams.close()
        assert streams.out.broken
        assert not streams.err.broken

    def test_a_full_disk_behind_stdout(self, caplog: pytest.LogCaptureFixture) -> None:
        class Full(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

        with caplog.at_level(logging.WARNING, "farandole"):
            streams = OutputStreams(1, Full(), io.StringIO())
            streams.feed(0, "stdout", b"x\n")
            streams.feed(0, "stdout", b"y\n")
            streams.close()
        assert len(caplog.records) == 1

    def test_only_some_ranks_are_shown_and_all_are_kept(self, tmp_path: Path) -> None:
        out, err = io.StringIO(), io.StringIO()
        streams = OutputStreams(2, out, err, directory=str(tmp_path), shown=[1])
        for rank in range(2):
            streams.feed(rank, "stdout", b"out\n")
            streams.feed(rank, "stderr", b"Traceback (most recent call last):\nValueError\n")
        streams.close()
        assert out.getvalue() == "[1]<stdout>:out\n"
        assert "[0]" not in err.getvalue()
        assert "ValueError" in streams.tails()[0]
        assert (tmp_path / "rank.0" / "stdout").read_text() == "out\n"

    def test_letters_that_the_terminal_does_not_know(self) -> None:
        raw = io.BytesIO()
        streams = OutputStreams(1, io.TextIOWrapper(raw, "ascii"), io.StringIO())
        streams.feed(0, "stdout", "grün\n".encode())
        assert raw.getvalue() == b"[0]<stdout>:gr?n\n"

    def test_a_terminal_shows_an_unfinished_line_at_a_pause(self) -> None:
        out = Terminal()
        streams = OutputStreams(2, out, io.StringIO())
        streams.feed(0, "stdout", b"name? ")
        streams.show_stale(0.0)
        assert out.getvalue() == "[0]<stdout>:name? "
        streams.feed(0, "stdout", b"Ann\n")
        assert out.getvalue() == "[0]<stdout>:name? Ann\n"

    def test_progress_bars_of_two_ranks_take_turns_on_a_terminal(self) -> None:
        """With the carriage return before or after the text."""
        out = Terminal()
        streams = OutputStreams(2, out, io.StringIO())
        streams.feed(0, "stdout", b"\r10%")
        streams.show_stale(0.0)
        streams.feed(1, "stdout", b"20%\r")
        streams.feed(0, "stdout", b"\r30%")
        streams.show_stale(0.0)
        streams.feed(1, "stdout", b"\n")
        streams.feed(0, "stdout", b"\r40%\r\n")
        assert out.getvalue() == (
            "[0]<stdout>:10%"
            "\r\x1b[2K[1]<stdout>:20%\r"
            "\r\x1b[2K[0]<stdout>:30%"
            "\r\x1b[2K[1]<stdout>:20%\n"  # its last state stays
            "[0]<stdout>:40%\n"
        )

    def test_a_lonely_progress_bar_overwrites_itself(self) -> None:
        out = Terminal()
        streams = OutputStreams(2, out, io.StringIO())
        for percent in (b"10%", b"20%", b"30%"):
            streams.feed(0, "stdout", b"\r" + percent)
            streams.show_stale(0.0)
        streams.feed(0, "stdout", b"\n")
        line = "".join(f"[0]<stdout>:{percent}%\r" for percent in (10, 20, 30))
        assert out.getvalue() == line.removesuffix("\r") + "\n"

    def test_and_not_in_a_pipe(self) -> None:
        streams, out, _ = make()
        streams.feed(0, "stdout", b"name? ")
        streams.show_stale(0.0)
        assert out.getvalue() == ""
