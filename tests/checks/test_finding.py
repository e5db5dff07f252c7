"""Findings have stable codes, and are kept for readers."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from farandole import checks
from farandole.base.log import logger
from farandole.checks import catalogue, finding, reporting
from farandole.checks.catalogue import CALL_ORDER, CATALOGUE, DRIFT, SAME_DATA
from farandole.checks.finding import FindingKind, error_of
from farandole.errors import RanksDifferError
from farandole.job import context
from tests.kits.messages import mentions
from tests.test_architecture import PACKAGE


@pytest.fixture(autouse=True)
def no_findings() -> None:
    finding._findings.clear()
    reporting._logged_once.clear()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *args: lines.append(text % args))
    return lines


class Ranked:
    """A minimal engine for reports."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def check_is(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = type("Settings", (), {"check": mode})
    monkeypatch.setattr(context, "settings", lambda: settings)


def test_codes_are_unique_and_never_reused() -> None:
    codes = [rule.code for rule in CATALOGUE]
    assert codes == sorted(set(codes))
    assert all(re.fullmatch(r"FAR\d{3}", code) for code in codes)


@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.code)
def test_every_kind_is_described(rule: FindingKind) -> None:
    assert rule.title
    for sentence in (rule.meaning, rule.cure):
        assert sentence.endswith(".")
    assert "|" not in rule.title + rule.meaning + rule.cure  # it is a row of a table
    assert rule.level in ("info", "warning", "error")


def test_every_kind_is_found_by_some_check() -> None:
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "catalogue.py"]
    names = [name for name, value in vars(catalogue).items() if isinstance(value, FindingKind)]
    assert len(names) == len(CATALOGUE)
    unused = [
        name
        for name in names
        if not any(re.search(rf"\b{name}\.finding\(", source) for source in sources)
    ]
    assert unused == []


def test_a_finding_has_the_cure_of_its_kind_or_its_own() -> None:
    assert DRIFT.finding("weights differ").cure == DRIFT.cure
    found = DRIFT.finding("weights differ", cure="call it", where="bias")
    assert found == (DRIFT.code, "warning", "weights differ", "call it", "bias", "")
    assert found.message == f"weights differ [{DRIFT.code}]"
    placed = found._replace(at="train.py:12")
    assert mentions(placed.message, "weights", "train.py:12", DRIFT.code)


def test_errors_carry_their_findings_also_to_the_driver() -> None:
    found = [DRIFT.finding("one"), SAME_DATA.finding("other")]
    error = error_of(RanksDifferError, found)
    assert str(error) == f"one [{DRIFT.code}]; other [{SAME_DATA.code}]"
    assert pickle.loads(pickle.dumps(error)).findings == tuple(found)


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_rank_0_logs_and_all_ranks_keep(
    rank: int, lines: int, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_is("warn", monkeypatch)
    engine: Any = Ranked(rank)
    reporting.report(engine, [DRIFT.finding("weights differ")])
    assert len(logged) == lines
    assert all(mentions(text, "test_finding.py", DRIFT.code) for text in logged)
    assert [found.code for found in checks.findings()] == [DRIFT.code]


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_raise(rank: int, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check_is("raise", monkeypatch)
    engine: Any = Ranked(rank)
    with pytest.raises(RanksDifferError, match=DRIFT.code):
        reporting.report(engine, [DRIFT.finding("weights differ")])
    assert logged == []
    assert len(checks.findings()) == 1


def test_nothing_is_kept_of_checks_that_are_off(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_is("off", monkeypatch)
    engine: Any = Ranked(0)
    reporting.report(engine, [DRIFT.finding("weights differ")])
    assert (logged, checks.findings()) == ([], ())


def test_a_place_is_logged_once(logged: list[str]) -> None:
    for where in ("a", "a", "b"):
        reporting.warn_once(CALL_ORDER.finding(where, where=where))
    assert [text[0] for text in logged] == ["a", "b"]


def test_the_latest_findings_are_kept() -> None:
    for number in range(finding._KEPT + 5):
        finding.record(DRIFT.finding(str(number)))
    assert [found.text for found in checks.findings()][:1] == ["5"]
    assert len(checks.findings()) == finding._KEPT
