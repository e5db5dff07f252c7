"""Access to the page, and to its actions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from farandole.dashboard.server.security import POST_HEADER, Access
from farandole.job.runs.folder import CANCEL
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from tests.kits.written_runs import written_run

ORIGIN = "http://127.0.0.1:8000"


def enter(browser: TestClient, access: Access) -> None:
    assert browser.get(f"/?token={access.token}").headers["location"] == "/"


def test_the_token_becomes_a_cookie_and_leaves_the_address(
    browser: TestClient, access: Access
) -> None:
    assert browser.get("/").status_code == 401
    assert browser.get("/api/runs").status_code == 401
    assert browser.get("/?token=wrong").status_code == 401
    answer = browser.get(f"/?token={access.token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.get("/").status_code == 200
    assert browser.get("/api/runs").status_code == 200


def test_a_ticket_opens_the_page_once(browser: TestClient, access: Access) -> None:
    ticket = access.ticket()
    answer = browser.get(f"/?token={ticket}&run=study_1_ab")
    assert (answer.status_code, answer.headers["location"]) == (303, "/#/run/study_1_ab")
    assert browser.get("/api/runs").status_code == 200
    browser.cookies.clear()
    assert browser.get(f"/?token={ticket}").status_code == 401
    assert (
        browser.get("/api/runs", headers={"authorization": f"Bearer {ticket}"}).status_code == 401
    )


def test_a_link_on_another_site_leads_to_a_page_that_goes_on(
    browser: TestClient, access: Access
) -> None:
    answer = browser.get(
        f'/?token={access.token}&run="><script>', headers={"sec-fetch-site": "cross-site"}
    )
    assert answer.status_code == 200
    assert 'href="/"' in answer.text
    assert "script" not in answer.text
    assert access.token not in answer.text
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/index.html", "/?token={token}"])
def test_unknown_host_names_are_refused(browser: TestClient, access: Access, path: str) -> None:
    enter(browser, access)
    for host in (
        "evil.example:8000",
        "",
        "localhost.evil:8000",
        "evil@127.0.0.1",
        "127.0.0.1.evil.example",
    ):
        answer = browser.get(path.format(token=access.token), headers={"host": host})
        assert answer.status_code == 421
        assert "set-cookie" not in answer.headers
    for host in ("localhost:8000", "LOCALHOST", "127.0.0.1:9000", "[::1]:8000", "10.0.0.1"):
        assert browser.get("/", headers={"host": host}).status_code == 200


def test_a_change_needs_the_origin_and_the_second_token(
    browser: TestClient, access: Access, home: RunsHome
) -> None:
    run = written_run(home, state=RunState.QUEUED)
    enter(browser, access)
    token = browser.get("/api/session").json()["post_token"]
    assert access.token not in browser.get("/api/session").text
    stop = f"/api/run/{run.run_id}/stop"
    for headers in (
        {},
        {"origin": ORIGIN},
        {POST_HEADER: token},
        {POST_HEADER: token, "origin": "http://evil.example"},
        {POST_HEADER: token, "origin": "null"},
        {POST_HEADER: "wrong", "origin": ORIGIN},
        {POST_HEADER: access.token, "origin": ORIGIN},
    ):
        assert browser.post(stop, headers=headers).status_code == 403
    assert run.requested(CANCEL) is None
    assert browser.get(stop).status_code == 405


def test_answers_forbid_foreign_scripts_and_frames(page: TestClient) -> None:
    for path in ("/", "/api/runs", "/api/run/none"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_a_program_uses_the_token_as_a_bearer_token(browser: TestClient, access: Access) -> None:
    right, wrong = f"Bearer {access.token}", "Bearer wrong"
    assert browser.get("/api/runs", headers={"authorization": right}).status_code == 200
    assert browser.get("/api/runs", headers={"authorization": wrong}).status_code == 401


def test_each_server_has_its_own_tokens() -> None:
    first, second = Access(1), Access(2)
    assert len({first.token, second.token, first.post_token, second.post_token}) == 4
    assert len(first.token) >= 32
    assert first.cookie != second.cookie


@pytest.mark.parametrize(
    "run_id",
    ["..", "%2e%2e", "..%2f..%2fetc", "/etc/passwd", "%2Fetc", ".new-x", "a%00b", "a/../b"],
)
def test_a_run_is_named_by_its_id_alone(
    page: TestClient, home: RunsHome, tmp_path: Path, run_id: str
) -> None:
    written_run(home)
    for path in (f"/api/run/{run_id}", f"/api/run/{run_id}/files", f"/api/events?run={run_id}"):
        assert page.get(path).status_code == 404


def test_the_files_of_the_page_end_at_its_folder(page: TestClient) -> None:
    for path in ("/static/../__init__.py", "/static/%2e%2e/__init__.py", "/static//etc/passwd"):
        assert page.get(path).status_code == 404
    assert re.match(r"<!doctype html>", page.get("/static/index.html").text, re.IGNORECASE)
