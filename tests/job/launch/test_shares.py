"""The start of jobs with a fixed global batch."""

from __future__ import annotations

from typing import Any

import pytest

import farandole
from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.options import options_of
from tests.kits.messages import mentioning


def counts() -> Any:
    import os

    import farandole.numpy as hvd
    from farandole.job import context

    hvd.init()
    return context.shares(), hvd.size(), os.environ["OMP_NUM_THREADS"]


def test_ranks_know_the_number_of_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    fixed = farandole.run(counts, np=2, fixed_global_batch=True)
    elastic = farandole.run(
        counts, np=1, min_np=1, max_np=64, hosts="localhost:1", fixed_global_batch=True
    )
    assert [each[:2] for each in (*fixed, *elastic)] == [(2, 2), (2, 2), (64, 1)]
    assert elastic[0][2] == "1"  # threads follow from the shares, not from the present ranks


def test_no_rank_is_without_a_share() -> None:
    settings = Settings(min_np=2, fixed_global_batch=True)
    assert options_of(4, settings).max_np == 4
    assert options_of(4, settings.replace(max_np=6)).max_np == 6
    assert options_of(4, Settings(min_np=2)).max_np is None


@pytest.mark.parametrize("settings", [{"codec": "int8"}, {"strategy": "local_sgd:8"}])
def test_settings_without_one_order_are_refused(settings: dict[str, str]) -> None:
    (flag, value), *_ = settings.items()
    with pytest.raises(SettingsError, match=mentioning(f"--{flag}", value, "--fixed-global-batch")):
        farandole.run(counts, np=1, fixed_global_batch=True, **settings)
