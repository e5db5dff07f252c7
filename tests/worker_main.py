"""What a process of ``tests.pool`` runs: ``python worker_main.py READ_FD WRITE_FD``. Dies when the
tests do.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection

del sys.path[0]  # this folder: tests/torch is not torch


def main() -> None:
    tasks, results = (
        Connection(int(sys.argv[1]), writable=False),
        Connection(int(sys.argv[2]), readable=False),
    )
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import cloudpickle

    import farandole.core.collectives  # noqa: F401  warm: the first test should not pay for imports

    todo: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                todo.put(tasks.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the tests are over, and the main thread may be busy

    threading.Thread(target=listen, daemon=True).start()
    results.send_bytes(b"ready")
    while True:
        try:
            fn, args = cloudpickle.loads(todo.get())
            answer = cloudpickle.dumps((True, fn(*args), ""))
        except BaseException as error:
            text = traceback.format_exc()
            try:
                answer = cloudpickle.dumps((False, error, text))
                cloudpickle.loads(answer)
            except Exception:
                answer = cloudpickle.dumps((False, RuntimeError(repr(error)), text))
        results.send_bytes(answer)


if __name__ == "__main__":
    main()
