"""The helpers of ``horovod.common.util``, and the exceptions of ``horovod.common.exceptions``."""

from __future__ import annotations

import os
import types

import pytest

from farandole.compat import exceptions, util
from tests.kits.messages import mentioning, mentions

OPS = types.SimpleNamespace(Average=0, Sum=1)


@pytest.mark.parametrize(
    ("op", "average", "meant"),
    [
        (None, None, 0),
        (1, None, 1),
        (None, True, 0),
        (None, False, 1),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_op_and_average(op: int | None, average: bool | None, meant: int) -> None:
    assert util.get_average_backwards_compatibility_fun(OPS)(op, average) == meant


def test_average_is_deprecated_and_excludes_op() -> None:
    meant = util.get_average_backwards_compatibility_fun(OPS)
    with pytest.warns(DeprecationWarning, match="average"):
        meant(average=True)
    with pytest.raises(ValueError, match=mentioning("op", "average")):
        meant(op=0, average=True)


def test_powers_of_two() -> None:
    assert [n for n in range(-2, 17) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("length", "n", "lengths"), [(6, 3, [2, 2, 2]), (7, 3, [3, 2, 2]), (2, 3, [1, 1, 0])]
)
def test_a_list_in_parts(length: int, n: int, lengths: list[int]) -> None:
    parts = util.split_list(list(range(length)), n)
    assert [len(part) for part in parts] == lengths
    assert [each for part in parts for each in part] == list(range(length))


def test_the_environment_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_FOR_TEST", "1")
    monkeypatch.delenv("B_FOR_TEST", raising=False)
    with util.env(A_FOR_TEST=None, B_FOR_TEST="2"):
        assert ("A_FOR_TEST" in os.environ, os.environ["B_FOR_TEST"]) == (False, "2")
    assert (os.environ["A_FOR_TEST"], "B_FOR_TEST" in os.environ) == ("1", False)
    with pytest.raises(KeyError), util.env(A_FOR_TEST=None):
        raise KeyError
    assert (os.environ["A_FOR_TEST"], "B_FOR_TEST" in os.environ) == ("1", False)


def test_versions() -> None:
    assert util.is_version_greater_equal_than("2.10.0", "2.9.1")
    assert util.is_version_greater_equal_than("2.9.1", "2.9.1")
    assert not util.is_version_greater_equal_than("2.9.1+cpu", "2.10.0")
    for malformed in ("two", "2", 2.0):
        with pytest.raises(ValueError, match=mentioning("x.y.z")):
            util.is_version_greater_equal_than(malformed, "1.0.0")


def test_extensions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError, match=mentioning("horovod.tensorflow")):
        util.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    assert not util.extension_available("mxnet", verbose=True)
    assert "horovod.mxnet is not available" in capsys.readouterr().out
    pytest.importorskip("torch", reason="torch is not installed")
    assert util.extension_available("torch")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")


def test_built_functions_report_the_available_parts() -> None:
    assert util.gloo_built() is True
    assert util.ddl_built() is False
    assert util.ccl_built() is False
    assert isinstance(util.nccl_built(), bool)
    assert isinstance(util.mpi_built(verbose=True), bool)


def test_the_rest() -> None:
    assert util.is_iterable([1])
    assert not util.is_iterable(1)
    calls = []
    once = util._cache(calls.append)
    once(1)
    once(1)
    assert calls == [1]
    assert (
        util.get_extension_full_path("/there/x.py", "lib") == f"/there/lib{util.get_ext_suffix()}"
    )
    util.check_installed_version("torch", "1.0")
    with pytest.raises(KeyError):
        util.check_installed_version("torch", "1.0", KeyError())


def test_the_version_error_is_an_import_error() -> None:
    error = exceptions.HorovodVersionMismatchError("torch", "2.0", "1.0")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "1.0")
    assert mentions(str(error), "torch", "1.0", "2.0")
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync is True
