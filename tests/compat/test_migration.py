"""docs/migration.md: its table covers Horovod's API, and names marked as working exist."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.compat.tools import ROOT, code

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "migration.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("<!-- calls:")[2].partition("<!-- end of calls -->")[0].splitlines()
    if line.startswith("| `")
]

# Horovod 0.28's names: common to all frameworks; horovod.torch; elastic; data loaders.
COMMON = """
HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError get_version_mismatch_message init shutdown
is_initialized size rank local_size local_rank cross_size cross_rank is_homogeneous mpi_threads_supported mpi_enabled
gloo_enabled mpi_built gloo_built ddl_built ccl_built cuda_built rocm_built nccl_built start_timeline stop_timeline
Average Sum Adasum Min Max Product ProcessSet global_process_set add_process_set remove_process_set _basics
check_extension extension_available gpu_available _cache env get_average_backwards_compatibility_fun num_rank_is_power_2
split_list check_installed_version is_iterable is_version_greater_equal_than get_ext_suffix get_extension_full_path
"""
TORCH = """
Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters allreduce allreduce_async
allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async broadcast broadcast_async
broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async grouped_reducescatter
grouped_reducescatter_async join barrier poll synchronize DistributedOptimizer SyncBatchNorm Compressor
"""
ELASTIC = """
State ObjectState run_fn HostUpdateResult run TorchState ElasticSampler get_handler_registry set_handler_registry
ModelStateHandler OptimizerStateHandler SamplerStateHandler
"""
LOADERS = "BaseDataLoader AsyncDataLoaderMixin"
MXNET = """
DistributedTrainer DistributedOptimizer broadcast_parameters broadcast_object allgather_object Compression allreduce
allreduce_ grouped_allreduce grouped_allreduce_ allgather grouped_allgather broadcast broadcast_ alltoall reducescatter
grouped_reducescatter
"""
SPARK = (
    "horovod.spark.run horovod.spark.run_elastic horovod.spark.conf.SPARK_CONF_DEFAULT_VALUES"
    " horovod.spark.task.get_available_devices"
    " sparkdl.HorovodRunner sparkdl.horovod.log_to_driver"
    " sparkdl.horovod.tensorflow.keras.LogCallback horovod.spark.keras.KerasEstimator"
    " horovod.spark.keras.KerasModel horovod.spark.torch.TorchEstimator"
    " horovod.spark.torch.TorchModel horovod.spark.lightning.TorchEstimator"
    " horovod.spark.lightning.TorchModel horovod.spark.common.backend.Backend"
    " horovod.spark.common.backend.SparkBackend horovod.spark.common.store.Store"
    " horovod.spark.common.store.FilesystemStore horovod.spark.common.store.HDFSStore"
    " horovod.spark.common.store.LocalStore horovod.spark.common.store.DBFSLocalStore"
    " horovod.spark.common.util.prepare_data horovod.spark.common.util.clear_training_cache"
    " sparkdl.estimators.HorovodEstimator"
)
NOT_OF_TORCH = """
TensorFlowKerasState TensorFlowState KerasState CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback
PytorchDataLoader PytorchInmemDataLoader PytorchInfiniteDataLoader PetastormBatchedDataLoader
"""


def names(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[1])


def is_here(module: str) -> bool:
    """Return whether the framework of the module, if any, is installed; tests/<framework> check the
    others.
    """
    parts = module.split(".")[1:]
    about = [
        part for part in parts if part in ("torch", "tensorflow", "keras", "mxnet", "lightning")
    ]
    if (
        parts[:1] == ["spark"] and {*parts[1:]} & {"common", "keras", "lightning", "torch"}
    ) or parts == ["estimators"]:
        about += ["pyspark", "pyarrow"]
    return all(find_spec(framework) is not None for framework in about)


def test_every_name_is_in_the_table() -> None:
    listed = {name for row in ROWS for name in names(row)}
    assert {*COMMON.split(), *TORCH.split(), *ELASTIC.split(), *LOADERS.split()} - listed == set()
    assert (
        set(MXNET.split())
        - {name for row in ROWS for name in names(row) if row[0] == "`horovod.mxnet`"}
        == set()
    )
    assert (
        set(SPARK.split()) - {f"{row[0].strip('`')}.{name}" for row in ROWS for name in names(row)}
        == set()
    )
    assert [name for name in NOT_OF_TORCH.split() if f"`{name}`" not in PAGE] == []


def test_every_row_has_a_status() -> None:
    assert len(ROWS) > 25
    assert {row[2] for row in ROWS} <= {"works", "later"}


def test_names_import_and_unsupported_ones_raise_when_used() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    known = [
        (row[0].strip("`"), name, row[2])
        for row in ROWS
        for name in names(row)
        if is_here(row[0].strip("`"))
    ]
    assert (
        code(
            f"import importlib\nfor module, name, status in {known}:\n    value ="
            " getattr(importlib.import_module(module), name)\n    if status == 'later':\n       "
            " try:\n            value(1, 2)\n        except NotImplementedError:\n           "
            " continue\n        raise SystemExit(f'{module}.{name} did not"
            " raise')\nprint('all')"
        )
        == "all"
    )


def test_horovod_torch_has_all_names_of_farandole_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert (
        code(
            "import farandole.torch as ours, horovod.torch as hvd\nfor one, other in ((ours, hvd),"
            " (ours.mpi_ops, hvd.mpi_ops)):\n    print([name for name in one.__all__ if"
            " getattr(one, name) is not getattr(other, name)])"
        )
        == "['elastic', 'mpi_ops']\n[]"
    )
