"""The routes of the page.

Answers are JSON unless noted; errors are ``{"error": text}`` with a status of 400 or above.

::

    GET  /                      the page
    GET  /static/...            its files
    GET  /api/session           {"post_token", "version", "home", "host"}; the token is for POST,
                                in the header X-Farandole-Token
    GET  /api/runs?since=V      {"version", "complete", "columns", "removed", "rows"}   (rows.py);
                                "seconds" is null until the run has ended
    GET  /api/run/ID            all facts about a run                                  (facts.py)
    GET  /api/run/ID/series?name=N&rank=0&x=step&from=&to=&points=2000
                                {"series": [{"run", "name", "rank", "x", "y", "min", "max", "total",
                                "not_finite"}]}; name and rank may repeat; without name, all metrics
                                of the program. "min" and "max" are empty if "y" has every point;
                                null for NaN and infinity                      (series.py)
    GET  /api/series?run=A&run=B&...     the same for several runs, in one answer
    GET  /api/run/ID/log?rank=R&offset=-65536&limit=65536
                                {"text", "begin", "end", "size"}; rank=all: of all ranks (logs.py)
    GET  /api/run/ID/log/search?rank=R&text=T&before=N&ignore_case=1
                                {"matches": [{"offset", "line", "text"}], "more", "next"}, from the
                                end to the beginning; "next" is the next request's "before"
    GET  /api/run/ID/log/raw?rank=R      the whole log, as a download
    GET  /api/run/ID/files      {"files": [{"path", "bytes", "modified"}], "more"}    (files.py)
    GET  /api/run/ID/file?path=P         a preview; with &raw=1 the file: an image to show,
                                everything else to save
    GET  /api/run/ID/timeline   {"files": [path], "events": [...], "complete"}    (timeline.py)
    GET  /api/compare?runs=A,B  the comparison of two or more runs (jobs/comparison); &metric=N and
                                &goal=maximize choose the metric of the equal value
    POST /api/run/ID/stop       {"state"}
    POST /api/run/ID/rerun      {"run_id"} of the new run
    GET  /api/events?run=ID&since=V      server-sent events                          (events.py)
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from farandole.dashboard.server import facts, files, images, logs, series, timeline
from farandole.dashboard.server.events import events
from farandole.dashboard.server.rows import RunRows
from farandole.dashboard.server.security import Access, AccessGuard
from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.jobs import follow
from farandole.jobs.commands.rerun import rerun
from farandole.jobs.supervisor.wake import ensure_running, reap

STATIC = os.path.join(os.path.dirname(os.path.dirname(__file__)), "static")
_RUN_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_CHUNK = 1 << 18
_THREADS = 8  # each allocates its own memory
# A file opened in a separate tab can neither execute nor load anything.
_SANDBOX = "sandbox; default-src 'none'; img-src 'self'"


class Dashboard:
    """The server's data, and one method per route."""

    def __init__(self, home: RunsHome, access: Access, is_over: Callable[[], bool]) -> None:
        self._home = home
        self._is_over = is_over
        self._access = access
        self.rows = RunRows(home)

    def page(self, request: Request) -> Response:
        return FileResponse(os.path.join(STATIC, "index.html"))

    def session(self, request: Request) -> Response:
        try:
            number = version("farandole")
        except PackageNotFoundError:
            number = ""
        return JSONResponse(
            {
                "post_token": self._access.post_token,
                "version": number,
                "home": self._home.path,
                "host": socket.gethostname(),
            }
        )

    def runs(self, request: Request) -> Response:
        return _json_bytes(self.rows.since(_number(request, "since", 0)))

    def run(self, request: Request) -> Response:
        return JSONResponse(_plain(facts.facts(self._folder(request), self._home)))

    def series(self, request: Request) -> Response:
        given = request.query_params
        wanted = _request(request)
        folders = (
            [self._folder(request)]
            if "run" in request.path_params
            else [self._found(run_id) for run_id in given.getlist("run")]
        )
        found = [each for folder in folders for each in series.curves(folder, wanted)]
        return JSONResponse({"series": found})

    def log(self, request: Request) -> Response:
        with self._log(request) as file:
            offset = _number(request, "offset", -65536)
            return JSONResponse(logs.piece(file, offset, _number(request, "limit", 65536)))

    def log_search(self, request: Request) -> Response:
        given = request.query_params
        before = _number(request, "before", 0) if "before" in given else None
        with self._log(request) as file:
            ignore_case = given.get("ignore_case") == "1"
            return JSONResponse(logs.search(file, given.get("text", ""), before, ignore_case))

    def log_raw(self, request: Request) -> Response:
        return _download(self._log(request), f"{request.path_params['run']}.txt")

    def files(self, request: Request) -> Response:
        return JSONResponse(files.listing(self._folder(request)))

    def file(self, request: Request) -> Response:
        name = request.query_params.get("path", "")
        file = files.opened(self._folder(request), name)
        if request.query_params.get("raw") == "1":
            return _download(file, os.path.basename(name))
        with file:
            return JSONResponse(_plain(files.preview(file, name)))

    def timeline(self, request: Request) -> Response:
        return JSONResponse(_plain(timeline.events(self._folder(request))))

    def compare(self, request: Request) -> Response:
        from farandole.jobs.comparison import compare

        names = [name for name in request.query_params.get("runs", "").split(",") if name]
        if len(names) < 2:
            raise HTTPException(400, "pass two or more runs: /api/compare?runs=A,B")
        metric, goal = request.query_params.get("metric"), request.query_params.get("goal")
        found = compare([self._found(name) for name in names], metric=metric, goal=goal)
        return JSONResponse(_plain(found.to_json(curves=False)))

    def stop(self, request: Request) -> Response:
        folder = self._folder(request)
        if folder.end() is None:
            folder.request(CANCEL)
            ensure_running(self._home)
        return JSONResponse({"state": folder.state().value})

    def rerun(self, request: Request) -> Response:
        folder = self._folder(request)
        if "rerun" not in facts.actions(folder):
            raise HTTPException(409, f"run {folder.run_id} has no copy of its function")
        return JSONResponse({"run_id": rerun(folder, self._home).run_id})

    def events(self, request: Request) -> Response:
        run_id = request.query_params.get("run")
        folder = self._found(run_id) if run_id else None
        since = _number(request, "since", self.rows.version)
        return StreamingResponse(
            events(self.rows, since, folder, self._is_over), media_type="text/event-stream"
        )

    # --- parts of requests

    def _folder(self, request: Request) -> RunFolder:
        return self._found(request.path_params["run"])

    def _found(self, run_id: str) -> RunFolder:
        folder = self._home.find(run_id) if re.fullmatch(_RUN_ID, run_id) else None
        if folder is None:
            raise HTTPException(404, f"there is no run {run_id!r}")
        return folder

    def _log(self, request: Request) -> Any:
        folder, rank = self._folder(request), request.query_params.get("rank", "all")
        if rank != "all" and not rank.isdecimal():
            raise HTTPException(400, f"rank must be a number or 'all', not {rank!r}")
        path = follow.log_path(folder, None if rank == "all" else int(rank))
        try:
            return files.opened(folder, os.path.relpath(path, folder.path))
        except FileNotFoundError:  # the rank has not started yet
            return open(os.devnull, "rb")


def make_app(
    home: RunsHome, access: Access, is_over: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the application that serves the page and its data.

    Arguments:
        home: The folder of all runs.
        access: The tokens and the addresses of the server.
        is_over: Returns whether the server is shutting down, which ends the event streams.
    """
    data = Dashboard(home, access, is_over)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        data.rows.start()
        current_default_thread_limiter().total_tokens = _THREADS
        try:
            yield
        finally:
            data.rows.close()
            reap()

    one = "/api/run/{run}"
    return Starlette(
        routes=[
            Route("/", data.page),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/session", data.session),
            Route("/api/runs", data.runs),
            Route("/api/series", data.series),
            Route("/api/compare", data.compare),
            Route("/api/events", data.events),
            Route(one, data.run),
            Route(f"{one}/series", data.series),
            Route(f"{one}/log", data.log),
            Route(f"{one}/log/search", data.log_search),
            Route(f"{one}/log/raw", data.log_raw),
            Route(f"{one}/files", data.files),
            Route(f"{one}/file", data.file),
            Route(f"{one}/timeline", data.timeline),
            Route(f"{one}/stop", data.stop, methods=["POST"]),
            Route(f"{one}/rerun", data.rerun, methods=["POST"]),
        ],
        middleware=[Middleware(AccessGuard, access=access)],
        exception_handlers={
            HTTPException: lambda _, error: _error(error.status_code, error.detail),
            FileNotFoundError: lambda _, error: _error(404, _text(error)),
            PermissionError: lambda _, error: _error(403, _text(error)),
            RunError: lambda _, error: _error(409, str(error)),
            SettingsError: lambda _, error: _error(409, str(error)),
        },
        lifespan=lifespan,
    )


def _request(request: Request) -> series.CurveRequest:
    given = request.query_params
    axis = given.get("x", "step")
    if axis not in series.AXES:
        raise HTTPException(400, f"x must be one of {', '.join(series.AXES)}, not {axis!r}")
    points = _number(request, "points", 2000)
    if not 2 <= points <= series.MOST_POINTS:
        raise HTTPException(400, f"points must be from 2 to {series.MOST_POINTS}, not {points}")
    ranks = [_integer("rank", rank) for rank in given.getlist("rank")] or [0]
    begin, end = _limit(request, "from"), _limit(request, "to")
    return series.CurveRequest(given.getlist("name"), ranks, axis, begin, end, points)


def _limit(request: Request, name: str) -> float | None:
    text = request.query_params.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise HTTPException(400, f"{name} must be a number, not {text!r}") from None


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return _integer(name, text) if text else default


def _integer(name: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise HTTPException(400, f"{name} must be an integer, not {text!r}")
    return int(text)


def _json_bytes(data: bytes) -> Response:
    return Response(data, media_type="application/json")


def _plain(data: Any) -> Any:
    """Return JSON data: NaN and infinity become None, other objects become text."""
    if isinstance(data, dict):
        return {str(name): _plain(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(each) for each in data]
    if isinstance(data, float):
        return data if data - data == 0 else None
    return data if isinstance(data, (str, int, type(None))) else str(data)


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


def _text(error: OSError) -> str:
    """Return an error without the path of this host."""
    return str(error.strerror or error)


def _download(file: Any, name: str) -> Response:
    """Return a whole file: an image to show, everything else to save."""
    size = os.fstat(file.fileno()).st_size
    image = images.recognized(os.pread(file.fileno(), 1 << 16, 0))
    headers = {"content-length": str(size), "content-security-policy": _SANDBOX}
    if image is None:
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(name)}"
    kind = image.type if image else "application/octet-stream"
    return StreamingResponse(_pieces(file, size), media_type=kind, headers=headers)


def _pieces(file: Any, size: int) -> Any:
    """Yield the first ``size`` bytes of a file, which may be growing."""
    with file:
        while size > 0 and (data := file.read(min(_CHUNK, size))):
            size -= len(data)
            yield data
