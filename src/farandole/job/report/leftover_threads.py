"""Reports why a rank does not end although its function has returned.

Python waits at exit for threads and processes that it has started.
"""

from __future__ import annotations

import sys
import threading
import time

AFTER = 5.0  # seconds; leftovers that end within that time are not reported


def watch() -> None:
    """Report after some time the threads and processes that this process waits for. Costs nothing
    without leftovers.
    """
    if leftovers():
        threading.Thread(target=_report, name="farandole-left", daemon=True).start()


def leftovers() -> list[str]:
    """Return the names of threads and child processes that Python waits for at exit."""
    found = [
        each.name
        for each in threading.enumerate()
        if not each.daemon and each is not threading.main_thread()
    ]
    if "multiprocessing" in sys.modules:
        children = sys.modules["multiprocessing"].active_children()
        found += [f"the process {each.name}" for each in children if not each.daemon]
    return found


def _report() -> None:
    time.sleep(AFTER)
    if names := leftovers():
        sys.stderr.write(
            "farandole: the function has returned, but this rank waits for threads or processes"
            f" it started: {', '.join(names)}. Join them before the function returns, or start"
            " them with daemon=True\n"
        )
