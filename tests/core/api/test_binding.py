"""The binding kit over plain arrays, which is ``core.api`` alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.kits.binding import Binding, BindingKit


class TestBinding(BindingKit):
    binding = Binding("farandole.numpy", make=np.array, read=np.asarray)


def test_compressions_are_pickled_by_public_names() -> None:
    hvd = pytest.importorskip("farandole.torch", reason="torch is not installed")
    for module, compressor in (
        ("farandole.numpy", hvd.Compression.none),
        ("farandole.torch", hvd.Compression.fp16),
        ("farandole.torch", hvd.Compression.bf16),
    ):
        assert compressor.__module__ == module
        assert pickle.loads(pickle.dumps(compressor)) is compressor
