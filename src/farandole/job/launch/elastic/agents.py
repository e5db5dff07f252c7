"""The ssh hosts of an elastic job: each gets an agent with its first process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.membership import Member
from farandole.job.elastic.notices.notice import Notice
from farandole.job.launch.agents.allocation import CHOICES, CONTACT, TIDY
from farandole.job.launch.agents.registry import AgentRegistry, RemoteWorker
from farandole.job.launch.elastic.places import OnNotice, slot_of
from farandole.job.launch.launchers.ssh import SshSessions
from farandole.net.store import StoreServer, Value

MOST_AGENTS = 1 << 20


class SshPlaces:
    """Hosts reached by ssh. A host whose agent was lost gets a new agent with its next process."""

    remote = True
    name: ClassVar[str] = "ssh"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sessions = SshSessions((), settings)
        self._agents: dict[str, int] = {}  # by host
        self._sources = ""
        self._secret = ""
        self._store: StoreServer
        self._registry: AgentRegistry

    def listen(self, secret: str) -> StoreServer:
        interface, address = self._sessions.address()
        self._secret = secret
        try:
            self._store = StoreServer(secret, interface, advertise=address)
        except OSError as error:
            cure = self._sessions.unreachable(interface)
            raise SettingsError(
                f"the driver cannot listen on {interface!r} ({error}): {cure}"
            ) from error
        settings = self._settings
        patience = 0.0 if settings.stall_check_disable else settings.stall_shutdown_seconds
        self._registry = AgentRegistry(
            self._store, (), MOST_AGENTS, self._sessions.gone, self._sessions.noun, patience
        )
        return self._store

    def watch_notices(self, sources: str, on_notice: OnNotice) -> None:
        self._sources = sources

        def hear(agent: int, data: Value) -> None:
            for host, number in list(self._agents.items()):
                if number == agent:
                    on_notice(host, Notice.from_bytes(data))

        self._registry.on_notice = hear

    def start(self, member: Member, command: Sequence[str], env: Mapping[str, str]) -> RemoteWorker:
        agent = self._agents.get(member.host)
        if agent is None or self._sessions.gone(agent) is not None or agent in self._registry.lost:
            facts = {"address": self._store.address, "secret": self._secret, "timeout": CONTACT}
            agent = self._agents[member.host] = self._sessions.add(member.host, facts)
        chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
        order: dict[str, object] = {
            "command": list(command[1:]),
            "python": self._sessions.python,
            "log": False,
        }
        if self._sources:
            order["notices"] = [member.host, self._sources]
        return self._registry.add(agent, slot_of(member), {**chosen, **env}, order)

    def close(self) -> None:
        self._registry.dismiss()
        self._sessions.close(TIDY)
        self._registry.close()
