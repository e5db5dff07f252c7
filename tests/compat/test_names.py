"""Names that can be imported from ``horovod`` and ``sparkdl``, and the errors for others."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farandole.compat import runner
from tests.compat.test_migration import is_here
from tests.compat.tools import ROOT, SOURCE, code, python
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

MODULES = """
horovod horovod.common horovod.common.basics horovod.common.elastic horovod.common.exceptions
horovod.common.process_sets horovod.common.util horovod.data horovod.data.data_loader_base horovod.runner
horovod.runner.launch horovod.spark horovod.spark.conf horovod.spark.task
"""
TORCH_MODULES = """
horovod.torch horovod.torch.mpi_ops horovod.torch.functions horovod.torch.compression horovod.torch.optimizer
horovod.torch.sync_batch_norm horovod.torch.elastic horovod.torch.elastic.sampler horovod.torch.elastic.state
"""
FILES = sorted(SOURCE.rglob("*.py"))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements of a module, including the choice between Keras 2 and 3."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith(
            ("keras_2()", "== '__main__'")
        ):
            yield from (*node.body, *node.orelse)
        else:
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_packages_hold_names_and_no_logic(path: Path) -> None:
    for node in statements(ast.parse(path.read_text()).body):
        call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        assert (
            text or call or isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.Raise))
        ), ast.unparse(node)


def test_every_module_can_be_imported_and_has_its_listed_names() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    names = (MODULES + TORCH_MODULES).split()
    assert (
        code(
            f"import importlib\nfor name in {names}:\n    module = importlib.import_module(name)\n "
            "   assert all(hasattr(module, each) for each in getattr(module, '__all__', [])),"
            " name\nprint('all')"
        )
        == "all"
    )


def test_the_distributed_optimizer_class_is_for_isinstance_only() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    said = code(
        "import torch, horovod.torch as hvd\nfrom horovod.torch.optimizer import"
        " _DistributedAdasumOptimizer, _DistributedOptimizer\nhvd.init()\nplain ="
        " torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\nprint(isinstance(plain,"
        " hvd._DistributedOptimizer))\nprint(isinstance(hvd.DistributedOptimizer(plain),"
        " _DistributedOptimizer))\nprint(isinstance(hvd.DistributedOptimizer(plain, op=hvd.Adasum),"
        " _DistributedAdasumOptimizer))\nclass Scheduled(_DistributedOptimizer):\n    def"
        " __init__(self, params, named_parameters):\n        super(self.__class__,"
        " self).__init__(params, named_parameters)\nmade = type('SGD', (torch.optim.SGD,),"
        " dict(Scheduled.__dict__))\ntry:\n    made(plain.param_groups, [])\nexcept TypeError as"
        " error:\n    print(error)\nbasics = hvd.mpi_ops._basics\nprint([int(each) for each in"
        " (basics.Average, basics.Sum, basics.Adasum, basics.Product)])"
    ).splitlines()
    assert [*said[:3], said[4]] == ["False", "True", "True", "[0, 1, 2, 5]"]
    assert mentions(said[3], "SGD", "_DistributedOptimizer", "hvd.allreduce_async_")


def test_errors_name_horovod_after_import_horovod() -> None:
    said = code(
        "import horovod, farandole.numpy as hvd\nfrom farandole.errors import ShutDownError\n"
        "try:\n    hvd.rank()\nexcept ValueError as error:\n    print(error, ShutDownError())"
    )
    assert said.startswith(
        "Horovod has not been initialized; use hvd.init(). Horovod has been shut down. "
    )


def test_modules_without_a_framework_load_none() -> None:
    names = MODULES.split()
    assert code(f"import sys, {', '.join(names)}; print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow.keras"])
@pytest.mark.skipif(
    find_spec("tensorflow") is not None, reason="does not apply: TensorFlow is there"
)
def test_a_framework_that_is_not_installed_is_named(name: str) -> None:
    said = code(f"try:\n    import horovod.{name}\nexcept ImportError as error:\n    print(error)")
    assert said.startswith(
        "Extension horovod.tensorflow has not been built: tensorflow is not installed"
    )


# Other modules of Horovod 0.28.1 and of sparkdl: a name, or a folder with its modules.
ELSEWHERE = """
horovod.ray: adapter driver_service elastic elastic_v2 ray_logger runner strategy utils worker
horovod.runner.common: service.driver_service service.task_service util.codec util.config_parser util.env util.hosts
    util.host_hash util.network util.safe_shell_exec util.secret util.settings util.timeout util.tiny_shell_exec
horovod.runner.driver: driver_service
horovod.runner.elastic: constants discovery driver registration rendezvous settings worker
horovod.runner.http: http_client http_server
horovod.runner.task: task_service
horovod.runner.util: cache lsf network remote streams threads
horovod.runner: gloo_run js_run mpi_run run_task task_fn
horovod.spark.common: cache constants datamodule serialization
horovod.spark.data_loaders: pytorch_data_loaders
horovod.spark.driver: driver_service host_discovery job_id mpirun_rsh rendezvous rsh
horovod.spark.keras: bare datamodule optimizer remote tensorflow util
horovod.spark.lightning: datamodule legacy remote util
horovod.spark.task: gloo_exec_fn mpirun_exec_fn task_info task_service
horovod.spark.tensorflow: compute_worker
horovod.spark.torch: datamodule remote util
horovod.spark: gloo_run mpi_run runner
horovod.tensorflow.data: compute_service compute_worker
horovod.torch: mpi_lib_v2
sparkdl.xgboost: xgboost
"""


def elsewhere() -> list[str]:
    """Folders, and modules in them."""
    found = []
    for folder, names in re.findall(r"^(\S+): (.*(?:\n    .*)*)", ELSEWHERE, re.M):
        found += [
            *([] if folder in BUILT else [folder]),
            *(f"{folder}.{name}" for name in names.split()),
        ]
    return found


BUILT = {
    "horovod.runner",
    "horovod.spark",
    "horovod.spark.common",
    "horovod.spark.keras",
    "horovod.spark.lightning",
    "horovod.spark.task",
    "horovod.spark.torch",
    "horovod.torch",
}


def test_missing_horovod_modules_name_a_replacement() -> None:
    names = [name for name in elsewhere() if is_here(name)]
    assert len(names) > 60
    said = code(
        f"import importlib\nfor name in {names}:\n    try:\n        importlib.import_module(name)\n"
        "        print(name, 'is there')\n    except ModuleNotFoundError as error:\n       "
        " print(name, 'not found', error)\n    except ImportError as error:\n       "
        " print(error)\nimport sparkdl\nprint(sparkdl.__version__)\ntry:\n    from sparkdl import"
        " HorovodEstimator\nexcept ImportError as error:\n    print(error)\nprint(hasattr(sparkdl,"
        " 'anything'))"
    ).splitlines()
    assert len(said) == len(names) + 3
    of_modules, (version, of_estimator, anything) = said[:-3], said[-3:]
    begins = ("Extension horovod.", "Extension sparkdl.", "horovod.")
    assert [
        line for line in of_modules if not line.startswith(begins) or line.endswith("is there")
    ] == []
    assert all(
        "Alternative: " in line or "use horovod.run, horovodrun" in line for line in of_modules
    )
    assert (version, anything) == ("1.6.0", "False")
    assert mentions(of_estimator, "sparkdl.HorovodEstimator", "sparkdl.HorovodRunner")


@pytest.mark.parametrize("name", ["keras", "mxnet"])
def test_a_missing_framework_is_named_as_horovod_does(name: str) -> None:
    said = code(
        "import sys\n"
        f"sys.modules[{name!r}] = None\n"
        f"try:\n    import horovod.{name}\nexcept ImportError as error:\n    print(error)"
    )
    assert (
        said == f"Extension horovod.{name} has not been built: {name} is not installed (pip install"
        f" {name})"
    )


@pytest.mark.parametrize("distribution", ["horovod", "sparkdl"])
def test_it_refuses_to_run_next_to_the_real_horovod(distribution: str, tmp_path: Path) -> None:
    info = tmp_path / f"{distribution}-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.28.1\n"
    )
    done = python(
        "-c", f"import {distribution}", PYTHONPATH=os.pathsep.join([str(SOURCE), str(tmp_path)])
    )
    assert done.returncode == 1
    assert (
        f"ImportError: the distribution '{distribution}' 0.28.1 is installed in {tmp_path}"
        in done.stderr
    )
    assert mentions(
        done.stderr, f"pip uninstall -y {distribution} farandole-horovod", "pip install ./compat"
    )
    if distribution == "horovod":
        done = python(
            "-m", "farandole.compat.horovodrun", "-np", "1", "true", PYTHONPATH=str(tmp_path)
        )
        assert done.returncode == 2
        assert done.stderr.startswith(
            "horovodrun: the distribution 'horovod' 0.28.1 is installed in"
        )


class TestHorovodRunner:
    def test_local_processes_give_the_value_of_rank_0(self, tmp_path: Path) -> None:
        pytest.importorskip("torch", reason="torch is not installed")
        script = tmp_path / "cell.py"
        script.write_text(
            "from sparkdl import HorovodRunner\nimport torch\nimport horovod.torch as hvd\n"
            "def train(scale):\n    hvd.init()\n"
            "    return hvd.rank(), hvd.allreduce(torch.tensor(scale), op=hvd.Sum).item()\n"
            "if __name__ == '__main__':\n"
            "    print(HorovodRunner(np=-2, driver_log_verbosity='all').run(train, scale=2.5))\n"
        )
        done = python(script)
        assert (done.returncode, done.stdout) == (0, "(0, 5.0)\n"), done.stderr

    def test_the_names_of_databricks(self) -> None:
        names = "sparkdl.horovod:log_to_driver sparkdl.horovod.runner_base:HorovodRunner"
        assert (
            code(
                f"import importlib\nfor each in {names.split()}:\n    module, _, name ="
                " each.partition(':')\n    print(getattr(importlib.import_module(module),"
                " name).__module__)"
            )
            == "farandole.job.report.messages\nfarandole.spark.runner"
        )

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            ("np='2'", "np='2' is a str"),
            (
                "np=-1, driver_log_verbosity='loud'",
                "driver_log_verbosity='loud' must be 'all' or 'log_callback_only'",
            ),
            ("2", "TypeError"),
        ],
    )
    def test_horovodrunner_refuses_invalid_arguments(self, call: str, says: str) -> None:
        done = python("-c", f"from sparkdl import HorovodRunner; HorovodRunner({call})")
        assert done.returncode == 1
        assert says in done.stderr

    def test_the_error_without_pyspark_names_the_package(self) -> None:
        if importlib.util.find_spec("pyspark") is not None:
            pytest.skip("does not apply: pyspark is installed")
        done = python("-c", "from sparkdl import HorovodRunner; HorovodRunner(np=2).run(print)")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith("pip install pyspark")


def test_horovod_run_is_the_api_mode() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = python(Path(__file__).parent / "programs" / "api.py")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            "hosts='localhost:1', hostfile='f'",
            "Argument hosts and hostfile only allow one provided.",
        ),
        ("use_gloo=True, use_mpi=True", "Argument use_gloo and use_mpi only allow one set True."),
        ("min_num_proc=2", "np=1 is less than min_np=2"),
        ("max_np=3, reset_limit=0", "reset_limit=0"),
        ("min_np=1, cooldown_range=(5,)", "cooldown_range=(5,)"),
        ("num_proc=0", "np=0 must be >= 1"),
        ("executable='/usr/bin/other'", "ranks run the Python of this process"),
    ],
)
def test_arguments_of_horovod_run_that_cannot_be(call: str, says: str) -> None:
    done = python("-c", f"import horovod; horovod.run(print, {call})")
    assert done.returncode == 1
    assert says in done.stderr


def test_arguments_of_horovod_run_for_other_hosts_are_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(runner.api, "run", lambda *args, **options: given.update(options) or [])
    runner.run(
        print,
        num_proc=2,
        hosts="a:1,b:1",
        ssh_port=2222,
        ssh_identity_file="key",
        network_interface="eth0",
    )
    wanted = {
        "hosts": "a:1,b:1",
        "ssh_port": 2222,
        "ssh_identity_file": "key",
        "network_interfaces": "eth0",
    }
    assert wanted.items() <= given.items()


def test_arguments_of_horovod_run_for_elastic_jobs_are_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(runner.api, "run", lambda *args, **options: given.append(options) or [])
    bounds = {"min_num_proc": 2, "max_num_proc": 4, "host_discovery_script": "find.sh"}
    runner.run(print, num_proc=2, slots=1, reset_limit=3, cooldown_range=(10, 20), **bounds)
    runner.run(print, num_proc=2, slots=1, reset_limit=3)
    wanted = {
        "min_np": 2,
        "max_np": 4,
        "host_discovery_script": "find.sh",
        "slots_per_host": 1,
        "reset_limit": 3,
        "cooldown_range": "10:20",
    }
    assert wanted.items() <= given[0].items()
    assert not wanted.keys() & given[1].keys()


def test_the_distribution_can_be_built_and_installed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    done = subprocess.run(
        [
            *pip,
            "--no-build-isolation",
            "--no-index",
            "--target",
            str(tmp_path),
            str(ROOT / "compat"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"horovod", "sparkdl", "bin"}
    code = "import horovod, sparkdl; print(horovod.__file__, horovod.__version__)"
    assert (
        python("-c", code, PYTHONPATH=str(tmp_path)).stdout
        == f"{tmp_path}/horovod/__init__.py 0.28.1\n"
    )
    done = python(
        tmp_path / "bin" / "horovodrun", "-np", "2", "echo", "hello", PYTHONPATH=str(tmp_path)
    )
    assert sorted(done.stdout.splitlines()) == [
        "[0]<stdout>:hello",
        "[1]<stdout>:hello",
    ], done.stderr
