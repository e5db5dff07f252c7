"""``farandole hosts``: checks whether hosts can run a job together; shows their properties and
connection speeds.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from farandole.cli.parsing import Parser, say
from farandole.cli.run import add_setting, overrides
from farandole.errors import JobFailedError, SettingsError, printable
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from farandole.job.launch.agents.bundle import archive, digests
from farandole.job.launch.job import settings_for
from farandole.job.launch.launchers.ssh import argv, search_path
from farandole.job.launch.openssh import SshSession, failures
from farandole.job.launch.plan import parse_hosts, read_hostfile
from farandole.net.handshake import new_secret
from farandole.net.interfaces import EVERYWHERE, chosen, interfaces, joined, split
from farandole.net.store import StoreServer

SETTINGS = ("network_interfaces", "ssh_port", "ssh_identity_file", "ssh_options")
# Seconds for all hosts to respond; ssh gives up on unreachable hosts earlier.
ANSWER = 60.0
# Up to this number of hosts, every pair is measured; above it, each host and the next, as in a
# ring.
EACH = 8


def parser() -> Parser:
    made = Parser(
        prog="farandole hosts",
        example="farandole hosts -H gpu1:4,gpu2:4",
        description=(
            "Check that these hosts can be reached by ssh and can run a job together. Show their"
            " hardware and software, and the latency and bandwidth between each pair."
        ),
    )
    made.add_argument("-H", "--hosts", metavar="H:N,...", help="the hosts, as for farandole run")
    made.add_argument(
        "--hostfile",
        metavar="FILE",
        help="read the hosts from a file with lines like: host slots=2",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    for setting in settings_of(Settings):
        if setting.name in SETTINGS:
            add_setting(made, setting)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    if bool(options.hosts) == bool(options.hostfile):
        raise SettingsError(
            "pass the hosts with either -H or --hostfile: farandole hosts -H gpu1:4,gpu2:4"
        )
    listed = parse_hosts(options.hosts or read_hostfile(options.hostfile))
    found = check([host for host, _ in listed], settings_for({}, overrides(vars(options))))
    status = say(json.dumps(found, indent=2) if options.json else table(listed, found))
    return status or int(any("error" in measured for measured in found["pairs"].values()))


def check(hosts: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Return ``hosts``, the properties of each host by name, and ``pairs``, the measurements by "a
    b".

    Raises JobFailedError naming every unusable host, and why.
    """
    inbox: queue.SimpleQueue[tuple[str, Mapping[str, Any]]] = queue.SimpleQueue()
    own, lacking = _addresses(settings)
    secret = new_secret()
    store = StoreServer(secret, EVERYWHERE)  # belongs to no job, but hosts must be able to reach it
    _, port = split(store.address)
    first = {
        "do": "probe",
        "folder": os.getcwd(),
        "path": search_path(),
        "wanted": digests(),
        "token": secrets.token_hex(),
        "interfaces": settings.network_interfaces,
        "addresses": [joined(address, port) for address in own],
        "secret": secret,
    }

    def receiver(host: str) -> Callable[[Mapping[str, Any]], bytes | None]:
        def answer(facts: Mapping[str, Any]) -> bytes | None:
            inbox.put((host, facts))
            return archive() if facts.get("need") else None

        return answer

    sessions = {
        host: SshSession(host, argv(host, settings), first, receiver(host)) for host in hosts
    }
    try:
        answers = _facts(sessions, inbox)
        if lacking is not None:
            raise lacking
        pairs = {}
        for turn in rounds(list(hosts)):
            for host, peer in turn:
                asked = {
                    "addresses": answers[host]["facts"]["addresses"],
                    "port": answers[host]["port"],
                }
                sessions[peer].send(json.dumps(asked).encode())
            for peer, answer in _gather(
                sessions, inbox, [peer for _, peer in turn], "measured"
            ).items():
                pairs[f"{next(host for host, other in turn if other == peer)} {peer}"] = answer[
                    "measured"
                ]
        order = {f"{a} {b}": pairs[f"{a} {b}"] for a in hosts for b in hosts if f"{a} {b}" in pairs}
        return {"hosts": {host: answers[host]["facts"] for host in hosts}, "pairs": order}
    finally:
        for session in sessions.values():
            session.close(0.0)
        store.close()


def _addresses(settings: Settings) -> tuple[list[str], SettingsError | None]:
    """Return this machine's addresses for hosts to reach a job's driver, or the error if the
    chosen interfaces have none.
    """
    try:
        return [each.address for each in chosen(interfaces(), settings.network_interfaces)], None
    except SettingsError as error:
        return [], error


def _facts(sessions: Mapping[str, SshSession], inbox: Any) -> dict[str, Any]:
    return _gather(sessions, inbox, list(sessions), "facts")


def _gather(
    sessions: Mapping[str, SshSession], inbox: Any, hosts: Sequence[str], key: str
) -> dict[str, Any]:
    """Return the message with ``key`` from each host."""
    found: dict[str, Any] = {}
    why: dict[str, str] = {}
    deadline = time.monotonic() + ANSWER
    while len(found) + len(why) < len(hosts):
        try:
            host, facts = inbox.get(timeout=0.05)
            if key in facts:
                found[host] = facts
        except queue.Empty:
            late = time.monotonic() > deadline
            for host in hosts:
                ended = sessions[host].ended()
                if host not in found and host not in why and (late or ended is not None):
                    why[host] = ended or f"no answer within {ANSWER:g} s"
    if why:
        raise JobFailedError(failures({host: why[host] for host in hosts if host in why}))
    return found


def rounds(hosts: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs to measure, in rounds that contain each host at most once. Pure.

    The second host of a pair, which has the higher ranks, connects to the first, as in a job: a
    firewall may allow only the other direction.
    """
    if len(hosts) > EACH:
        pairs = [*itertools.pairwise(hosts), (hosts[0], hosts[-1])]
    else:
        pairs = [(host, peer) for index, host in enumerate(hosts) for peer in hosts[index + 1 :]]
    while pairs:
        busy: set[str] = set()
        turn = []
        for host, peer in pairs:
            if host not in busy and peer not in busy:
                busy |= {host, peer}
                turn.append((host, peer))
        pairs = [pair for pair in pairs if pair not in turn]
        yield turn


def table(listed: Sequence[tuple[str, int]], found: Mapping[str, Any]) -> str:
    """Return the results in columns."""
    rows = [
        ["host", "slots", "name there", "Python", "Farandole", "numpy", "cores", "memory", "GPUs"]
    ]
    for host, slots in listed:
        facts = found["hosts"][host]
        rows.append(
            [
                host,
                str(slots),
                facts["hostname"],
                facts["python"],
                _farandole(facts["farandole"]),
                facts["numpy"] or "none",
                str(facts["cores"]),
                f"{facts['memory'] / (1 << 30):.0f} GiB",
                _gpus(facts["gpus"]),
            ]
        )
    ways = [["between", "address", "latency", "bandwidth"]]
    for pair, measured in found["pairs"].items():
        names = pair.replace(" ", " and ")
        if "error" in measured:
            ways.append([names, "-", "-", f"not reached: {measured['error']}"])
        else:
            speed = measured["bandwidth"] * 8 / 1e9
            ways.append(
                [
                    names,
                    measured["address"],
                    f"{measured['latency'] * 1e6:.0f} us",
                    f"{speed:.3g} Gbit/s",
                ]
            )
    return "\n".join(
        [
            _columns(rows),
            *(["", _columns(ways)] if len(ways) > 1 else []),
            *_risky_differences(found),
        ]
    )


def _risky_differences(found: Mapping[str, Any]) -> list[str]:
    """Return differences between the hosts that may cause failures."""
    facts = found["hosts"]
    lines = []
    for name, what in (("python", "Python"), ("numpy", "numpy")):
        kinds = {".".join(facts[host][name].split(".")[:2]) for host in facts}
        if len(kinds) > 1:
            lines.append(
                f"{what} differs between hosts: functions and results may not unpickle on"
                " another host"
            )
    absent = [host for host in facts if not facts[host]["numpy"]]
    if absent:
        lines.append(
            f"numpy is missing on {', '.join(absent)}: every rank needs it (pip install numpy)"
        )
    return ["", *lines] if lines else []


def _farandole(odd: str | None) -> str:
    return (
        "the same" if odd is None else "another one: ours is sent" if odd else "none: ours is sent"
    )


def _gpus(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    )
