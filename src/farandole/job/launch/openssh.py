"""Running Farandole's programs on other hosts with OpenSSH's client: command line, protocol and
errors.

The client reads the user's configuration, so the names, ports, users, keys and jump hosts of ``ssh
h1`` apply, and so does the checking of host keys. Secrets are sent over stdin, never on a command
line.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.errors import SettingsError, printable
from farandole.job.config import Settings
from farandole.job.launch.agents import remote

CONNECT = 8  # seconds for a host to respond
# BatchMode: no user is present to answer prompts. ServerAlive*: ssh ends 8 s after a host vanishes,
# but survives a stall of 5 s (see liveness). LogLevel: messages are parsed. The other options
# override settings for terminals in the user's configuration.
OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT}",
    "ServerAliveInterval=1",
    "ServerAliveCountMax=7",
    "LogLevel=INFO",
    "ControlMaster=no",
    "ClearAllForwardings=yes",
    "RemoteCommand=none",
)
NO_PYTHON = 127
SSH = 255  # ssh's exit status for its own failures
OLD = "farandole needs Python 3.10"
FIRST = (
    f"import sys;v=sys.version_info[:2];v<(3,10) and sys.exit('{OLD}, and '+sys.executable+' is"
    " %d.%d'%v);"
    "r=sys.stdin.buffer.read;"
    "exec(compile(r(int(r(8))),'farandole/remote.py','exec'),{'__name__':'farandole_remote'})"
)
SPOKEN = f"{remote.MARK}{{".encode()  # prefix of each message from the program
OnMessage = Callable[[Mapping[str, Any]], "bytes | None"]
KILL = CONNECT + 2.0  # seconds for killing suspended programs by another login
GRACE = 1.0  # seconds for a program to exit after its stdin closes
# How ssh's own messages begin.
OWN = (
    r"ssh|kex_|client_loop|Connection |Connecting |Received |Disconnect|Timeout|packet_|channel "
    r"|Bad |command-line|Could not|Host key|Permission|Write failed|banner|mux|no such identity"
    r"|Load key|Unable to|Too many|getsockname|Warning|/.*: "
)
TAIL = 4000  # characters of stderr to keep
# Seconds, plus or minus half, before a dropped login is retried.
AGAIN = (0.5, 1.0, 2.0)
JUMP = r"stdio forwarding failed|UNKNOWN port \d+"
# sshd drops random logins when many start simultaneously (MaxStartups, 10:30:100 by default). The
# hosts of a job behind one jump host can trigger this.
DROPPED = r"kex_exchange_identification: .*"
EARLY = rf"{DROPPED}|Not allowed at this time"
# The length prefix of the next program was changed in transit.
MANGLED = r"invalid literal for int\(\) with base 10: (b.*)"
# Messages of ssh and their meanings. {host}, {login} (with the user) and {line} are filled in; {0}
# is the pattern's group.
CAUSES: tuple[tuple[str, str], ...] = (
    # This pattern must precede ssh's messages about the jump host.
    (JUMP, "the jump host (or ProxyCommand) failed: {line}"),
    (
        EARLY,
        (
            "it closed the connection before the login ({line}): too many simultaneous logins"
            " (MaxStartups of sshd), or it blocks this address (fail2ban, hosts.deny)"
        ),
    ),
    (
        r"Could not resolve hostname",
        "unknown host name: check its spelling, DNS, /etc/hosts or ~/.ssh/config",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        (
            "its host key has changed: if it was reinstalled, run ssh-keygen -R {host} and then"
            " ssh {login}; otherwise the connection may be intercepted"
        ),
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "its host key is unknown here: connect once by hand (ssh {login}) and confirm it",
    ),
    (
        r"Permission denied \(([^)]*)\)",
        (
            "it does not accept our key (it accepts: {0}): run ssh-copy-id {login}, name another"
            " key with --ssh-identity-file, or load the key into ssh-agent"
        ),
    ),
    (
        r"Too many authentication failures",
        (
            "ssh-agent offers too many keys: name the right one with --ssh-identity-file, and add"
            " --ssh-options '-o IdentitiesOnly=yes'"
        ),
    ),
    (
        r"connect to host (\S+) port (\d+): Connection refused",
        "port {1} refuses connections: start sshd there, or name its port with --ssh-port",
    ),
    (
        r"connect to host (fe[89ab]\S*) port \d+: Invalid argument",
        "a link-local address needs the interface of this machine that leads to it: [{0}%eth0]",
    ),
    (
        r"connect to host (\S+) port (\d+): (Connection timed out|Operation timed out|No route to"
        r" host|Network is "
        r"unreachable)",
        "no answer on port {1} ({2}): the host is down, or a firewall blocks the port",
    ),
    (
        r"timed out during banner exchange|Connection to \S+ port \d+ timed out",
        (
            "it accepts connections for ssh but does not answer: sshd hangs, the host is"
            " overloaded, or a firewall drops packets"
        ),
    ),
    (
        r"Timeout, server \S+ not responding",
        "it no longer answers: the host or the network is down",
    ),
    (
        r"closed by remote host|Connection reset|Broken pipe|Connection to \S+ closed|^\s*$",
        "it closed the connection: sshd or the host was stopped",
    ),
    (
        (
            r"Can't open user config file (\S+):|Bad configuration option|unknown option|Bad"
            r" (number|owner)|keyword"
        ),
        "ssh rejects its options: {line}",
    ),
)


def command(host: str, settings: Settings, words: Sequence[str]) -> list[str]:
    """Return the command line of ssh that runs ``words`` on ``host``, with any login shell."""
    try:
        more = shlex.split(settings.ssh_options)
    except ValueError as error:
        raise SettingsError(
            f"--ssh-options={settings.ssh_options!r} cannot be split into words: {error}"
        ) from error
    port = ["-p", str(settings.ssh_port)] if settings.ssh_port else []
    identity = ["-i", settings.ssh_identity_file] if settings.ssh_identity_file else []
    ours = [word for option in OPTIONS for word in ("-o", option)]
    # ssh uses the first occurrence of an option.
    return [
        "ssh",
        "-T",
        "-x",
        *ours[:2],
        *port,
        *identity,
        *more,
        *ours[2:],
        "--",
        host,
        f"exec {shlex.join(words)}",
    ]


def program(python: str) -> list[str]:
    """Return the command of the first program, which uses ``python`` if the host has it, else
    python3.
    """
    quoted = shlex.quote(python)
    script = f'p={quoted}; [ -x "$p" ] || p=python3; exec "$p" -c {shlex.quote(FIRST)}'
    return ["sh", "-c", script]


def reason(host: str, code: int, output: str) -> str:
    """Return why ssh, or the program on the host, exited with ``code``; ``output`` is its
    stderr.
    """
    lines = [
        line.strip()
        for line in output.splitlines()
        if line.strip() and not line.startswith("Warning: Permanently")
    ]
    absent = re.search(r"Identity file (\S+) not accessible", output)
    if absent:
        return f"the file {absent[1]} does not exist (--ssh-identity-file)"
    old = next((line for line in lines if line.startswith(OLD)), "")
    if old:
        return old
    fatal = re.search(r"Fatal Python error: (.*)", output)
    if fatal:
        return _no_start(fatal[1], output)
    if code < 0:
        return f"its ssh process on this machine was ended by {signal.Signals(-code).name}"
    if code == NO_PYTHON:
        return _not_found(lines[-1] if lines else "")
    if code == SSH:
        # ssh's messages about the connection then only follow from this failure
        jump = re.search(JUMP, output)
        plain = [
            line for line in lines if not re.search(f"{JUMP}|{EARLY}" if jump else JUMP, line)
        ] or lines
        for pattern, text in CAUSES:
            found = re.search(pattern, output)
            if found:
                named = {
                    "host": host.rpartition("@")[2],
                    "login": host,
                    "line": "".join(plain[-1:]),
                }
                return text.format(*found.groups(), **named)
    mangled = re.search(MANGLED, output)
    if mangled:
        return (
            f"our program did not arrive intact (it received {mangled[1]} first): a startup file"
            " of its shell (~/.bashrc) reads from stdin, or ssh's configuration disables stdin"
            " (StdinNull, ssh -n)"
        )
    last = lines[-1] if lines else "no output"
    if code != SSH:
        return f"its program ended with status {code}: {last}"
    own = [line for line in lines if re.match(OWN, line)]
    # otherwise a startup file of the shell wrote the lines ("module: loading cuda")
    return f"ssh failed: {own[-1]}" if own else f"ssh ended; the host's last line: {last}"


def _not_found(last: str) -> str:
    """Return which program the remote shell did not find; ``last`` is the shell's message."""
    if last and "python" not in last:
        return (
            "the remote shell did not find a program before ours started: a startup file"
            f" (~/.bashrc) runs a missing program, or clears PATH; its message: {last}"
        )
    no = (
        "it has no Python: neither the driver's interpreter nor python3 in the PATH of a login"
        " without a terminal"
    )
    return f"{no}; its message: {last}" if last else no


def _no_start(fatal: str, output: str) -> str:
    """Return why the remote interpreter exited before it ran any code; ``output`` is its own
    report.
    """
    found = re.findall(r"^\s*(PYTHONHOME|PYTHONPATH) = '(.*)'", output, re.MULTILINE)
    settings = " and ".join(f"{name}={value}" for name, value in found)
    # Python 3.13 does not report the paths that it searched
    if not settings and "encodings" in output:
        settings = "PYTHONHOME or PYTHONPATH"
    cure = (
        f"; {settings} is set there, perhaps by ~/.bashrc, for a different Python: unset it"
        if settings
        else ""
    )
    return f"its Python does not start ({fatal}){cure}"


def no_answer(noise: str, code: int = 0) -> str:
    """Return why a session ended silently before Farandole's program began.

    ``noise`` is the last line that the host printed.
    """
    printed = f"; it printed: {noise}" if noise else ""
    status = f" with status {code}" if code else ""
    return (
        f"it ended the session{status} before our program started: a startup file of its shell"
        " (~/.bashrc) exits, the user has no login shell (/bin/false), or ssh's configuration"
        f" runs it in the background (ForkAfterAuthentication, StdinNull){printed}"
    )


def framed(data: bytes) -> bytes:
    return b"%08d" % len(data) + data


def _programs() -> tuple[bytes, bytes]:
    """Return the sources of ``remote`` and ``boot``.

    Imports are local because choosing a launcher does not need them.
    """
    from pathlib import Path

    from farandole.job.launch.agents import boot

    return Path(remote.__file__).read_bytes(), Path(boot.__file__).read_bytes()


class SshSession:
    """The first program on one host.

    - ``argv``: The result of ``command``, or of ``program`` on this host.
    - ``first``: The program's instructions.
    - ``on_message``: A callback for each message, called on a thread; returns the bytes to send, or
      None.
    """

    def __init__(
        self, host: str, argv: Sequence[str], first: Mapping[str, Any], on_message: OnMessage
    ) -> None:
        self.host = host
        self.failed = ""  # in the program's own words
        self.pid = 0  # of the program, once it has begun
        self._on_message = on_message
        self._output = ""
        self._lock = threading.Lock()
        # Whether the program has sent a message, and the host's output before that.
        self._begun = False
        self._noise = ""
        self._argv = list(argv)
        self._pauses = list(AGAIN)
        self._again_at = 0.0
        first_program, second_program = _programs()
        opening = [first_program, json.dumps(dict(first)).encode(), second_program]
        self._opening = b"".join(map(framed, opening))
        self._start()

    def _start(self) -> None:
        self._output = ""
        # In a new session, because Ctrl-C is for the driver, which ends the ranks in order.
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise SettingsError(
                f"{self._argv[0]} cannot be started on this machine ({error}): install the"
                " OpenSSH client (openssh-client)"
            ) from error
        self._threads = [
            threading.Thread(target=target, name=f"farandole-ssh-{self.host}", daemon=True)
            for target in (self._converse, self._keep)
        ]
        for thread in self._threads:
            thread.start()

    def _dropped(self) -> bool:
        """Return whether sshd dropped this login before authentication and it is being retried.

        Retries once the pause is over.
        """
        if self._begun or not re.search(DROPPED, self._output):
            return False
        with self._lock:
            now = time.monotonic()
            if self._process.poll() is None:  # another thread has restarted ssh
                return True
            if not self._again_at:
                if not self._pauses:
                    return False
                import random  # imported here because a plain job does not need it

                self._again_at = now + self._pauses.pop(0) * random.uniform(0.5, 1.5)
            if now < self._again_at:
                return True
            self._again_at = 0.0
            self._close_pipes()
            self._start()
            return True

    def send(self, data: bytes) -> None:
        """Send one frame. ``ended`` reports a lost host, so errors are ignored here."""
        self._write(framed(data))

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        with self._lock, contextlib.suppress(OSError, ValueError):
            while view:
                view = view[self._process.stdin.write(view) or 0 :]

    def _converse(self) -> None:
        assert self._process.stdout is not None
        self._write(self._opening)
        for line in self._process.stdout:
            # The output of login scripts may lack a final newline (a terminal title), so the first
            # message can follow on the same line.
            noise, mark, message = line.partition(SPOKEN)
            self._noise = (
                printable(noise.decode("utf-8", "backslashreplace").strip()) or self._noise
            )
            if not mark:
                continue
            if not self._begun:
                self._output = ""  # of startup files, which says nothing about later failures
            self._begun = True
            with contextlib.suppress(ValueError):
                facts = json.loads(b"{" + message)
                pid = facts.get("pid")
                self.pid = pid if isinstance(pid, int) else self.pid
                self.failed = printable(str(facts.get("failed", self.failed)))
                answer = self._on_message(facts)
                if answer is not None:
                    self.send(answer)

    def _keep(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            line = line.replace(b"\r", b"")  # ssh's own lines end with "\r\n"
            self._output = (self._output + printable(line.decode("utf-8", "backslashreplace")))[
                -TAIL:
            ]

    def ended(self) -> str | None:
        """Return None while the session runs; afterwards why it ended, empty for success. Any
        thread.
        """
        code = self._process.poll()
        if code is None:
            return None
        for thread in self._threads:
            thread.join(1.0)
        if code == SSH and self._dropped():
            return None
        output = self._output or (self._noise if code != SSH else "")
        if code == 0 or (not output and not self._begun and code not in (SSH, NO_PYTHON)):
            return self.failed or ("" if self._begun else no_answer(self._noise, code))
        return self.failed or reason(self.host, code, output)

    def late(self) -> str:
        """Return why the session is not finished yet, as far as known."""
        why = self.ended()
        if why is not None:
            return why or "its program has ended"
        if self._begun:
            return "its program started, but did not report to the driver"
        if re.search(DROPPED, self._output):
            return reason(self.host, SSH, self._output)
        printed = f"; it printed: {self._noise}" if self._noise else ""
        return (
            "our program has not started there: a startup file of its shell (~/.bashrc) blocks,"
            f" or ssh runs no command (SessionType, ssh -N); check that `ssh {self.host} true`"
            f" returns immediately{printed}"
        )

    def close(self, deadline: float) -> bool:
        """Wait until ``deadline`` (monotonic) for the session to end; then kill it with its remote
        program.

        Returns False if the remote program has begun and may still be running.
        """
        with self._lock:
            # Disable retries.
            self._pauses = []
            self._again_at = 0.0
        for seconds in (max(0.0, deadline - time.monotonic()), GRACE):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # type: ignore[union-attr]
        # If the connection has broken, the program's stdin closes, and it ends.
        stuck = self._process.poll() is None
        if stuck:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)
        self._close_pipes()
        return not (stuck and self._begun)

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def kill_suspended(sessions: Sequence[SshSession], settings: Settings) -> list[str]:
    """Kill the agents of these sessions, which are suspended: their reapers then end the ranks.
    Return the hosts where that was not possible.
    """
    killing = [
        (
            session.host,
            subprocess.Popen(
                command(session.host, settings, ["kill", "-KILL", str(session.pid)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ),
        )
        for session in sessions
        if session.pid
    ]
    stuck = [session.host for session in sessions if not session.pid]
    deadline = time.monotonic() + KILL
    for host, process in killing:
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code == SSH or code < 0:  # otherwise the agent has been killed, or had ended
            stuck.append(host)
    return stuck


def failures(why: Mapping[str, str]) -> str:
    """Return one message about all unusable hosts, by name."""
    count = "a host" if len(why) == 1 else f"{len(why)} hosts"
    return "\n  ".join(
        [f"{count} cannot be used:", *(f"{host}: {text}" for host, text in why.items())]
    )
