"""The plan of an elastic job, from settings and hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.options import ElasticOptions
from farandole.job.launch.elastic_plan import plan_of
from tests.kits.messages import mentioning


def test_a_job_without_bounds_has_a_fixed_size() -> None:
    assert plan_of(4, Settings(reset_limit=1, elastic_timeout=9.0), "a:4") is None


@pytest.mark.parametrize(
    ("np", "hosts", "found"),
    [
        (None, None, {"localhost": 8}),
        (4, "a:2,b:3", {"a": 2, "b": 3}),
        (4, "localhost:2,127.0.0.1:2", {"localhost": 2, "127.0.0.1": 2}),
    ],
)
def test_hosts_are_the_given_ones(np: int | None, hosts: str | None, found: Any) -> None:
    plan = plan_of(np, Settings(min_np=2, max_np=8), hosts)
    assert plan is not None
    assert plan.options == ElasticOptions(np or 2, 2, 8)
    assert plan.discovery.find() == found


def test_a_function_makes_a_job_elastic() -> None:
    plan = plan_of(2, Settings(), None, lambda: {"a": 3})
    assert plan is not None
    assert (plan.options, plan.discovery.find()) == (ElasticOptions(2, 2), {"a": 3})


def test_hosts_have_one_source() -> None:
    with pytest.raises(SettingsError, match=mentioning("a:2", "find.sh")):
        plan_of(2, Settings(host_discovery_script="find.sh"), "a:2")
    with pytest.raises(SettingsError, match=mentioning("a:2")):
        plan_of(2, Settings(), "a:2", lambda: {"a": 3})


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"preemption_notice": "aws"}, "--preemption-notice"),
        ({"slurm_requeue": True}, "--slurm-requeue"),
        ({"leave_out_stragglers": 2.0}, "--leave-out-stragglers"),
    ],
)
def test_settings_without_effect_are_refused(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError, match=mentioning(flag, "--min-np")):
        plan_of(2, Settings(**given), None)
    assert plan_of(2, Settings(min_np=1, **given), None) is not None


@pytest.mark.parametrize("settings", [Settings(), Settings(min_np=1)], ids=["fixed", "elastic"])
def test_an_unknown_url_of_commits_is_refused(settings: Settings) -> None:
    with pytest.raises(SettingsError, match=mentioning("nosuch://a/b", "--commit-dir")):
        plan_of(2, settings.replace(commit_dir="nosuch://a/b"), None)


@pytest.mark.parametrize("path", ["commits", "file:///commits", "memory://a"])
def test_paths_and_urls_of_commits_are_accepted(path: str) -> None:
    plan_of(2, Settings(commit_dir=path), None)


def test_a_missing_package_for_commits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("fsspec.registry", reason="fsspec is not installed")
    for name, url in (("s3fs", "s3://a/b"), ("paramiko", "sftp://a/b")):
        monkeypatch.setitem(sys.modules, name, None)
        for protocol in ("s3", "sftp"):
            registry._registry.pop(protocol, None)
        with pytest.raises(SettingsError, match=mentioning(url, f"pip install {name}")) as caught:
            plan_of(2, Settings(commit_dir=url), None)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_file_for_commits_is_refused(prefix: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match=mentioning("--commit-dir", str(file))):
        plan_of(2, Settings(commit_dir=f"{prefix}{file}"), None)
