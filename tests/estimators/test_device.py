"""The GPU of a rank, without ranks, frameworks or GPUs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from farandole.estimators.trainers.rank import pin_gpu


@pytest.mark.parametrize(
    ("seen", "own", "by_rank", "expected"),
    [
        # of Spark, which shows every task the GPUs of all of its host
        ("0,1", "1", "", ("1", "0")),
        ("GPU-a,GPU-b", "0", "", ("GPU-a", "0")),
        ("4,6", "0", "1", ("6", "0")),
        ("4,6", "", "", ("6", "")),  # of the user's shell
        ("6", "", "", ("6", "")),
        ("", "", "", ("", "")),
    ],
)
def test_a_rank_sees_one_gpu(
    seen: str, own: str, by_rank: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setenv("FARANDOLE_GPUS", own)
    monkeypatch.setenv("FARANDOLE_LOCAL_RANK", "1")
    monkeypatch.setenv("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", by_rank)
    for _ in range(2):  # the second time, it is so already
        pin_gpu(True)
        assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["FARANDOLE_GPUS"]) == expected
    pin_gpu(False)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_ranks_import_neither_pyspark_nor_another_framework() -> None:
    """These imports would cost memory and time on each rank."""
    names = "farandole.estimators.trainers.rank, farandole.estimators.trainers.torch.trainer"
    heavy = "{'pyspark', 'keras', 'tensorflow', 'lightning'} & {*sys.modules}"
    subprocess.run(
        [sys.executable, "-c", f"import sys, {names}; assert not {heavy}, {heavy}"], check=True
    )
