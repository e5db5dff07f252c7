"""``farandole dashboard``: show all runs on a page in the browser."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

from farandole.cli.parsing import Parser
from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs.references import find_run

PORT = 8710
_EVERY = ("0.0.0.0", "::", "")  # addresses for all interfaces


def parser() -> Parser:
    made = Parser(
        prog="farandole dashboard",
        example="farandole dashboard last",
        description="Show all runs on a page in the browser, until Ctrl-C.",
    )
    made.add_argument("run", metavar="RUN", nargs="?", help="open this run: id, name or last")
    made.add_argument(
        "--port", metavar="N", type=int, help=f"default: {PORT}, or a free port if it is in use"
    )
    made.add_argument(
        "--host",
        metavar="NAME",
        default="127.0.0.1",
        help="address to listen at (127.0.0.1: reachable from this machine only)",
    )
    made.add_argument("--no-browser", action="store_true", help="only print the address")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    if options.port is not None and not 0 <= options.port < 65536:
        raise SettingsError(f"--port must be from 0 to 65535, not {options.port}")
    try:
        from farandole.dashboard.server.security import Access
        from farandole.dashboard.server.serve import bound, serve
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"farandole dashboard needs {error.name}, which is not installed: pip install"
            " starlette uvicorn"
        ) from None
    home = RunsHome()
    view = f"&run={find_run(home, options.run).run_id}" if options.run else ""
    wanted = PORT if options.port is None else options.port
    listener = bound(options.host, wanted, exactly=options.port is not None)
    port = listener.getsockname()[1]
    names = [socket.gethostname(), socket.getfqdn()] if options.host in _EVERY else [options.host]
    access = Access(port, [f"[{name}]" if ":" in name else name for name in names])
    shown = names[0] if options.host in _EVERY else options.host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"

    def ready() -> None:
        sys.stdout.write(f"{address}?token={access.token}{view}\n")
        sys.stdout.flush()
        sys.stderr.write("farandole: open this address in a browser; Ctrl-C ends the page\n")
        if not options.no_browser:
            _open(f"{address}?token={access.ticket()}{view}")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    serve(home, listener, access, ready)
    return 0


def _open(address: str) -> None:
    """Open the address in the user's browser, if this session has a display."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser  # takes 20 ms

        webbrowser.open(address)
