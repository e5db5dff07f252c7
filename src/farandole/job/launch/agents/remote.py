"""The first program on a host that is reached through a pipe, such as ssh: it starts the agent or
the probe.

Its source arrives over stdin, followed by frames (8 digits with the length, then the bytes). It
answers on stdout in lines that begin with ``MARK``. stdin is its lifeline: when stdin closes, this
process and the ranks end. Standard library only, until the driver's packages have arrived.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

MARK = "@farandole "


def frame() -> bytes:
    """Return the driver's next frame; end the process if there is none."""
    size = sys.stdin.buffer.read(8)
    if len(size) < 8:
        sys.exit(1)
    return sys.stdin.buffer.read(int(size))


def say(**facts: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(facts)}\n")
    sys.stdout.flush()


def enter_folder(instructions: dict[str, Any]) -> bool:
    """Change to the driver's folder and add its PYTHONPATH. Returns False, after a report, if
    the folder does not exist.
    """
    try:
        os.chdir(instructions["folder"])
    except OSError as error:
        folder = instructions["folder"]
        say(
            failed=(
                f"the driver's working directory {folder!r} cannot be used there"
                f" ({error.strerror}): create or share it, or start the job from a folder that"
                " all hosts have"
            )
        )
        return False
    sys.path[:] = [*instructions["path"], *(entry for entry in sys.path if entry)]
    return True


def lifeline() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # the reaper below this process detects this and ends the ranks


def main() -> int:
    """Run the requested program and return this process's exit status."""
    instructions = json.loads(frame())
    boot: dict[str, Any] = {"__name__": "farandole_boot"}
    exec(compile(frame(), "farandole/boot.py", "exec"), boot)
    if not enter_folder(instructions):
        return 1
    wanted = instructions["wanted"]
    need = any(boot["digest"](name) != digest for name, digest in wanted.items())
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    say(need=need, python=version, pid=os.getpid())
    archive = frame() if need else b""
    folder, odd = boot["provide"](archive, wanted, boot["cache"]())
    if folder:
        boot["prefer"](folder, list(wanted))
    if instructions["do"] == "probe":
        from farandole.job.launch.agents import probe

        return probe.main(instructions, odd, frame, say)
    return run_agent(instructions, folder, odd)


def run_agent(instructions: dict[str, Any], folder: str, odd: dict[str, str]) -> int:
    """Run the agent until the driver dismisses it. Returns 1, after a report, if the driver
    cannot be reached.
    """
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
