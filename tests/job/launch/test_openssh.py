"""OpenSSH's command line, and the meaning of its failures. test_ssh has real hosts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.launch.openssh import (
    CONNECT,
    OLD,
    SshSession,
    command,
    failures,
    program,
    reason,
)
from tests.job.launch.tools import wait_until
from tests.kits.messages import mentioning, mentions


def test_options_of_the_user_come_first_without_prompts() -> None:
    settings = Settings(
        ssh_port=2222, ssh_identity_file="/k", ssh_options="-J gate -o ConnectTimeout=3"
    )
    words = command("me@h1", settings, ["sh", "-c", "echo 'a b'"])
    assert words[:10] == ["ssh", "-T", "-x", "-o", "BatchMode=yes", "-p", "2222", "-i", "/k", "-J"]
    assert words.index("ConnectTimeout=3") < words.index(f"ConnectTimeout={CONNECT}")
    assert words[-3:-1] == ["--", "me@h1"]
    assert shlex.split(words[-1]) == ["exec", "sh", "-c", "echo 'a b'"]
    assert not any("StrictHostKeyChecking" in word for word in words)


def test_without_settings_ssh_follows_its_own_configuration() -> None:
    assert not {"-p", "-i", "-F", "-J"} & set(command("h1", Settings(), ["true"]))


SAID = [
    (
        "ssh: Could not resolve hostname h1: Name or service not known",
        "/etc/hosts",
    ),
    (
        "ssh: connect to host h1 port 22: Connection refused",
        "port 22",
    ),
    (
        "ssh: connect to host h1 port 22: Connection timed out",
        "port 22 (Connection timed out)",
    ),
    (
        "ssh: connect to host h1 port 7: No route to host",
        "port 7 (No route to host)",
    ),
    ("ssh: connect to host fe80::1 port 22: Invalid argument", "leads to it: [fe80::1%eth0]"),
    (
        "No ED25519 host key is known for h1\nHost key verification failed.",
        "connect once by hand (ssh me@h1)",
    ),
    (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
        "ssh-keygen -R h1 and then ssh me@h1",
    ),
    (
        "me@h1: Permission denied (publickey,password).",
        "publickey,password): run ssh-copy-id me@h1",
    ),
    ("Received disconnect: 2: Too many authentication failures", "IdentitiesOnly=yes"),
    (
        (
            "Warning: Identity file /k not accessible: No such file.\nme@h1: Permission denied"
            " (publickey)."
        ),
        "/k does not exist (--ssh-identity-file)",
    ),
    (
        (
            "channel 0: open failed: Connection refused\nstdio forwarding failed\nConnection closed"
            " by UNKNOWN port 65535"
        ),
        "(or ProxyCommand) failed: channel 0: open failed: Connection refused",
    ),
    (
        (
            "ssh: Could not resolve hostname gate: Name or service not known\nConnection closed by"
            " UNKNOWN port 65535"
        ),
        "(or ProxyCommand) failed: ssh: Could not resolve hostname gate",
    ),
    (
        "exec: gate: not found\nbanner exchange: Connection to UNKNOWN port 65535: Broken pipe",
        "gate: not found",
    ),
    (
        "Connection closed by UNKNOWN port 65535",
        "ProxyCommand) failed: Connection closed by UNKNOWN port 65535",
    ),
    (
        "Can't open user config file /c: No such file or directory",
        ": Can't open",
    ),
    (
        "command-line: line 0: Bad configuration option: nonsense",
        ": command-line",
    ),
    (
        "Connection timed out during banner exchange\nConnection to 10.0.0.3 port 22 timed out",
        "sshd",
    ),
    ("Timeout, server h1 not responding.", "network"),
    ("Connection to h1 closed by remote host.", "it closed the connection"),
    (
        (
            "kex_exchange_identification: read: Connection reset by peer\nConnection reset by"
            " 10.0.0.3 port 22"
        ),
        "(Connection reset by 10.0.0.3 port 22): too many simultaneous logins (MaxStartups",
    ),
    (
        (
            "channel 0: open failed: connect failed: Name or service not known\nstdio forwarding"
            " failed\nkex_exchange_identification: Connection closed by remote host"
        ),
        "ProxyCommand) failed: channel 0: open failed: connect failed: Name or service not known",
    ),
    ("ssh: something new", "ssh failed: ssh: something new"),
    ("module: loading cuda", "ssh ended; the host's last line: module: loading cuda"),
    ("", "it closed the connection"),
]


@pytest.mark.parametrize(("said", "means"), SAID)
def test_errors_of_ssh_are_reported_with_the_cure(said: str, means: str) -> None:
    assert means in reason("me@h1", 255, said)


def test_errors_of_the_remote_python_are_reported() -> None:
    assert (
        reason("h1", 1, f"noise\n{OLD}, and /usr/bin/python3 is 3.8\n")
        == f"{OLD}, and /usr/bin/python3 is 3.8"
    )
    assert "it has no Python" in reason("h1", 127, "sh: 1: exec: python3: not found")
    assert "it has no Python" in reason("h1", 127, "")
    missing = reason("h1", 127, "bash: /opt/zsh: No such file or directory\n")
    assert "Python" not in missing
    assert mentions(missing, "/.bashrc", "PATH", "/opt/zsh")
    assert reason("h1", 1, f"File, line 1\nexec -c '{OLD}'\nSyntaxError: x\n").endswith(
        "SyntaxError: x"
    )
    assert mentions(reason("h1", -9, ""), "SIGKILL")
    assert (
        reason("h1", 1, "Traceback\nKeyError: 3\n")
        == "its program ended with status 1: KeyError: 3"
    )


def test_a_python_that_does_not_start_is_explained() -> None:
    """PYTHONHOME of a module system, in a startup file. Its own account ends with ``<no Python
    frame>``.
    """
    done = subprocess.run(
        program(sys.executable),
        env={"PATH": os.environ["PATH"], "PYTHONHOME": "/opt/other"},
        input=b"",
        capture_output=True,
        check=False,
    )
    said = reason("h1", done.returncode, done.stderr.decode())
    variable = "PYTHONHOME(=/opt/other| or PYTHONPATH)"  # Python 3.13 keeps its value to itself
    assert re.fullmatch(
        rf"its Python does not start \(.+\); {variable} is set there, .*: unset it", said
    )


def test_options_with_an_open_quotation_mark() -> None:
    with pytest.raises(
        SettingsError,
        match=mentioning("--ssh-options"),
    ):
        command("h1", Settings(ssh_options="-o 'User x"), ["true"])


@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ("echo welcome", "it printed: welcome"),
        ("exit", "~/.bashrc"),
        (
            "exit 3",
            "status 3 ",
        ),
        ("exit 127", "it has no Python"),
        (f"read x; {shlex.join(program(sys.executable))}", "reads from stdin"),
        (r"printf '\033[2J\377 welcome'; exit 1", r"status 1: \\x1b\[2J\\xff welcome$"),
        (r"printf '\033[2J\377 welcome'", r"it printed: \\x1b\[2J\\xff welcome$"),
        (
            "echo This account is not available.; exit 1",
            "ended with status 1: This account is not available",
        ),
    ],
)
def test_a_login_shell_that_ends_the_session(shell: str, says: str) -> None:
    session = SshSession("h1", ["sh", "-c", shell], {}, lambda facts: None)
    deadline = time.monotonic() + 60
    while session.ended() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert re.search(says, session.ended() or "")
    session.close(time.monotonic())


def test_a_login_shell_that_prints_an_unfinished_line() -> None:
    """Such as a terminal's title. The prompt of a host named farandole is no message of ours."""
    heard: list[Mapping[str, Any]] = []
    first = {
        "do": "agent",
        "folder": "/",
        "path": [],
        "wanted": {"farandole": "x"},
        "env": {},
        "task": {},
    }
    script = f"echo me@farandole /; printf title; {shlex.join(program(sys.executable))}"
    session = SshSession("h1", ["sh", "-c", script], first, lambda facts: heard.append(facts))
    assert wait_until(lambda: heard)
    assert heard[0]["need"] is True
    assert session.late() == "its program started, but did not report to the driver"
    session.close(time.monotonic())


def test_a_login_shell_that_waits() -> None:
    session = SshSession(
        "h1", ["sh", "-c", "echo busy; exec cat >/dev/null"], {}, lambda facts: None
    )
    assert wait_until(lambda: "it printed: busy" in session.late())
    assert mentions(session.late(), "our program")
    assert mentions(session.late(), "`ssh h1 true`")
    session.close(time.monotonic())


DROPS = (
    "n=$(cat tries 2>/dev/null || echo 0); echo $((n + 1)) >tries; [ $n -ge {count} ] || {{ echo"
    " 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255; }}; {program}"
)


@pytest.mark.parametrize("count", [2, 9])
def test_a_login_that_sshd_drops_is_tried_again(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshd drops logins at random when many begin at the same time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("farandole.job.launch.openssh.AGAIN", (0.01, 0.02, 0.03))
    heard: list[Mapping[str, Any]] = []
    first = {
        "do": "agent",
        "folder": "/",
        "path": [],
        "wanted": {"farandole": "x"},
        "env": {},
        "task": {},
    }
    script = DROPS.format(count=count, program=shlex.join(program(sys.executable)))
    session = SshSession("h1", ["sh", "-c", script], first, lambda facts: heard.append(facts))
    assert wait_until(lambda: session.ended() is not None or heard)
    tries = int((tmp_path / "tries").read_text())
    if count == 2:
        assert (tries, heard[0]["need"], session.ended()) == (3, True, None)
    else:
        assert (tries, heard) == (4, [])
        assert mentions(session.ended() or "", "kex_exchange_identification")
    session.close(time.monotonic())


def test_one_text_for_all_hosts() -> None:
    assert failures({"a": "x", "b": "y"}) == "2 hosts cannot be used:\n  a: x\n  b: y"
    assert failures({"a": "x"}).startswith("a host cannot be used:")


def test_a_missing_interpreter_is_replaced_by_python3() -> None:
    done = subprocess.run(program("/no/such/python"), input=b"", capture_output=True, check=False)
    assert b"ValueError" in done.stderr  # python3 came as far as the frame that it was not sent
    words = program(sys.executable)
    assert (
        subprocess.run(
            words, input=b"%08dprint(6 * 7)" % 12, capture_output=True, check=True
        ).stdout
        == b"42\n"
    )


def test_a_machine_without_ssh() -> None:
    with pytest.raises(
        SettingsError,
        match=mentioning("/no/ssh", "OpenSSH"),
    ):
        SshSession("h1", ["/no/ssh"], {}, lambda facts: None)


def test_a_session_without_ssh() -> None:
    """Messages between noise, an answer on demand, a missing folder; the end of stdin ends the
    session.
    """
    heard: list[Mapping[str, Any]] = []
    first = {
        "do": "agent",
        "folder": "/no/such/folder",
        "path": [],
        "wanted": {},
        "env": {},
        "task": {},
    }
    session = SshSession("h1", program(sys.executable), first, lambda facts: heard.append(facts))
    deadline = time.monotonic() + 60
    while session.ended() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mentions(session.ended() or "", "'/no/such/folder'")
    assert [list(facts) for facts in heard] == [["failed"]]
    session.close(time.monotonic())


def test_a_stopped_program_is_not_reported_as_ended() -> None:
    began = threading.Event()
    said = "print('@farandole {}', flush=True); import time; time.sleep(1000)"
    session = SshSession("h1", [sys.executable, "-c", said], {}, lambda facts: began.set())
    assert began.wait(60)
    assert not session.close(time.monotonic())
    ended = SshSession("h1", ["true"], {}, lambda facts: None)
    assert ended.close(time.monotonic() + 60)
