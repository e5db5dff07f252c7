"""Horovod's functions about its compilation."""

from __future__ import annotations

import pytest

from tests.kits.messages import mentioning

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_capabilities_match_torch() -> None:
    import farandole.torch as hvd

    assert hvd.gloo_built() is True
    assert (hvd.ddl_built(), hvd.ccl_built()) == (False, False)
    assert hvd.cuda_built() is torch.backends.cuda.is_built()
    assert hvd.rocm_built() is (torch.version.hip is not None)
    assert type(hvd.nccl_built()) is int
    assert (hvd.nccl_built() > 0) is (
        torch.distributed.is_nccl_available() and torch.backends.cuda.is_built()
    )


def test_nccl_is_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from farandole.torch import capabilities

    monkeypatch.setattr(capabilities, "cuda_built", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 13, 4))
    assert capabilities.nccl_built() == 21304


def test_this_job_does_not_run_on_mpi() -> None:
    import farandole.torch as hvd

    with pytest.raises(ValueError, match=mentioning("initialized")):
        hvd.mpi_threads_supported()
    hvd.init()
    try:
        assert (hvd.gloo_enabled(), hvd.mpi_enabled()) == (True, False)
        with pytest.raises(ValueError, match=mentioning("Horovod", "MPI")):
            hvd.mpi_threads_supported()
    finally:
        hvd.shutdown()
