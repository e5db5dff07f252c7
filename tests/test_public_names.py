"""The public names of the package are a checked list."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farandole
from tests.kits.messages import mentioning

# horovod.torch's names, and the errors that its users catch.
TORCH = """
init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
allreduce allreduce_async allreduce_ allreduce_async_
grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_async broadcast_ broadcast_async_
alltoall alltoall_async
reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
barrier poll synchronize
broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object
Compression DistributedOptimizer HorovodInternalError
Average Sum Min Max Product Adasum
join sparse_allreduce_async SyncBatchNorm convert_sync_batchnorm
ProcessSet global_process_set add_process_set remove_process_set
start_timeline stop_timeline mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built
ccl_built cuda_built rocm_built mpi_ops elastic
"""


def test_the_package_exports_its_listed_names() -> None:
    assert farandole.__all__ == [
        "Experiment",
        "FunctionRun",
        "Run",
        "Runner",
        "ScriptRun",
        "__version__",
        "distributed",
        "errors",
        *(f"log_{name}" for name in ("artifact", "figure", "metric", "metrics", "params", "table")),
        "run",
    ]
    for name in farandole.__all__:
        assert getattr(farandole, name) is not None
    assert set(farandole.__all__) <= set(dir(farandole))


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=mentioning("'rnu'")):
        farandole.rnu  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole.cli", "--version"], capture_output=True, text=True
    )
    assert done.stdout.strip() == farandole.__version__


@pytest.mark.parametrize("name", TORCH.split())
def test_farandole_torch_has_the_names_of_horovod(name: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import farandole.torch as hvd

    assert hasattr(hvd, name)
    assert name in hvd.__all__


def test_the_operations_are_horovods_numbers() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import farandole.torch as hvd

    assert [int(op) for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)] == [
        0,
        1,
        3,
        4,
        5,
    ]
