"""Inputs from paths and URLs: their names, their copies in the cache, and wrong ones."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import RunFolder, make_private
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import InputSpec
from farandole.jobs import inputs
from farandole.jobs.inputs import cache, sources
from farandole.jobs.inputs.credentials import without_credentials
from tests.kits.messages import mentioning


class _Handler(http.server.SimpleHTTPRequestHandler):
    fetched: list[str] = []

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Serve the folder ``web`` and yield its URL."""
    make_private(str(tmp_path / "web"))
    handler = functools.partial(_Handler, directory=str(tmp_path / "web"))
    _Handler.fetched.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    yield
    cache.release()


def folder_of(tmp_path: Path, name: str = "e_1_a") -> RunFolder:
    return RunFolder(make_private(str(tmp_path / name)))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def prepared(source: str, home: RunsHome, folder: RunFolder, mode: str = "mount") -> str:
    spec = InputSpec("data", source, mode)
    inputs.check([spec], ())
    return inputs.prepare(inputs.public([spec]), folder, home)["data"]


def names(path: str) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in Path(path).rglob("*") if each.is_file())


def test_local_paths_are_read_in_place(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "data" / "a.csv", "1")
    monkeypatch.chdir(tmp_path)
    folder = folder_of(tmp_path)
    assert prepared("data/a.csv", home, folder) == str(file)
    assert prepared("data", home, folder, "path") == str(file.parent)


def test_a_url_of_one_file_is_fetched_once_and_is_that_file(
    home: RunsHome, tmp_path: Path, web: str
) -> None:
    write(tmp_path / "web" / "x" / "data.zip", "zip")
    for run in ("e_1_a", "e_1_b"):
        path = prepared(f"{web}/x/data.zip", home, folder_of(tmp_path, run))
        assert os.path.basename(path) == "data.zip"
        assert Path(path).read_text() == "zip"
    assert _Handler.fetched.count("/x/data.zip") == 1
    write(tmp_path / "web" / "x" / "data.zip", "changed")
    assert Path(prepared(f"{web}/x/data.zip", home, folder_of(tmp_path))).read_text() == "changed"


def test_several_files_are_a_folder_without_their_common_prefix(
    home: RunsHome, tmp_path: Path
) -> None:
    for name in ("a/1.csv", "a/b/2.csv", "a/3.txt"):
        write(tmp_path / "store" / name, name)
    url = f"file://{tmp_path}/store"
    folder = folder_of(tmp_path)
    assert names(prepared(url, home, folder)) == ["1.csv", "3.txt", "b/2.csv"]
    assert names(prepared(f"{url}/a/**/*.csv", home, folder)) == ["1.csv", "b/2.csv"]
    assert names(prepared(f"{tmp_path}/store/a/*.csv", home, folder, "download")) == []
    one = prepared(f"{url}/a/*.csv", home, folder)
    assert (os.path.basename(one), Path(one).read_text()) == ("1.csv", "a/1.csv")


def test_a_download_belongs_to_its_run(home: RunsHome, tmp_path: Path) -> None:
    write(tmp_path / "store" / "a.csv", "1")
    url = f"file://{tmp_path}/store/a.csv"
    folder = folder_of(tmp_path)
    path = Path(prepared(url, home, folder, "download"))
    assert path.is_relative_to(folder.path)
    path.write_text("changed by the run")
    assert Path(prepared(url, home, folder)).read_text() == "1"
    own = folder_of(tmp_path, "e_1_b")
    assert names(prepared(str(tmp_path / "store"), home, own, "download")) == ["a.csv"]


def test_runs_that_need_one_input_wait_for_one_fetch(
    home: RunsHome, tmp_path: Path, web: str
) -> None:
    write(tmp_path / "web" / "big.bin", "x" * 300_000)
    found: list[str] = []

    def need(number: int) -> None:
        found.append(prepared(f"{web}/big.bin", home, folder_of(tmp_path, f"e_1_{number}")))

    threads = [threading.Thread(target=need, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert _Handler.fetched.count("/big.bin") == 1


def test_a_change_during_the_fetch_is_an_error(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "store" / "a.csv", "12345")
    real = cache.file_system

    def changing(source: sources.InputSource) -> object:
        system, path = real(source)
        fetch = system.get_file

        def get_file(remote: str, local: str) -> None:
            fetch(remote, local)
            file.write_text("1234567")

        monkeypatch.setattr(system, "get_file", get_file)
        return system, path

    monkeypatch.setattr(cache, "file_system", changing)
    with pytest.raises(RunError, match=mentioning("data", "a.csv", "5 bytes", "7 bytes")):
        prepared(f"file://{tmp_path}/store/a.csv", home, folder_of(tmp_path))
    assert [name for name in os.listdir(home.folder("inputs")) if ".lock" not in name] == []


def test_missing_inputs_are_named(home: RunsHome, tmp_path: Path, web: str) -> None:
    folder = folder_of(tmp_path)
    for source in (f"{web}/gone.zip", f"file://{tmp_path}/*.gone"):
        with pytest.raises(RunError, match=mentioning("data", source)):
            prepared(source, home, folder)
    for source in ("gone", f"file://{tmp_path}/gone", "gone/*.csv"):
        with pytest.raises(SettingsError, match=mentioning("data", source)):
            prepared(source, home, folder)


def test_an_unreachable_host_is_named(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_PAUSE", 0.001)
    with pytest.raises(RunError, match=mentioning("data", "127.0.0.1:9")):
        prepared("http://127.0.0.1:9/a", home, folder_of(tmp_path))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (InputSpec("data", "nosuch://x"), "nosuch://"),
        (InputSpec("data", "http://h/x", "path"), "path"),
        (InputSpec("data", "/tmp", "copy"), "copy"),
        (InputSpec("PATH", "/tmp"), "PATH"),
        (InputSpec("HOROVOD_RANK", "/tmp"), "HOROVOD_RANK"),
        (InputSpec("a b", "/tmp"), "a b"),
        (InputSpec("data", "s3://b/x?sig=***"), "FARANDOLE_INPUT_data"),
    ],
)
def test_wrong_inputs(spec: InputSpec, named: str) -> None:
    with pytest.raises(SettingsError, match=mentioning(named)):
        inputs.check([spec], ())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources._PACKAGES, "s3", ("no_such_s3fs", "s3fs"))
    with pytest.raises(SettingsError, match=mentioning("data", "pip install")):
        inputs.check([InputSpec("data", "s3://bucket/x")], ())


def test_credentials_stay_out_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://account.example/x.zip?sv=2020&sig=abc%3D"
    spec = InputSpec("data", url)
    (public,) = inputs.public([spec])
    assert public.source == "https://account.example/x.zip?sv=2020&sig=***"
    assert inputs.secret_variables([spec]) == {"FARANDOLE_INPUT_data": url}
    monkeypatch.setenv("FARANDOLE_INPUT_data", url)
    inputs.check([public], ())
    from farandole.jobs.inputs.credentials import full_source

    assert full_source(public) == url
    inputs.forget_credentials(os.environ)
    assert "FARANDOLE_INPUT_data" not in os.environ


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://me:pw@host/x", "ftp://***@host/x"),
        ("abfs://container@account.dfs.core/x", "abfs://container@account.dfs.core/x"),
        ("s3://bucket/a/*.csv", "s3://bucket/a/*.csv"),
        ("http://h/x?page=2", "http://h/x?page=2"),
    ],
)
def test_urls_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_the_cache_keeps_to_its_limit_and_what_is_used(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.CACHE_VARIABLE, "25000")
    folder = folder_of(tmp_path)
    paths = []
    for number in range(3):
        file = write(tmp_path / "store" / str(number), "x" * 10000)
        paths.append(prepared(f"file://{file}", home, folder))
        if number == 0:
            cache.release()
    assert [os.path.exists(path) for path in paths] == [False, True, True]
    assert cache.InputCache(home).collect() == 0
    cache.release()
    assert cache.InputCache(home).collect() > 20000
    assert not any(map(os.path.exists, paths))


def test_a_full_disk_is_noticed_before_the_fetch(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "store" / "a", "x" * 5000)
    real = cache.shutil.disk_usage(str(tmp_path))
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: real._replace(free=1000))
    with pytest.raises(RunError, match=mentioning("data", "4.9 KiB", "1000 B")):
        prepared(f"file://{file}", home, folder_of(tmp_path))
