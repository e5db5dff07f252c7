"""Several hosts on one machine: namespaces on a bridge, each with its name, address and sshd.

A host is the namespaces (network, processes, mounts, name) of one process, its init, which ends
when the test's end of a pipe is closed. The kernel then ends the processes of the host and removes
its network, even if the test was killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SSHD = "/usr/sbin/sshd"
UNSHARE = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
BURST = "512kb"  # tbf must let the largest packet of the kernel (64 KiB) through at once
NOBODY = "02:00:00:00:00:99"  # a station that does not exist
SSHD_CONFIG = """
HostKey {folder}/{name}
AuthorizedKeysFile {folder}/user.pub
PidFile /run/sshd.pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
MaxStartups 100
AcceptEnv XDG_CACHE_HOME
"""
SSH_CONFIG = """
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""
INIT = """
import json, os, shutil, signal, subprocess, sys
orders = json.loads(sys.stdin.readline())
outside = os.readlink("/proc/self")
for command in orders["before"]:
    subprocess.run(command, check=True)
print(outside, flush=True)
if sys.stdin.readline():
    for command in orders["after"]:
        subprocess.run(command, check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    print("ready", flush=True)
    sys.stdin.read()
shutil.rmtree(orders["remove"], ignore_errors=True)
"""


# Joins hosts as a bridge does, but holds every packet for a while. Kernels are built without netem;
# all have tun. Large packets stay whole (TSO), so that some thousand of them in a second fill a
# link of 1 Gbit/s.
LONG = """
import ctypes, fcntl, json, os, select, struct, sys, time
from collections import deque
orders = json.loads(sys.stdin.readline())
ports = {}
for pid, address in orders["hosts"]:
    with open(f"/proc/{pid}/ns/net") as space:
        if ctypes.CDLL(None).setns(space.fileno(), 0x40000000):  # CLONE_NEWNET
            sys.exit(f"the network of process {pid} cannot be entered")
    port = ports[bytes(map(int, address.split(".")))] = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(port, 0x400454CA, struct.pack("16sH22x", b"eth0", 0x5001))  # TUNSETIFF: IFF_TUN, NO_PI, VNET_HDR
    fcntl.ioctl(port, 0x400454D0, 3)  # TUNSETOFFLOAD: TUN_F_CSUM, TSO4
print("ready", flush=True)
held = deque()
while True:
    pause = max(0.0, held[0][0] - time.monotonic()) if held else None
    ready = select.select([0, *ports.values()], [], [], pause)[0]
    if 0 in ready:
        break
    for port in ready:
        try:
            while packet := os.read(port, 1 << 17):
                held.append((time.monotonic() + orders["delay"], ports.get(packet[26:30]), packet))
        except BlockingIOError:
            pass
    while held and held[0][0] <= time.monotonic():
        _, port, packet = held.popleft()
        if port is not None:
            os.write(port, packet)
"""
CAPTURE = """
import select, socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
    sock.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    print("ready", flush=True)
    seen, over = bytearray(), False
    while ready := select.select([sock, *([] if over else [sys.stdin])], [], [], 0 if over else None)[0]:
        if sock in ready:
            seen += sock.recv(1 << 17)
        else:
            over = True
sys.stdout.buffer.write(seen)
"""


@dataclass(frozen=True)
class Host:
    """A host; ``pid`` is the process id of its init in the test's namespace."""

    name: str
    address: str
    pid: int
    switch: int

    def command(self, *words: str, folder: str = "") -> list[str]:
        """Return the command line that runs ``words`` on this host."""
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--net", "--pid"]
        return [*inside, "env", "-C", folder or os.getcwd(), *words]

    def run(self, *words: str) -> str:
        """Return the stdout of a command on this host. Raises CalledProcessError."""
        return subprocess.run(
            self.command(*words), check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def processes(self) -> list[int]:
        """Return the host's process ids in the test's namespace, without init and sshd."""
        try:
            space = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        except FileNotFoundError:  # its init has ended, or is about to
            return []
        found = []
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}/ns/pid").st_ino == space and pid != self.pid:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    parent = int(
                        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
                    )
                    if (name, parent) != ("sshd", self.pid):
                        found.append(pid)
        return found

    def sshd(self) -> int:
        """Return the process id of sshd in the test's namespace."""
        (found,) = [
            pid
            for pid in map(
                int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            )
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sshd"
        ]
        return found

    def cable(self, state: str) -> None:
        """Unplug the host (``down``: no packet arrives or leaves) or plug it in again (``up``)."""
        _ip(self.switch, "link", "set", f"to-{self.name}", state)

    def lose(self, other: Host) -> None:
        """Drop all further packets from this host to ``other``."""
        self._set_neighbour("replace", other, "lladdr", NOBODY, "nud", "permanent")

    def regain(self, other: Host) -> None:
        """Deliver packets to ``other`` again, after ``lose``."""
        self._set_neighbour("del", other)

    def _set_neighbour(self, action: str, other: Host, *words: str) -> None:
        route = json.loads(self.run("ip", "-j", "route", "get", other.address))
        self.run("ip", "neigh", action, other.address, *words, "dev", route[0]["dev"])

    def die(self) -> None:
        """End all processes and the network of the host at the same moment, as a crash does."""
        self.cable("down")
        os.kill(self.pid, signal.SIGKILL)


class Capture:
    """Every packet between hosts, captured on their switch. ``seen`` holds the packets after the
    block.
    """

    def __init__(self, host: Host) -> None:
        words = [
            "nsenter",
            "--target",
            str(host.switch),
            "--net",
            sys.executable,
            "-I",
            "-S",
            "-c",
            CAPTURE,
        ]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.seen = b""

    def __enter__(self) -> Capture:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.seen = self._process.communicate(timeout=100)[0]


@dataclass(frozen=True)
class Hosts:
    """The hosts. ``folder`` contains the keys of the hosts (by name) and of the user, known_hosts,
    and ``ssh_config``, for ``ssh -F``.
    """

    hosts: Sequence[Host]
    folder: Path

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    @property
    def config(self) -> str:
        return str(self.folder / "ssh_config")

    def idle(self, seconds: float = 60.0) -> bool:
        """Return whether only init and sshd run on all hosts within some seconds. sshd keeps the
        sessions of vanished clients.
        """
        deadline = time.monotonic() + seconds
        while left := [
            pid
            for host in self.hosts
            for pid in host.processes()
            if _content(f"/proc/{pid}/comm") not in ("sshd", "")
        ]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return not left


@contextmanager
def hosts(
    number: int = 4,
    speed: str = "",
    ssh: bool = True,
    delay: float = 0.0,
    families: Sequence[int] = (4,),
) -> Iterator[Hosts]:
    """Create hosts ``a``, ``b``, ... at 10.99.0.1, 10.99.0.2, ... that reach only each other.

    ``families``: the IP versions; IPv6 addresses are fd99::1, fd99::2, ... A host's ``address`` has
    the first version, and its name resolves to all. ``speed``: the speed of each link and direction
    in tc's notation (``1gbit``). ``ssh``: run sshd on port 22 of each host. ``delay``: seconds
    between two hosts; cables of such hosts cannot be unplugged.
    """
    needed(ssh)
    names = [chr(ord("a") + index) for index in range(number)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farandole-hosts-")))
        _write(folder, names, ssh, families)
        inits = [
            stack.enter_context(_init(_facts(folder, names, index, speed, ssh, families)))
            for index in range(number)
        ]
        switch = stack.enter_context(_init({"before": [], "after": [], "remove": str(folder)}))
        pids = [_line(init) for init in inits]
        switch_pid = _line(switch)
        if delay:
            stack.enter_context(_long(pids, delay))
        else:
            _plug(int(switch_pid), names, pids, speed)
        for init in inits:
            _tell(init, "plugged")
        for init in inits:
            assert _line(init) == "ready"
        addresses = [address_of(index, families[0]) for index in range(number)]
        made = [
            Host(name, address, int(pid), int(switch_pid))
            for name, address, pid in zip(names, addresses, pids, strict=True)
        ]
        yield Hosts(made, folder)


def _plug(switch: int, names: Sequence[str], pids: Sequence[str], speed: str) -> None:
    """Connect each host to a bridge by a cable."""
    plugs = ["link add bridge type bridge", "link set bridge up"]
    for name, pid in zip(names, pids, strict=True):
        plugs.append(f"link add to-{name} type veth peer name eth0 netns {pid}")
        plugs.append(f"link set to-{name} master bridge up")
    _ip(switch, "-batch", "-", text="\n".join(plugs))
    for name in names if speed else ():
        _inside(switch, "tc", "qdisc", "add", "dev", f"to-{name}", *_shape(speed))


@contextmanager
def _long(pids: Sequence[str], delay: float) -> Iterator[None]:
    """Connect the hosts by cables of one length."""
    orders = {"hosts": [(pid, address_of(index)) for index, pid in enumerate(pids)], "delay": delay}
    with _program([sys.executable, "-I", "-S", "-c", LONG], orders) as process:
        assert _line(process) == "ready"
        yield


def _content(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def _facts(
    folder: Path, names: Sequence[str], index: int, speed: str, ssh: bool, families: Sequence[int]
) -> dict[str, Any]:
    """Return the commands of a host's init before and after its cable is plugged in."""
    adding = {
        4: ["ip", "addr", "add", f"{address_of(index, 4)}/24", "dev", "eth0"],
        6: ["ip", "addr", "add", f"{address_of(index, 6)}/64", "dev", "eth0", "nodad"],
    }
    return {
        "before": [
            ["mount", "-t", "proc", "proc", "/proc"],
            ["mount", "-t", "sysfs", "sysfs", "/sys"],
            ["mount", "-t", "tmpfs", "tmpfs", "/run"],
            ["mkdir", "/run/sshd"],
            ["hostname", names[index]],
            ["mount", "--bind", str(folder / "hosts"), "/etc/hosts"],
        ],
        "after": [
            ["ip", "link", "set", "lo", "up"],
            *(adding[family] for family in families),
            ["ip", "link", "set", "eth0", "up"],
            *([["tc", "qdisc", "add", "dev", "eth0", *_shape(speed)]] if speed else []),
            *(_sshd(folder, names[index]) if ssh else []),
        ],
        "remove": "",
    }


def _sshd(folder: Path, name: str) -> list[list[str]]:
    """Return the commands that start sshd and wait until it listens: the command returns earlier,
    and sshd writes its pid file after it listens.
    """
    listening = "for _ in $(seq 6000); do [ -s /run/sshd.pid ] && exit; sleep 0.01; done; exit 1"
    return [
        [SSHD, "-f", str(folder / f"{name}.sshd"), "-E", str(folder / f"{name}.log")],
        ["sh", "-c", listening],
    ]


def _write(folder: Path, names: Sequence[str], ssh: bool, families: Sequence[int]) -> None:
    table = [
        f"{address_of(index, family)} {name}"
        for index, name in enumerate(names)
        for family in families
    ]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *table, ""]))
    if not ssh:
        return
    makers = [
        subprocess.Popen(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        )
        for name in (*names, "user")
    ]
    assert [maker.wait() for maker in makers] == [0] * len(makers)
    keys = [(folder / f"{name}.pub").read_text().strip() for name in names]
    called = [
        ",".join([name, *(address_of(index, family) for family in families)])
        for index, name in enumerate(names)
    ]
    known = [f"{name} {key}\n" for name, key in zip(called, keys, strict=True)]
    (folder / "known_hosts").write_text("".join(known))
    (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
    for name in names:
        (folder / f"{name}.sshd").write_text(SSHD_CONFIG.format(folder=folder, name=name))


def address_of(index: int, family: int = 4) -> str:
    return f"10.99.0.{index + 1}" if family == 4 else f"fd99::{index + 1}"


def _shape(speed: str) -> list[str]:
    return ["root", "tbf", "rate", speed, "burst", BURST, "latency", "50ms"]


def _init(facts: dict[str, Any]) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start the first process of new namespaces, which end with it."""
    return _program([*UNSHARE, sys.executable, "-I", "-S", "-c", INIT], facts)


@contextmanager
def _program(command: Sequence[str], facts: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Start a program that reads ``facts`` from a pipe, and ends when the test closes the pipe."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            _tell(process, json.dumps(facts))
            yield process
        finally:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()  # and its child with it


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a host could not be made; its error stands above"
    return line.strip()


def _ip(namespace: int, *words: str, text: str = "") -> None:
    _inside(namespace, "ip", *words, text=text)


def _inside(namespace: int, *words: str, text: str = "") -> None:
    enter = ["nsenter", "--target", str(namespace), "--net"]
    subprocess.run([*enter, *words], check=True, input=text, text=True, stdout=subprocess.DEVNULL)


def needed(ssh: bool = True) -> None:
    """Skip the test where hosts cannot be made."""
    reason = obstacle(ssh)
    if reason:
        pytest.skip(reason)


@functools.cache
def obstacle(ssh: bool) -> str:
    """Return why hosts cannot be created here; empty if they can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    for command in ("ip", "tc", "nsenter", "unshare"):
        if shutil.which(command) is None:
            return f"the command {command} is not installed"
    probe = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"namespaces cannot be made here: {probe.stderr.strip()}"
    if ssh and not os.path.exists(SSHD):
        return f"{SSHD} is not installed (Debian: apt-get install openssh-server)"
    return ""
