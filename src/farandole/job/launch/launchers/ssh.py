"""The ssh launcher: one agent on each host, started over OpenSSH's client.

The job's environment, its secret and, where missing, Farandole itself are sent over ssh's stdin.
stdin is also the agent's lifeline: when the driver or the connection ends, the agent ends its ranks
and exits.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from farandole.base.log import logger
from farandole.base.types import Slot
from farandole.errors import SettingsError, counted
from farandole.job.config import Placement, Settings
from farandole.job.launch import launcher_env
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.openssh import (
    CONNECT,
    SshSession,
    command,
    failures,
    kill_suspended,
    program,
)
from farandole.job.launch.plan import parse_hosts, places, plan
from farandole.net.interfaces import EVERYWHERE, chosen, interfaces, is_here, joined, split

if TYPE_CHECKING:
    from farandole.job.launch.agents.allocation import AgentAllocation

# Seconds after which ssh has given up on unreachable hosts, and all failures are reported.
SETTLE = CONNECT + 2.0
# Variables of the driver about its own machine, user or terminal. Ranks inherit all others, as with
# Horovod.
OWN = {
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "OLDPWD",
    "HOSTNAME",
    "HOST",
    "MAIL",
    "DISPLAY",
    "XAUTHORITY",
    "SHLVL",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "_",
    "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES",
}
OWN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_", "TMUX", "VSCODE_")


class SshLauncher:
    """The launcher for ssh."""

    name: ClassVar[str] = "ssh"

    def affinity(self, request: JobRequest) -> int:
        hosts = parse_hosts(request.hosts) if request.hosts is not None else []
        return -1 if all(is_here(_name(host)) for host, _ in hosts) else 2

    def allocate(self, request: JobRequest) -> AgentAllocation:
        # Imported here because local jobs load this file too.
        from farandole.job.launch.agents.allocation import AgentAllocation, AgentPlace

        if request.hosts is None:
            raise SettingsError("the launcher ssh needs hosts: -H h1:2,h2:2, or --hostfile")
        key = os.path.expanduser(request.settings.ssh_identity_file)
        if key and "%" not in key and not os.path.isfile(key):  # ssh would continue without the key
            raise SettingsError(f"--ssh-identity-file={key!r} does not exist")
        slots = plan(request.hosts, request.np)
        wanted = [AgentPlace(slot.local_size, slot.host) for slot in slots if slot.local_rank == 0]
        return AgentAllocation(SshSessions(slots, request.settings), wanted, request.start_timeout)

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        return Placement.from_env(env) if "FARANDOLE_RANK" in env else None


class SshSessions:
    """The ``AgentCluster`` of ``AgentAllocation``: one ssh session for each host of ``slots``."""

    noun, python, private = "host", "", True

    def __init__(self, slots: Sequence[Slot], settings: Settings) -> None:
        self._slots = slots
        self._settings = settings
        self._hosts = [slot.host for slot in slots if slot.local_rank == 0]
        self._sessions: list[SshSession] = []
        self._addresses = [
            each.address for each in chosen(interfaces(), settings.network_interfaces)
        ]
        self._began = 0.0

    def describe(self) -> str:
        return f"{counted(len(self._slots), 'rank')} on {places(self._slots)}, by ssh"

    def address(self) -> tuple[str, str]:
        """Return all interfaces: hosts try the address of each, because some addresses may be
        unreachable for some hosts.
        """
        if not self._addresses:
            raise SettingsError(
                "this machine has no address at which other hosts can reach it: only the loopback"
                " interface is up (link-local IPv6 addresses, fe80::..., are not used)"
            )
        return (self._addresses[0] if len(self._addresses) == 1 else EVERYWHERE), self._addresses[0]

    def unreachable(self, host: str) -> str:
        return "--network-interfaces must name interfaces of this machine that the hosts can reach"

    def start(self, facts: Mapping[str, Any]) -> None:
        for host in self._hosts:
            self._open(host, facts)

    def add(self, host: str, facts: Mapping[str, Any]) -> int:
        """Start an agent on a further host, and return its number; ``facts`` as in ``start``."""
        self._hosts.append(host)
        self._open(host, facts)
        return len(self._sessions) - 1

    def _open(self, host: str, facts: Mapping[str, Any]) -> None:
        # Imported here because choosing a launcher does not need it.
        from farandole.job.launch.agents.bundle import digests

        _, port = split(str(facts["address"]))
        self._began = time.monotonic()
        instructions = {
            "do": "agent",
            "folder": os.getcwd(),
            "path": search_path(),
            "wanted": digests(),
            "addresses": [joined(address, port) for address in self._addresses],
            "env": environment(os.environ),
            "task": {**facts, "index": len(self._sessions)},
        }
        self._sessions.append(SshSession(host, argv(host, self._settings), instructions, _answer))

    def absent(self, agents: Sequence[int]) -> str:
        ended = {index: why for index in agents if (why := self.gone(index)) is not None}
        waiting = len(ended) < len(agents) and time.monotonic() < self._began + SETTLE
        if not ended or waiting:  # wait for further failures, to report them in one message
            return ""
        return failures(
            {self._hosts[index]: why or "its agent ended" for index, why in ended.items()}
        )

    def gone(self, agent: int) -> str | None:
        return self._sessions[agent].ended() if agent < len(self._sessions) else None

    def late(self, agents: Sequence[int], status: str) -> str:
        why = failures({self._hosts[index]: self._sessions[index].late() for index in agents})
        return f"only {status} within the start timeout (raise it with --start-timeout); {why}"

    def close(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # The other sessions have been reported already.
        alive = [session for session in self._sessions if session.ended() is None]
        left = [
            session
            for session in self._sessions
            if not session.close(deadline) and session in alive
        ]
        # on this host, it has been killed
        left = [session for session in left if not is_here(_name(session.host))]
        if stuck := kill_suspended(left, self._settings):
            logger.warning(
                "%s: the job did not stop there on request: its processes are suspended (SIGSTOP,"
                " a debugger, swap). Resume them, or end them by hand",
                ", ".join(stuck),
            )


def _answer(facts: Mapping[str, Any]) -> bytes | None:
    if not facts.get("need"):
        return None
    from farandole.job.launch.agents.bundle import archive

    return archive()


def _name(host: str) -> str:
    return host.rpartition("@")[2]


def argv(host: str, settings: Settings) -> list[str]:
    """Return the command line of the first program on ``host``; this host needs no ssh."""
    words = program(sys.executable)
    return words if is_here(_name(host)) else command(host, settings, words)


def search_path() -> list[str]:
    """Return PYTHONPATH's folders as absolute paths, valid on hosts that share them."""
    return [
        os.path.abspath(entry)
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    ]


def environment(driver: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's variables for ranks on other hosts."""
    return launcher_env.inherited(driver, (*OWN_PREFIXES, *launcher_env.PLACE), OWN)
