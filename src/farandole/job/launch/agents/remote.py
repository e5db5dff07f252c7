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


def frame() -> bytes:
    """The next from the driver; ends the process when there is none."""
    size = sys.stdin.buffer.read(8)
    if len(size) < 8:
        sys.exit(1)
    return sys.stdin.buffer.read(int(size))


def say(**facts: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(facts)}\n")
    sys.stdout.flush()


def enter_folder(instructions: dict[str, Any]) -> bool:
    """Work in the driver's folder, with its PYTHONPATH. False, and the driver knows, if there is no
    such folder.
    """
    try:
        os.chdir(instructions["folder"])
    except OSError as error:
        folder = instructions["folder"]
        say(
            failed=(
                f"the folder {folder!r}, in which the driver works, cannot be used there "
                f"({error.strerror}): make it, share it, or start from a folder that all hosts have"
            )
        )
        return False
    sys.path[:] = [*instructions["path"], *(entry for entry in sys.path if entry)]
    return True


def lifeline() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # the reaper below us sees that, and ends the ranks


def main() -> int:
    """The status of this process."""
    instructions = json.loads(frame())
    boot: dict[str, Any] = {"__name__": "farandole_boot"}
    exec(compile(frame(), "farandole/boot.py", "exec"), boot)
    if not enter_folder(instructions):
        return 1
    wanted = instructions["wanted"]
    need = any(boot["digest"](name) != digest for name, digest in wanted.items())
    say(need=need, python=f"{sys.version_info[0]}.{sys.version_info[1]}")
    archive = frame() if need else b""
    folder, odd = boot["provide"](archive, wanted, boot["cache"]())
    if folder:
        boot["prefer"](folder, list(wanted))
    if instructions["do"] == "probe":
        from farandole.job.launch.agents import probe

        return probe.main(instructions, odd, frame, say)
    return run_agent(instructions, folder, odd)


def run_agent(instructions: dict[str, Any], folder: str, odd: dict[str, str]) -> int:
    """Until the driver lets it go. 1, and the driver knows, if it cannot be reached."""
    from farandole.job.launch.agents.agent import Agent
    from farandole.job.launch.agents.contact import contact, no_contact

    task = instructions["task"]
    address = contact(instructions["addresses"], task["secret"])
    if not address:
        say(failed=no_contact(instructions["addresses"]))
        return 1
    threading.Thread(target=lifeline, daemon=True).start()
    path = os.pathsep.join(([folder] if folder else []) + instructions["path"])
    task["env"] = {**instructions["env"], "PYTHONPATH": path}
    Agent({**task, "address": address}, folder, odd).run()
    return 0


if __name__ == "farandole_remote":
    sys.exit(main())
