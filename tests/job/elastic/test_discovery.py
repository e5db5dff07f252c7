"""Discovery of hosts: scripts, files, functions, Slurm, and the watch that compares answers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.changes import HostUpdateResult, compare
from farandole.job.elastic.discovery import (
    FileDiscovery,
    FixedHosts,
    FunctionDiscovery,
    HostDiscovery,
    Hosts,
    HostWatch,
    ScriptDiscovery,
    SlurmDiscovery,
    discovery_of,
    slurm,
)
from tests.kits.messages import mentioning, mentions


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "discover hosts.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_a_script_prints_hosts_with_or_without_slots(script: Callable[[str], str]) -> None:
    path = script("echo a:2\necho\necho '# spot'\necho b\necho '[fd00::1]:4'\necho a\necho c:0")
    assert ScriptDiscovery(path, 3).find() == {"a": 5, "b": 3, "fd00::1": 4}


def test_a_script_may_have_arguments(script: Callable[[str], str], tmp_path: Path) -> None:
    script("echo $1:$2").replace("discover hosts.sh", "")
    Path(tmp_path / "discover hosts.sh").rename(tmp_path / "hosts.sh")
    assert ScriptDiscovery(f"{tmp_path}/hosts.sh worker-0 2").find() == {"worker-0": 2}


def test_a_script_of_this_folder_needs_no_dot(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("echo a:1")
    (tmp_path / "discover hosts.sh").rename(tmp_path / "hosts.sh")
    monkeypatch.chdir(tmp_path)
    assert ScriptDiscovery("hosts.sh").find() == {"a": 1}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("echo a", ("a", "--slots-per-host", "a:2")),
        ("echo a b:2", ("a b:2",)),
        ("echo a 1 2", ("a 1 2", "host:2")),
        ("echo a:two", ("a:two",)),
        ("echo :2", (":2",)),
        ("echo lost >&2; exit 3", ("exit code 3", "lost")),
    ],
)
def test_a_failing_script_is_named(
    script: Callable[[str], str], text: str, values: tuple[str, ...]
) -> None:
    path = script(text)
    with pytest.raises(SettingsError, match=mentioning("discover hosts.sh", *values)):
        ScriptDiscovery(path).find()


def test_a_script_that_cannot_be_run_is_named(script: Callable[[str], str], tmp_path: Path) -> None:
    Path(script("echo a:1")).chmod(0o644)
    with pytest.raises(SettingsError, match=mentioning("chmod +x", "discover hosts.sh")):
        ScriptDiscovery(str(tmp_path / "discover hosts.sh")).find()
    with pytest.raises(SettingsError, match=mentioning("missing.sh")):
        ScriptDiscovery(str(tmp_path / "missing.sh")).find()


def test_a_file_has_the_lines_of_a_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# spot\nworker-0 slots=2\nworker-1:3\nworker-2 slots = 1 max_slots=4\nd\n")
    found = FileDiscovery(str(path), 1).find()
    assert found == {"worker-0": 2, "worker-1": 3, "worker-2": 1, "d": 1}
    assert list(found) == ["worker-0", "worker-1", "worker-2", "d"]


@pytest.mark.parametrize(
    ("answer", "hosts"),
    [({"a": 2, "b": 0}, {"a": 2}), (["a:2", "b"], {"a": 2, "b": 4}), ([], {})],
)
def test_a_function_returns_hosts(answer: Any, hosts: Hosts) -> None:
    assert FunctionDiscovery(lambda: answer, 4).find() == hosts


@pytest.mark.parametrize("answer", [None, "a:2", {"a": "2"}, {"a": True}, {"a": -1}])
def test_another_answer_of_a_function_is_refused(answer: Any) -> None:
    def find_hosts() -> Any:
        return answer

    with pytest.raises(SettingsError, match=mentioning("find_hosts")):
        FunctionDiscovery(find_hosts).find()


def test_the_error_of_a_function_is_named() -> None:
    def find_hosts() -> Any:
        raise KeyError("pods")

    with pytest.raises(SettingsError, match=mentioning("find_hosts", "KeyError", "pods")):
        FunctionDiscovery(find_hosts).find()


SCONTROL = """#!/bin/sh
case "$1 $2" in
"show job") echo "JobId=$3 NumNodes=3 ReqNodeList=(null) NodeList=n[1-3] BatchHost=n1" ;;
"show hostnames") echo n1; echo n2; echo n3 ;;
"show node")
  echo "NodeName=n1 Arch=x86_64 CPUTot=4 State=ALLOCATED ThreadsPerCore=1"
  echo "NodeName=n2 Arch=x86_64 CPUTot=4 State=$STATE ThreadsPerCore=1"
  echo "NodeName=n3 Arch=x86_64 CPUTot=4 State=MIXED ThreadsPerCore=1" ;;
esac
"""


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("ALLOCATED", ["n1", "n2", "n3"]),
        ("DOWN*", ["n1", "n3"]),
        ("ALLOCATED+DRAIN", ["n1", "n3"]),
        ("ALLOCATED*", ["n1", "n3"]),
        ("MIXED+PLANNED", ["n1", "n2", "n3"]),
    ],
)
def test_nodes_of_slurm_that_are_down_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, names: list[str]
) -> None:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STATE", state)
    env = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x3)"}
    found = SlurmDiscovery(env=env).find()
    assert (list(found), set(found.values())) == (names, {2})


def test_slurm_needs_a_job() -> None:
    with pytest.raises(SettingsError, match=mentioning("SLURM_JOB_ID")):
        SlurmDiscovery(env={})
    assert slurm.node_list("JobId=7 NodeList=(null) ReqNodeList=n1") == ""


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"a": 2}, {"a": 2}, 0),
        ({"a": 2, "b": 1}, {"b": 1, "a": 2}, 0),
        ({"a": 2}, {}, 1),
        ({"a": 2}, {"a": 1}, 1),
        ({"a": 2}, {"a": 2, "b": 1}, 2),
        ({"a": 2}, {"a": 3}, 2),
        ({"a": 2}, {"b": 2}, 3),
        ({"a": 2, "b": 1}, {"a": 1, "b": 2}, 3),
    ],
)
def test_changes_between_two_answers(before: Hosts, after: Hosts, change: int) -> None:
    assert compare(before, after) == HostUpdateResult(change)


class Answers:
    """A discovery that gives prepared answers in order, and then repeats the last one."""

    def __init__(self, *answers: Hosts | Exception) -> None:
        self.answers = list(answers)
        self.asked = threading.Event()

    def describe(self) -> str:
        return "the prepared answers"

    def find(self) -> Hosts:
        if len(self.answers) == 1:
            self.asked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_watch_reports_changes_and_survives_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[Hosts, HostUpdateResult]] = []
    answers = Answers(
        {"a": 1}, {"a": 1}, SettingsError("lost 1"), OSError("lost 2"), {"a": 1, "b": 2}, {"b": 2}
    )
    watch = HostWatch(answers, lambda hosts, change: seen.append((hosts, change)), 0.001)
    assert watch.start() == {"a": 1}
    with caplog.at_level(logging.WARNING, "farandole"):
        assert answers.asked.wait(30)
        watch.close()
        watch._thread.join(30)
    assert seen == [
        ({"a": 1, "b": 2}, HostUpdateResult.added),
        ({"b": 2}, HostUpdateResult.removed),
    ]
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 1  # one for both failures
    assert mentions(warned, "the prepared answers", "lost 1")


def test_a_watch_survives_any_error(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    seen: list[Hosts] = []
    answers = Answers({"a": 1}, KeyError("pool"), {"b": 2})
    watch = HostWatch(answers, lambda hosts, change: seen.append(hosts), 0.001)
    watch.start()
    with caplog.at_level(logging.WARNING, "farandole"):
        assert answers.asked.wait(30)
        watch.close()
        watch._thread.join(30)
    assert seen == [{"b": 2}]
    assert mentions([record.getMessage() for record in caplog.records], "KeyError", "pool")


def test_the_end_of_a_watch_ends_its_script(script: Callable[[str], str], tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    path = script(f"[ -e '{tmp_path}/later' ] && sleep 1000 >'{fifo}'\necho a:1")
    watch = HostWatch(ScriptDiscovery(path), lambda hosts, change: None, 0.001)
    assert watch.start() == {"a": 1}
    (tmp_path / "later").touch()
    with fifo.open() as reader:  # waits until the script runs
        watch.close()
        assert reader.read() == ""  # the last process that could write has ended
    watch._thread.join(30)
    assert not watch._thread.is_alive()


def test_a_closed_watch_ignores_errors_of_close() -> None:
    class Closing(Answers):
        def close(self, reason: str) -> None: ...

    watch = HostWatch(Closing({"a": 1}), lambda hosts, change: None)
    watch.start()
    watch.close()


def test_the_first_failure_of_a_discovery_is_fatal() -> None:
    for error in (SettingsError("lost"), OSError("lost"), KeyError("lost")):
        with pytest.raises(SettingsError, match="lost"):
            HostWatch(Answers(error), lambda hosts, change: None).start()


def test_fixed_hosts_do_not_change() -> None:
    fixed = FixedHosts({"a": 2})
    fixed.find()["b"] = 1
    assert fixed.find() == {"a": 2}
    assert isinstance(fixed, HostDiscovery)


def test_settings_choose_the_discovery(
    tmp_path: Path, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(named: str) -> Hosts:
        settings = Settings(host_discovery_script=named, slots_per_host=3)
        return discovery_of(settings, {"fixed": 1}).find()

    (tmp_path / "hosts").write_text("b slots=2\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert find("") == {"fixed": 1}
    assert find(script("echo a")) == {"a": 3}
    assert find(f"file:{tmp_path}/hosts") == {"b": 2}
    slurms = discovery_of(Settings(host_discovery_script="slurm"), {})
    assert isinstance(slurms, SlurmDiscovery)
    assert discovery_of(Settings(), {}, lambda: ["f:2"]).find() == {"f": 2}
    fixed = FixedHosts({"a": 1})
    assert discovery_of(Settings(), {}, fixed) is fixed


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", {}),
        (
            "echo pi-worker-0.pi.default.svc\necho pi-worker-1.pi.default.svc",
            {"pi-worker-0.pi.default.svc": 2, "pi-worker-1.pi.default.svc": 2},
        ),
        (
            "echo pi-launcher.pi-worker:1\necho pi-worker-0.pi-worker:4",
            {"pi-launcher.pi-worker": 1, "pi-worker-0.pi-worker": 4},
        ),
    ],
    ids=["no pods", "v2", "v1 with slots"],
)
def test_the_mpi_operators_script(
    lines: str, expected: Hosts, script: Callable[[str], str]
) -> None:
    """The MPI operator rewrites ``/etc/mpi/discover_hosts.sh`` when pods are lost or added."""
    assert ScriptDiscovery(script(lines), slots=2).find() == expected
