"""Access control of the page, and its restrictions in a browser.

- A random token, printed once as part of the page's address, becomes a cookie that no script and no
  other site can use. Programs may send it as ``Authorization: Bearer TOKEN`` instead. A browser
  started by the command receives a single-use ticket, because other users of the machine can read
  the arguments of processes.
- The ``Host`` header must name this server, or be an IP address. A foreign domain that resolves to
  this address (DNS rebinding) is therefore refused.
- A request that makes a change needs this page as its ``Origin``, and a second token in the header
  ``X-Farandole-Token``, which only the page's own script can read (``GET /api/session``).
- The content security policy forbids scripts, styles and connections from other origins.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POST_HEADER = "x-farandole-token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_READING = ("GET", "HEAD")
_RUN_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_START = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Farandole</title>'
_UNKNOWN = f"""{_START}<h1>Farandole</h1>
<p>This page needs the address with the token that <code>farandole dashboard</code> has printed."""
_GO_ON = _START + '<meta http-equiv="refresh" content="0;url={0}"><p><a href="{0}">Continue</a>'


class Access:
    """The tokens and the addresses of one server."""

    def __init__(self, port: int, hosts: Collection[str] = (), token: str = "") -> None:
        """Create the tokens.

        Arguments:
            port: The server's port, which is part of the cookie's name.
            hosts: The server's names in addition to ``localhost``.
            token: The page's token; by default a random token.
        """
        self.token = token or secrets.token_urlsafe(24)
        self.post_token = hmac.new(self.token.encode(), b"post", hashlib.sha256).hexdigest()
        self.cookie = f"farandole-{port}"  # browsers share cookies between the ports of a host
        self._hosts = {"localhost", *(name.lower() for name in hosts)}
        self._tickets: set[str] = set()

    def serves(self, host: str) -> bool:
        """Return whether a ``Host`` header names this server.

        Any port is accepted, because ssh may forward a different port.
        """
        found = re.fullmatch(r"\[([0-9a-f:]+)\](:\d+)?|([^:\[\]]+)(:\d+)?", host.lower())
        name = (found[1] or found[3]) if found else ""
        return name in self._hosts or _is_address(name)

    def ticket(self) -> str:
        """Return a new single-use token for the page's address."""
        self._tickets.add(made := secrets.token_urlsafe(24))
        return made

    def admits(self, token: str) -> bool:
        """Return whether the token in an address is the server's token or an unused ticket.

        The call consumes the ticket.
        """
        if token in self._tickets:
            self._tickets.discard(token)
            return True
        return _same(token, self.token)

    def knows(self, headers: Headers) -> bool:
        """Return whether a request has the token, as a cookie or as a bearer token."""
        return self.is_bearer(headers) or _same(self._cookie_of(headers), self.token)

    def is_bearer(self, headers: Headers) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _same(value.strip(), self.token)

    def may_change(self, headers: Headers) -> bool:
        """Return whether a request with the token comes from the page itself or from a program."""
        if self.is_bearer(headers):
            return True
        origin = headers.get("origin")
        own = origin in {f"http://{headers.get('host')}", f"https://{headers.get('host')}"}
        return own and _same(headers.get(POST_HEADER, ""), self.post_token)

    def _cookie_of(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""


class AccessGuard:
    """ASGI middleware that passes only permitted requests, and adds the security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, protected)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a forbidden request; None for a permitted request."""
        headers, access = Headers(scope=scope), self._access
        host = headers.get("host", "")
        if not access.serves(host):
            return JSONResponse(
                {"error": f"this server is not {host!r}; open the address that it printed"}, 421
            )
        query = parse_qs(scope["query_string"].decode("latin-1"))
        given = query.get("token", [""])[0]
        if given and scope["path"] == "/" and access.admits(given):
            return self._entry(headers, query.get("run", [""])[0])
        if not access.knows(headers):
            if scope["path"] == "/":
                return HTMLResponse(_UNKNOWN, 401)
            return JSONResponse({"error": "this request has no token, or a wrong one"}, 401)
        if scope["method"] not in _READING and not access.may_change(headers):
            return JSONResponse(
                {"error": f"a change needs this page as Origin and its {POST_HEADER}"}, 403
            )
        return None

    def _entry(self, headers: Headers, run_id: str) -> Response:
        """Return the response that converts the token of the address to a cookie.

        It redirects to the page of the run ``run_id``, or to the list of runs.
        """
        target = f"/#/run/{run_id}" if re.fullmatch(_RUN_ID, run_id) else "/"
        if headers.get("sec-fetch-site", "none") == "cross-site":
            # A browser omits the cookie in a redirect that began on another site, but sends it if
            # this page opens the target.
            answer: Response = HTMLResponse(_GO_ON.format(target))
        else:
            answer = RedirectResponse(target, 303)
        answer.set_cookie(
            self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/"
        )
        return answer


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
