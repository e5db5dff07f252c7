"""The hosts of the tests differ, reach each other, and end with the test, even if it is killed."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.job.launch.tools import wait_until
from tests.kits.hosts import hosts, needed

KILLED = """
import os, sys
from tests.kits.hosts import hosts
with hosts(2, ssh=False) as made:
    print(*(host.pid for host in made), made.folder, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_names_keys_and_cables() -> None:
    with hosts(3, speed="1gbit") as made:
        a, b, c = made
        assert a.run("ssh", "-F", made.config, "-o", "BatchMode=yes", "b", "hostname") == "b\n"
        assert made.idle()
        sleeper = subprocess.Popen(c.command("sleep", "60"))
        assert wait_until(c.processes)
        assert not made.idle(0.0)
        c.die()
        assert sleeper.wait(60) == -9
        assert made.idle()
        b.cable("down")

        def reach(seconds: int) -> int:
            words = a.command(
                "ssh", "-F", made.config, "-o", f"ConnectTimeout={seconds}", "b", "true"
            )
            return subprocess.run(words, capture_output=True, check=False).returncode

        assert reach(1) == 255
        b.cable("up")
        assert wait_until(lambda: reach(30) == 0)


def test_a_killed_test_leaves_no_host() -> None:
    needed(ssh=False)
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    *pids, folder = done.stdout.split()
    assert len(pids) == 2
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert wait_until(lambda: not os.path.exists(folder))
