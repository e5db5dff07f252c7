"""The first program on a host that was reached by a pipe, ssh's for example: it starts the agent,
or the probe, there.

It comes over stdin as its source, followed by frames (8 digits with the length, then the bytes),
and answers on stdout in lines that begin with ``MARK``. stdin is its lifeline: when that ends, this
process does, and the ranks with it. Standard library only, until the driver's packages are there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

MARK = "@farandole "
# seconds for each of the driver's addresses, in two rounds: a lost host is lost after 8
CONTACT = (2.0, 6.0)


def frame() -> bytes:
    """The next from the driver; ends the process when there is none."""
    size = sys.stdin.buffer.read(8)
    if len(size) < 8:
        sys.exit(1)
    return sys.stdin.buffer.read(int(size))


def say(**facts: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(facts)}\n")
    sys.stdout.flush()


def enter(told: dict[str, Any]) -> bool:
    """Work in the driver's folder, with its PYTHONPATH. False, and the driver knows, if there is no
    such folder.
    """
    try:
        os.chdir(told["folder"])
    except OSError as error:
        say(
            failed=(
                f"the folder {told['folder']!r}, in which the driver works, cannot be used there "
                f"({error.strerror}): make it, share it, or start from a folder that all hosts have"
            )
        )
        return False
    sys.path[:] = [*told["path"], *(entry for entry in sys.path if entry)]
    return True


def contact(addresses: list[str], secret: str) -> str:
    """The driver's address that answers and knows the secret; empty if none does."""
    from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
    from farandole.net.store import reach

    try:
        client = reach(likeliest_first(addresses), secret, *CONTACT)
    except (AuthenticationError, HorovodInternalError, RendezvousError, OSError):
        return ""
    client.close()
    return client.address


def likeliest_first(addresses: list[str]) -> list[str]:
    """The driver's addresses; first the one from which ssh came here."""
    came_from = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    return sorted(
        addresses, key=lambda address: address.rpartition(":")[0].strip("[]") != came_from
    )


def no_contact(addresses: list[str]) -> str:
    """Why this host does not reach the driver, whose addresses are these."""
    from farandole.net.interfaces import interfaces

    if all(interface.loopback for interface in interfaces()):
        return (
            "it has no address by which driver and ranks could reach each other (IPv6 addresses of"
            " one link, fe80::..., do not count)"
        )
    return (
        f"it reaches none of the driver's addresses ({', '.join(addresses)}): a firewall stands"
        " between, or --network-interfaces names the wrong ones"
    )


def lifeline() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # the reaper below us sees that, and ends the ranks


def main() -> int:
    """The status of this process."""
    told = json.loads(frame())
    boot: dict[str, Any] = {"__name__": "farandole_boot"}
    exec(compile(frame(), "farandole/boot.py", "exec"), boot)
    if not enter(told):
        return 1
    wanted = told["wanted"]
    need = any(boot["digest"](name) != digest for name, digest in wanted.items())
    say(need=need, python=f"{sys.version_info[0]}.{sys.version_info[1]}")
    archive = frame() if need else b""
    folder, odd = boot["provide"](archive, wanted, boot["cache"]())
    if folder:
        boot["prefer"](folder, list(wanted))
    if told["do"] == "probe":
        from farandole.job.launch.agents import probe

        return probe.main(told, odd, frame, say)
    return run_agent(told, folder, odd)


def run_agent(told: dict[str, Any], folder: str, odd: dict[str, str]) -> int:
    """Until the driver lets it go. 1, and the driver knows, if it cannot be reached."""
    task = told["task"]
    address = contact(told["addresses"], task["secret"])
    if not address:
        say(failed=no_contact(told["addresses"]))
        return 1
    from farandole.job.launch.agents.agent import Agent

    threading.Thread(target=lifeline, daemon=True).start()
    path = os.pathsep.join([folder] * bool(folder) + told["path"])
    task["env"] = {**told["env"], "PYTHONPATH": path}
    Agent({**task, "address": address}, folder, odd).run()
    return 0


if __name__ == "farandole_remote":
    sys.exit(main())
