"""Jobs on four hosts, each with its own network, processes and sshd. The first is the driver's."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farandole.base.types import Slot
from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.launchers.ssh import SshLauncher, SshSessions, environment
from farandole.job.plugins.registry import best
from farandole.net.interfaces import Interface
from tests.job.launch.test_driver import WARNED
from tests.job.launch.test_servers import PROGRAM
from tests.kits.hosts import Capture, Hosts, hosts
from tests.kits.messages import mentioning, mentions
from tests.kits.patience import PATIENT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SOURCES = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
ALL = "a:1,b:1,c:1,d:1"
REDUCE = """
import json, os, socket
import numpy as np
import farandole.numpy as hvd
hvd.init()
total = hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum, name="x")
places = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
print(json.dumps([socket.gethostname(), places, float(total[0]), os.getcwd(), os.environ.get("MINE")]))
"""
FOREVER = """
import numpy as np
import farandole.numpy as hvd
hvd.init()
print("ready", flush=True)
while True:
    hvd.allreduce(np.ones(1000), op=hvd.Sum, name="x")
"""


@pytest.fixture(scope="module")
def four() -> Iterator[Hosts]:
    with hosts(4) as made:
        yield made


def start(
    four: Hosts, *words: str, options: str = "", folder: str = "", path: str = SOURCES
) -> subprocess.Popen[str]:
    """Start ``farandole WORDS`` on the first host."""
    clean = {
        key: text
        for key, text in os.environ.items()
        if not key.startswith(("FARANDOLE_", "HOROVOD_"))
    }
    more = {
        **PATIENT,
        "PYTHONPATH": path,
        "FARANDOLE_SSH_OPTIONS": f"-F {four.config} {options}",
        "OMP_NUM_THREADS": "1",
        "MINE": "1",
    }
    # The driver's own packages, which hosts may not have, are on the path of its interpreter.
    boot = (
        f"import sys; sys.path[:0] = {SOURCES.split(os.pathsep)!r}; from farandole.cli import main;"
        " sys.exit(main())"
    )
    return subprocess.Popen(
        four[0].command(sys.executable, "-c", boot, *words, folder=folder),
        env={**clean, **more},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(four: Hosts, *words: str, **options: str) -> tuple[int, str, str]:
    process = start(four, *words, **options)
    out, err = process.communicate(timeout=200)
    assert four.idle()
    return process.returncode, out, err


def test_a_job_on_four_hosts_of_one_and_two_ranks(four: Hosts) -> None:
    """Also a separate environment, the driver's folder, and arguments that no shell splits."""
    status, out, err = run(
        four, "run", "-np", "6", "-H", "a:2,b:1,c:2,d:4", sys.executable, "-c", REDUCE
    )
    assert (status, err) == (0, "farandole: 6 ranks on a:2, b:1, c:2, d:1, by ssh\n")
    lines = sorted(re.sub(r"^\[\d]<stdout>:", "", line) for line in out.splitlines())
    expected = [
        ("a", (0, 6, 0, 2, 0, 4)),
        ("a", (1, 6, 1, 2, 0, 2)),
        ("b", (2, 6, 0, 1, 1, 4)),
        ("c", (3, 6, 0, 2, 2, 4)),
        ("c", (4, 6, 1, 2, 1, 2)),
        ("d", (5, 6, 0, 1, 3, 4)),
    ]
    assert lines == [
        f'["{name}", {list(place)}, 21.0, "{os.getcwd()}", "1"]' for name, place in expected
    ]


def test_several_parameter_servers_are_on_the_hosts_of_the_ranks(four: Hosts) -> None:
    """Each with its replicas; one that is killed is replaced there, or named."""
    where = "print([server._addresses[0]['host'] for server in context.servers().servers])\n"
    words = ("run", "-np", "2", "-H", "b:1,c:1", "--servers", "2", "--strategy", "ps_async")
    status, out, err = run(
        four, *words, "--replicas", "2", sys.executable, "-c", PROGRAM + where, "30"
    )
    assert status == 0, err
    lines = ["60.0 60.0", "['b', 'c']"]
    assert sorted(out.splitlines()) == [
        f"[{rank}]<stdout>:{line}" for rank in range(2) for line in lines
    ]
    assert "parameter server 0 on b (process" in err
    assert mentions(err, "replica")
    status, out, err = run(four, *words, sys.executable, "-c", PROGRAM, "100000000")
    assert status == 128 + signal.SIGKILL
    assert mentions(err, "server 0", "signal 9", "SIGKILL")


SECRETIVE = """
import os
import numpy as np
import farandole.numpy as hvd
hvd.init()
weights = np.full(300_000, float.fromhex("0x1.2345678765432p+0"))
assert (hvd.allreduce(weights, op=hvd.Max, name="x") == weights).all()
if hvd.rank() == 0:
    print(os.environ["FARANDOLE_SECRET"])
"""


def test_with_tls_nothing_of_a_job_can_be_seen_on_the_network(four: Hosts) -> None:
    """Without, the same capture has the tensor and the secret."""
    weight = struct.pack("<d", float.fromhex("0x1.2345678765432p+0"))
    found = []
    for words in (["--tls"], []):
        with Capture(four[0]) as capture:
            status, out, err = run(
                four, "run", "-np", "2", "-H", "a:1,b:1", *words, sys.executable, "-c", SECRETIVE
            )
        assert status == 0, err
        encrypted = ", encrypted (--tls)" if words else ""
        assert err == f"farandole: 2 ranks on a:1, b:1, by ssh{encrypted}\n"
        secret = out.strip().removeprefix("[0]<stdout>:")
        assert secret.startswith("tls:") is bool(words)
        key = secret.removeprefix("tls:")
        found.append(
            [
                text in capture.seen
                for text in (weight, key.encode(), bytes.fromhex(key), b"SSH-2.0")
            ]
        )
    assert found == [[False, False, False, True], [True, True, False, True]]


def test_a_network_that_leads_nowhere_is_passed_over(four: Hosts) -> None:
    """All hosts have this network, it is up, and the user names it first."""
    for index, host in enumerate(four):
        host.run("ip", "link", "add", "dead0", "type", "veth", "peer", "name", "nobody")
        host.run("ip", "link", "set", "nobody", "up")
        host.run("ip", "addr", "add", f"192.168.77.{index + 1}/24", "dev", "dead0")
        host.run("ip", "link", "set", "dead0", "up")
    words = [
        "-H",
        ALL,
        "--network-interfaces",
        "dead0,eth0",
        "--log-level",
        "info",
        sys.executable,
        "-c",
        REDUCE,
    ]
    status, out, err = run(four, "run", "-np", "4", *words)
    assert (status, out.count("10.0")) == (0, 4), err
    assert re.findall("uses .*", err) == ["uses 10.99.0.0/24 (of 192.168.77.1/24, 10.99.0.1/24)"]
    status, _, err = run(
        four, "run", "-np", "2", "-H", "b:1,c:1", "--network-interfaces", "eth7", "true"
    )
    assert (status, "has no interface 'eth7'" in err) == (2, True)
    four[0].run("ip", "link", "add", "only0", "type", "veth", "peer", "name", "other0")
    four[0].run("ip", "addr", "add", "192.168.78.1/24", "dev", "only0")
    for name in ("only0", "other0"):
        four[0].run("ip", "link", "set", name, "up")
    status, _, err = run(
        four, "run", "-np", "2", "-H", "b:1,c:1", "--network-interfaces", "eth0,only0", "true"
    )
    assert status == 1
    assert (
        "farandole: Rank 0 on b failed: --network-interfaces eth0,only0: this host (b) has no"
        " interface" in err
    )
    assert "Traceback" not in err


def test_hosts_without_farandole_are_sent_it(four: Hosts, tmp_path: Path) -> None:
    """Its sources are hidden on two hosts, and unpacked to the user's cache there."""
    clean = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    find = [sys.executable, "-c", "import farandole; print(farandole.__path__[0])"]
    package = Path(
        subprocess.run(find, env=clean, check=True, capture_output=True, text=True).stdout.strip()
    )
    hidden = str(package.parent if package.parent.name == "src" else package)
    program = tmp_path / "where.py"
    program.write_text("import farandole.job.launch.agents.remote as m; print(m.__file__)")
    words = ["-np", "2", "-H", "b:1,c:1", sys.executable, str(program)]
    for host in four.hosts[1:3]:
        host.run("mount", "-t", "tmpfs", "tmpfs", hidden)
    try:
        status, out, err = run(
            four, "run", *words, path="", options=f"-o SetEnv=XDG_CACHE_HOME={tmp_path}"
        )
    finally:
        for host in four.hosts[1:3]:
            host.run("umount", hidden)
    assert status == 0, err
    sent = rf"{tmp_path}/farandole/farandole-[0-9a-f]{{16}}-0/farandole/job/launch/agents/remote.py"
    assert len(re.findall(rf"^\[\d]<stdout>:{sent}$", out, re.M)) == 2


def test_a_secret_is_on_no_command_line_and_on_no_disk(four: Hosts) -> None:
    job = start(four, "run", "-np", "2", "-H", "a:1,b:1", sys.executable, "-c", FOREVER)
    try:
        assert job.stdout is not None
        job.stdout.readline()
        (driver,) = psutil.Process(job.pid).children()
        pids = [pid for host in four for pid in host.processes()]
        secrets = {
            word.split("=", 1)[1]
            for pid in pids
            for word in _words(pid, "environ")
            if word.startswith("FARANDOLE_SECRET=")
        }
        lines = [word for pid in pids for word in _words(pid, "cmdline")]
        assert len(secrets) == 1
        assert any(word == "ssh" for word in lines)
        assert not any(secret in word for secret in secrets for word in lines)
        driver.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=200)
        assert (job.returncode, err.splitlines()[-1]) == (
            130,
            "farandole: the job was ended by SIGINT",
        )
    finally:
        job.kill()
    assert four.idle()


def _words(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").split("\0")
    except OSError:
        return []


def test_every_host_that_cannot_be_used_is_named_with_its_reason(
    four: Hosts, tmp_path: Path
) -> None:
    """Immediately: no job has begun on the others."""
    known = (four.folder / "known_hosts").read_text().splitlines()
    other = known[3].split(" ", 1)[1]
    (tmp_path / "known").write_text("\n".join([known[1], f"c,10.99.0.3 {other}", known[0], ""]))
    options = f"-o UserKnownHostsFile={tmp_path}/known"
    status, out, err = run(
        four, "run", "-np", "5", "-H", f"nobody:1,{ALL}", "echo", "begun", options=options
    )
    assert (status, out) == (1, "")
    said = dict(line.strip().split(": ", 1) for line in err.splitlines()[2:])
    assert said.keys() == {"nobody", "c", "d"}
    assert mentions(said["nobody"], "host", "name")
    assert mentions(said["c"], "host key", "ssh-keygen -R")
    assert mentions(said["d"], "host key", "ssh d")


def test_a_host_that_does_not_come_in_time_is_named(four: Hosts) -> None:
    status, _, err = run(
        four, "run", "-np", "2", "-H", "a:1,b:1", "--start-timeout", "3", "true", options="-N"
    )
    assert status == 1
    assert re.search(
        r"only [01] of 2 hosts started within the start timeout \(.*--start-timeout", err
    )
    assert mentions(err, "b: our program")
    assert "Traceback" not in err


def test_a_refused_key_another_port_and_a_missing_folder(four: Hosts, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = tmp_path / "config"
    text = (four.folder / "ssh_config").read_text()
    down = "Host down\n HostName 10.99.0.77\n ConnectTimeout 1\n"
    config.write_text(
        f"{down}Host b\n IdentityFile {key}\nHost c\n Port 2222\nHost b c d\n IdentitiesOnly yes\n"
        f"Match host c,d\n{text}Match host b\n{text.split(maxsplit=2)[2]}"
    )
    for host in four.hosts[:1]:
        host.run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
        host.run("mkdir", "-p", "/mnt/work")
    status, _, err = run(
        four,
        "run",
        "-np",
        "4",
        "-H",
        "b:1,c:1,d:1,down:1",
        "true",
        options=f"-F {config}",
        folder="/mnt/work",
    )
    said = dict(line.strip().split(": ", 1) for line in err.splitlines()[2:])
    assert status == 1
    assert mentions(said["b"], "key", "publickey")
    assert mentions(said["c"], "port 2222")
    assert mentions(said["down"], "port 22")
    assert mentions(said["d"], "'/mnt/work'", "folder")


def _killed(four: Hosts, job: subprocess.Popen[str]) -> None:
    """A host's sshd and all that the job runs there."""
    os.kill(four[2].sshd(), signal.SIGKILL)
    for pid in four[2].processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _driver_killed(four: Hosts, job: subprocess.Popen[str]) -> None:
    psutil.Process(job.pid).children()[0].kill()


def test_a_suspended_agent_is_killed_when_the_job_is_ended(four: Hosts) -> None:
    """The agent cannot end its ranks, and sshd would keep the session forever."""
    code = "print('up', flush=True); import time; time.sleep(1000)"
    hosts = ["-np", "2", "-H", "b:1,c:1", "--grace-seconds", "1"]
    job = start(four, "run", *hosts, sys.executable, "-c", code)
    assert job.stdout is not None
    for _ in range(2):
        assert "up" in job.stdout.readline()
    agents = [
        pid
        for pid in four[2].processes()
        if "farandole/remote.py" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(agents[-1], signal.SIGSTOP)
    psutil.Process(job.pid).children()[0].send_signal(signal.SIGTERM)
    job.communicate(timeout=200)
    assert four.idle()
    assert job.returncode == 128 + signal.SIGTERM


def test_a_warning_for_the_driver_goes_to_the_ranks(four: Hosts) -> None:
    job = start(
        four,
        "run",
        "-np",
        "2",
        "-H",
        "b:1,c:1",
        sys.executable,
        "-c",
        WARNED,
        str(int(signal.SIGUSR1)),
    )
    assert job.stdout is not None
    for _ in range(2):
        assert "up" in job.stdout.readline()
    psutil.Process(job.pid).children()[0].send_signal(signal.SIGUSR1)
    out, err = job.communicate(timeout=200)
    assert (job.returncode, sorted(out.splitlines())) == (
        0,
        ["[0]<stdout>:warned", "[1]<stdout>:warned"],
    ), err
    assert four.idle()


@pytest.mark.parametrize(
    ("act", "status", "says"),
    [
        (
            _killed,
            1,
            "Rank 2 on c failed: its host was lost: it closed the connection",
        ),
        (_driver_killed, -9, ""),
    ],
)
def test_everything_ends_when_something_is_killed(
    act: Callable[..., None], status: int, says: str
) -> None:
    with hosts(4) as four:
        job = start(four, "run", "-np", "4", "-H", ALL, sys.executable, "-c", FOREVER)
        try:
            assert job.stdout is not None
            for _ in range(4):
                assert "ready" in job.stdout.readline()
            act(four, job)
            _, err = job.communicate(timeout=200)
            assert job.returncode == status
            assert says in err
        finally:
            job.kill()
        assert four.idle()


def test_a_cable_out_for_five_seconds_or_for_good() -> None:
    """The job continues after the first, and ends on both sides after the second."""
    with hosts(3) as three:
        program = FOREVER.replace("    hvd.all", "    print('step', flush=True)\n    hvd.all")
        words = ["run", "-np", "3", "-H", "a:1,b:1,c:1", sys.executable, "-c", program]
        job = start(three, *words)
        steps = threading.Semaphore(0)
        threading.Thread(
            target=lambda: [steps.release() for _ in job.stdout or ()], daemon=True
        ).start()
        try:
            assert all(steps.acquire(timeout=200) for _ in range(30))
            three[2].cable("down")
            threading.Event().wait(5.0)
            three[2].cable("up")
            while steps.acquire(blocking=False):
                pass
            assert all(steps.acquire(timeout=200) for _ in range(300))
            three[2].cable("down")
            job.wait(60)
            assert job.stderr is not None
            assert re.search(r"Rank 2 on c failed: its host was lost: ", job.stderr.read())
        finally:
            job.kill()
        assert three.idle()


def test_it_is_chosen_for_hosts_that_are_not_all_here() -> None:
    assert best("launcher", JobRequest(2, hosts="localhost:1,127.0.0.1:1")).name == "local"
    assert best("launcher", JobRequest(2)).name == "local"
    assert best("launcher", JobRequest(2, hosts="localhost:1,other.invalid:1")).name == "ssh"
    assert SshLauncher().affinity(JobRequest(2)) == -1


def test_a_driver_whose_addresses_no_other_host_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "farandole.job.launch.launchers.ssh.interfaces",
        lambda: [Interface("lo", "::1", 128, 0, True)],
    )
    sessions = SshSessions([Slot(0, "gpu1", 0, 1, 0, 1, 1)], Settings())
    with pytest.raises(SettingsError, match=mentioning("address", "fe80::...")):
        sessions.address()


def test_the_drivers_variables_go_along_but_those_of_its_machine() -> None:
    driver = {
        "PATH": "/p",
        "LD_LIBRARY_PATH": "/l",
        "HOME": "/h",
        "SSH_AUTH_SOCK": "s",
        "HOROVOD_RANK": "3",
        "SLURM_PROCID": "0",
        "MINE": "1",
    }
    assert environment(driver) == {"PATH": "/p", "LD_LIBRARY_PATH": "/l", "MINE": "1"}
