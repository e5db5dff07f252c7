"""Exit codes of ranks: the launcher's own status, and descriptions for messages."""

from __future__ import annotations

import signal

from farandole.job.launch.limits import processor_time

_SIGNALS = {
    "SIGKILL": "killed, perhaps by the out-of-memory killer",
    "SIGSEGV": "a crash in native code (segmentation fault)",
    "SIGABRT": "native code aborted (a failed check or an uncaught C++ exception)",
    "SIGBUS": "bus error: shared memory was full, or a mapped file was truncated",
    "SIGILL": "illegal instruction: a library was built for a different CPU",
    "SIGFPE": "division by zero in native code",
    "SIGTERM": (
        "terminated from outside: by a scheduler, an administrator, or because the process that"
        " had started it was killed"
    ),
    "SIGINT": "interrupted from outside",
    "SIGHUP": "its terminal was closed",
    "SIGPIPE": "wrote to a pipe or connection whose reader is gone",
    "SIGUSR1": (
        "a signal that the program does not handle, such as the warning before a time limit"
    ),
    "SIGUSR2": (
        "a signal that the program does not handle, such as the warning before a time limit"
    ),
    "SIGXCPU": "CPU time limit exceeded",
    "SIGXFSZ": "wrote a file larger than its limit (`ulimit -f`)",
    "SIGALRM": "an alarm (signal.alarm, a timeout) that the program does not handle",
    "SIGQUIT": "terminated from outside (Ctrl-\\ on a terminal)",
    "SIGTRAP": "native code stopped at a failed check or a breakpoint",
    "SIGSYS": "a system call that is not allowed here (seccomp, a container)",
}


def exit_status(code: int | None) -> int:
    """Return the launcher's exit status for a rank's code: 128 + signal, the code itself, or 1
    without a code.
    """
    if code is None or code == 0:
        return 1
    return code if code > 0 else 128 - code


def describe(code: int) -> str:
    """Describe an exit code, as the end of "rank 1 ..."."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = ""
    words = _SIGNALS.get(name, "a signal") + (processor_time() if name == "SIGKILL" else "")
    if code < 0:
        return f"died of signal {number}{f' ({name})' if name else ''}: {words}"
    if name in _SIGNALS and number > 0:
        return (
            f"exited with code {code} (a shell's code for a command that died of {name}: {words})"
        )
    return f"exited with code {code}"
