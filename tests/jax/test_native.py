"""JAX's own collectives on two processes joined by ``jax.distributed``: on CPUs over Gloo, on GPUs
by NCCL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.cli.machine import visible_gpus
from tests.job.launch.test_ssh import run
from tests.kits.hosts import hosts
from tests.kits.messages import mentioning

pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("optax", reason="optax is not installed")


@pytest.mark.parametrize(
    "platform",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not visible_gpus(os.environ), reason="no CUDA GPU")
        ),
    ],
)
def test_all_is_as_over_the_host(platform: str) -> None:
    program = Path(__file__).parent / "native_program.py"
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "run",
        "-np",
        "2",
        sys.executable,
        str(program),
        platform,
    ]
    env = {**os.environ, "JAX_PLATFORMS": platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("native: all as over the host") == 2


@pytest.mark.slow
def test_hosts_with_ipv6_alone() -> None:
    program = (
        "import jax, farandole.jax as hvd; hvd.init(); hvd.init_distributed();"
        " print(jax.process_count(), float(hvd.allreduce(jax.numpy.float32(hvd.rank()),"
        " op=hvd.Sum)))"
    )
    with hosts(2, families=(6,)) as two:
        words = (
            "run",
            "-np",
            "2",
            "-H",
            "a:1,b:1",
            "env",
            "JAX_PLATFORMS=cpu",
            sys.executable,
            "-c",
            program,
        )
        status, out, err = run(two, *words)
    assert (status, sorted(out.splitlines())) == (
        0,
        ["[0]<stdout>:2 1.0", "[1]<stdout>:2 1.0"],
    ), err


def test_programs_without_jax_distributed_are_plain() -> None:
    import jax.numpy as jnp

    import farandole.jax as hvd
    from farandole.jax import native

    hvd.init()
    try:
        assert not native.active()
        assert hvd.spmd(lambda x: hvd.allreduce(x) * 2)(jnp.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(ValueError, match=mentioning("process sets")):
            native.inside(
                native.Collective(native.Kind.ALLREDUCE, process_set=hvd.ProcessSet([0])),
                [jnp.ones(1)],
            )
    finally:
        hvd.shutdown()


def test_with_tls_nothing_goes_to_other_hosts_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    import farandole.jax as hvd
    from farandole.errors import SettingsError
    from farandole.jax import native
    from farandole.job.config import Settings

    for name, value in (("settings", Settings(tls=True)), ("size", 2), ("local_size", 1)):
        monkeypatch.setattr(native.context, name, lambda value=value: value)
    with pytest.raises(SettingsError, match=mentioning("--tls", "hosts")):
        hvd.init_distributed()
