"""The files of a run: previews that execute and unpack nothing, and no way out of the run."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from farandole.dashboard.server import files, images
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from tests.kits.written_runs import write, written_run

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 4, 3) + b"\x08\2\0\0\0"
BOMB = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 60_000, 60_000) + b"\x08\2\0\0\0"
SCRIPT = "<script>alert(1)</script>"


def preview(page: TestClient, run: RunFolder, name: str) -> dict[str, Any]:
    answer = page.get(f"/api/run/{run.run_id}/file", params={"path": f"outputs/{name}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def raw(page: TestClient, run: RunFolder, name: str) -> Any:
    return page.get(f"/api/run/{run.run_id}/file", params={"path": name, "raw": 1})


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (PNG, ("image/png", 4, 3)),
        (b"GIF89a\x05\0\x06\0", ("image/gif", 5, 6)),
        (
            b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08\0\x07\0\x09\x03\0",
            ("image/jpeg", 9, 7),
        ),
        (b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x09\0\0\x07\0\0", ("image/webp", 10, 8)),
        (
            b"BM" + bytes(12) + b"\x28\0\0\0" + struct.pack("<ii", 3, -2),
            ("image/bmp", 3, 2),
        ),
    ],
)
def test_images_are_recognized_by_their_bytes(head: bytes, expected: tuple[str, int, int]) -> None:
    assert images.recognized(head) == expected


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"\x89PN", b"text", b"\xff\xd8"])
def test_other_data_is_no_image(data: bytes) -> None:
    assert images.recognized(data) is None


def test_previews_are_by_content(page: TestClient, home: RunsHome) -> None:
    run = written_run(
        home,
        outputs={
            "plot.txt": PNG,
            "bomb.png": BOMB,
            "page.html": SCRIPT.encode(),
            "drawing.svg": f"<svg>{SCRIPT}</svg>".encode(),
            "fake.png": b"no image",
            "weights.bin": bytes(range(256)) * 10,
            "zeros.gz": gzip.compress(bytes(1 << 22)),
            f"sub/{SCRIPT.replace('/', '')}.csv": f"a,b\n1,{SCRIPT}\n".encode(),
            "rows.jsonl": b'{"a": 1}\n{"b": [2]}\n',
            "broken.jsonl": b'{"a": 1}\n{"b"',
            "wide.tsv": b"x\ty\n" + b"1\t2\n" * 500,
        },
    )
    image = preview(page, run, "plot.txt")
    assert (image["kind"], image["type"], image["width"]) == ("image", "image/png", 4)
    bomb = preview(page, run, "bomb.png")
    assert bomb["kind"] == "binary"
    assert "60000" in bomb["note"]
    for name in ("page.html", "drawing.svg"):
        found = preview(page, run, name)
        assert found["kind"] == "text"
        assert SCRIPT in found["text"]
    assert preview(page, run, "fake.png")["kind"] == "text"
    assert preview(page, run, "weights.bin")["kind"] == "binary"
    assert preview(page, run, "zeros.gz")["kind"] == "binary"
    table = preview(page, run, f"sub/{SCRIPT.replace('/', '')}.csv")
    assert (table["columns"], table["rows"]) == (["a", "b"], [["1", SCRIPT]])
    table = preview(page, run, "rows.jsonl")
    assert (table["columns"], table["rows"]) == (["a", "b"], [["1", ""], ["", "[2]"]])
    assert preview(page, run, "broken.jsonl")["kind"] == "text"
    wide = preview(page, run, "wide.tsv")
    assert (len(wide["rows"]), wide["complete"]) == (200, False)


def test_a_large_text_is_shown_in_part(page: TestClient, home: RunsHome) -> None:
    run = written_run(home, outputs={"long.txt": b"line\n" * 200_000})
    found = preview(page, run, "long.txt")
    assert (found["kind"], found["complete"], found["bytes"]) == ("text", False, 1_000_000)
    assert len(found["text"]) < 300_000


def test_raw_files_are_shown_only_if_they_are_images(page: TestClient, home: RunsHome) -> None:
    run = written_run(home, outputs={"a.png": PNG, "b.svg": b"<svg/>", 'ü"\n.html': b"<p>"})
    image = raw(page, run, "outputs/a.png")
    assert (image.content, image.headers["content-type"]) == (PNG, "image/png")
    assert "content-disposition" not in image.headers
    for name in ("outputs/b.svg", 'outputs/ü"\n.html'):
        answer = raw(page, run, name)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-security-policy"].startswith("sandbox")


def test_links_out_of_the_run_are_refused(page: TestClient, home: RunsHome, tmp_path: Path) -> None:
    other = written_run(home, outputs={"other.txt": b"other"})
    run = written_run(home, outputs={"own.txt": b"own", "sub/x": b""})
    write(str(tmp_path / "secret"), b"secret")
    outputs = run.file("outputs")
    os.symlink(tmp_path / "secret", os.path.join(outputs, "link"))
    os.symlink(tmp_path, os.path.join(outputs, "folder"))
    os.symlink(other.file("outputs"), os.path.join(outputs, "neighbour"))
    os.symlink("own.txt", os.path.join(outputs, "inner"))
    os.symlink("loop", os.path.join(outputs, "loop"))
    os.mkfifo(os.path.join(outputs, "pipe"))
    refused = {
        "outputs/link": 403,
        "outputs/folder/secret": 403,
        "outputs/neighbour/other.txt": 403,
        "../../../../secret": 403,
        f"../{other.run_id}/outputs/other.txt": 403,
        "/etc/passwd": 403,
        "": 403,
        "outputs\0": 403,
        "outputs/loop": 404,
        "outputs/pipe": 404,
        "outputs/sub": 404,
        "outputs/own.txt/x": 404,
        "none": 404,
    }
    found = {name: raw(page, run, name).status_code for name in refused}
    assert found == refused
    assert raw(page, run, "outputs/inner").content == b"own"
    names = [each["path"] for each in page.get(f"/api/run/{run.run_id}/files").json()["files"]]
    assert [name for name in names if name.startswith("outputs")] == [
        "outputs/inner",
        "outputs/own.txt",
        "outputs/sub/x",
    ]
    assert "spec.json" in names


def test_a_file_that_is_deleted_meanwhile_is_left_out(
    home: RunsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(folder: RunFolder, path: str) -> bool:
        if path.endswith("gone.txt"):
            os.unlink(path)
        return True

    run = written_run(home, outputs={"gone.txt": b"1", "kept.txt": b"2"})
    monkeypatch.setattr(files, "is_inside", checked)
    names = [each["path"] for each in files.listing(run)["files"]]
    assert "outputs/kept.txt" in names
    assert "outputs/gone.txt" not in names


def test_a_log_that_is_a_link_is_refused(page: TestClient, home: RunsHome, tmp_path: Path) -> None:
    run = written_run(home, logs=[b"x"])
    os.unlink(run.log_of(0))
    write(str(tmp_path / "secret"), b"secret")
    os.symlink(tmp_path / "secret", run.log_of(0))
    assert page.get(f"/api/run/{run.run_id}/log?rank=0").status_code == 403


def test_timelines_of_the_ranks_are_merged(page: TestClient, home: RunsHome) -> None:
    head = {"name": "farandole", "ph": "M", "pid": 0, "tid": 0, "args": {}}
    outputs = {"other.json": b"[1, 2]"}
    for rank in range(2):
        first = {**head, "farandole": {"rank": rank, "begin": 5.0 + rank}}
        events = [first, {"name": "grads", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 0, "tid": 1}]
        text = "[\n" + ",\n".join(map(json.dumps, events)) + ",\n"  # of a killed process
        outputs[f"trace.json{f'.rank{rank}' if rank else ''}"] = text.encode()
    run = written_run(home, ranks=2, outputs=outputs)
    found = page.get(f"/api/run/{run.run_id}/timeline").json()
    assert found["files"] == ["outputs/trace.json", "outputs/trace.json.rank1"]
    assert found["complete"]
    assert len([each for each in found["events"] if each["name"] == "grads"]) == 2
