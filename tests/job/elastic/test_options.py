"""Options of elastic jobs that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.options import ElasticOptions, check_options, options_of, parse_cooldown
from tests.kits.messages import mentioning


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"min_np": 0}, ("min_np=0", "--min-np")),
        ({"max_np": 1}, ("max_np=1", "min_np=2")),
        ({"np": 1}, ("np=1", "min_np=2", "-np")),
        ({"max_np": 3}, ("np=4", "max_np=3")),
        ({"timeout": 0.0}, ("elastic_timeout=0",)),
        ({"reset_limit": -1}, ("reset_limit=-1",)),
        ({"cooldown": (0.5, 10.0)}, ("0.5:10", "1", "3600")),
        ({"cooldown": (10.0, 4000.0)}, ("10:4000", "1", "3600")),
        ({"cooldown": (20.0, 10.0)}, ("20:10",)),
    ],
)
def test_contradicting_options_are_refused(given: dict[str, Any], values: tuple[str, ...]) -> None:
    options = ElasticOptions(np=4, min_np=2)._replace(**given)
    with pytest.raises(SettingsError, match=mentioning(*values)):
        check_options(options)


def test_options_that_agree_are_returned() -> None:
    options = ElasticOptions(4, 2, 8, 30.0, 0, (10.0, 100.0))
    assert check_options(options) == options
    assert check_options(ElasticOptions(2, 2)).max_np is None


@pytest.mark.parametrize(
    ("text", "range_"),
    [("", None), ("10:100", (10.0, 100.0)), ("1,2.5", (1.0, 2.5)), ("10 100", (10.0, 100.0))],
)
def test_cooldown_ranges(text: str, range_: tuple[float, float] | None) -> None:
    assert parse_cooldown(text) == range_


@pytest.mark.parametrize("text", ["10", "a:b", "10:1", "0:10", "1:2:3", "..:1"])
def test_wrong_cooldown_ranges_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=mentioning("--cooldown-range")):
        parse_cooldown(text)


@pytest.mark.parametrize(
    ("np", "settings", "options"),
    [
        (4, Settings(min_np=2, max_np=8), ElasticOptions(4, 2, 8)),
        (None, Settings(min_np=2), ElasticOptions(2, 2)),
        (3, Settings(max_np=3), ElasticOptions(3, 3, 3)),
        (
            3,
            Settings(
                host_discovery_script="a.sh",
                elastic_timeout=9.0,
                reset_limit=1,
                cooldown_range="10:20",
            ),
            ElasticOptions(3, 3, None, 9.0, 1, (10.0, 20.0)),
        ),
    ],
)
def test_options_come_from_settings(
    np: int | None, settings: Settings, options: ElasticOptions
) -> None:
    assert options_of(np, settings) == options


def test_an_elastic_job_needs_a_number_to_start_with() -> None:
    with pytest.raises(SettingsError, match=mentioning("-np", "--min-np")):
        options_of(None, Settings(max_np=4))


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_hosts_as_fast_as_the_others_are_not_stragglers(factor: float) -> None:
    with pytest.raises(SettingsError, match=mentioning("leave_out_stragglers", "2")):
        options_of(2, Settings(min_np=1, leave_out_stragglers=factor))
