"""``farandole predict``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole import cli
from farandole.errors import SettingsError
from farandole.inference import predict_parquet
from tests.inference.parquet_tools import read
from tests.kits.messages import mentioning


def test_the_command(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 1)
    torch.save(module, tmp_path / "m.pt")
    out = tmp_path / "out.parquet"
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "predict",
        "--model",
        str(tmp_path / "m.pt"),
        "--input",
        str(table),
    ]
    done = subprocess.run(
        [
            *command,
            "--output",
            str(out),
            "-np",
            "2",
            "--keep",
            "id",
            "--returns",
            "float",
            "--rows-per-file",
            "300",
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1000 rows in 4 files, ")
    rows = read(out)
    expected = (
        module(torch.tensor([[float(row), 1.0] for row in range(1000)])).detach().numpy()[:, 0]
    )
    np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=1e-5)
    assert list(rows[0]) == ["id", "prediction"]

    (tmp_path / "own.py").write_text(
        "def load():\n    return lambda x, n: x[:, 0] + n\n\n\ndef bad(x, n):\n    return x[0]\n"
    )
    other = [
        "predict",
        "--input",
        str(table),
        "--output",
        str(tmp_path / "o"),
        "--inputs",
        "x,id",
        "--returns",
        "double",
    ]
    assert (
        cli.main([*other, "--model", f"{tmp_path}/own.py:load", "--shape", "x=2", "--fill", "id=0"])
        == 0
    )
    assert capsys.readouterr().out.startswith("1000 rows in 2 files")
    for wrong, why in (
        (["--model", f"{tmp_path}/own.py:none"], "has no function 'none'"),
        (["--model", f"{tmp_path}/own.py:bad", "--overwrite"], "2 rows for 256"),
        (["--model", f"{tmp_path}/own.py:load", "--shape", "x"], "--shape x must be COLUMN=VALUE"),
        (
            ["--model", f"{tmp_path}/own.py:load", "--shape", "x=2,y"],
            "--shape x=2,y must be COLUMN=SIZE,SIZE,..., in",
        ),
        (["--model", f"{tmp_path}/own.py:load", "--shape=--"], "argument --shape: "),
        (["--model", f"{tmp_path}/own.py:load", "--threads=--"], "argument --threads: "),
        (["--model", ":"], "':' does not"),
        (["--model", "..own:load"], "'..own:load' does not"),
        (["--model", f"{tmp_path}/own.py:load", "-np", "0"], "-np 0 must be at least 1"),
    ):
        assert cli.main([*other, *wrong]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "np"), [(signal.SIGTERM, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 1)]
)
def test_an_ended_command_leaves_nothing_in_temporary_folders(
    tmp_path: Path, number: int, np: int
) -> None:
    """The folders are empty as soon as all processes have opened the model."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "own.py").write_text(
        "import time\ndef model(x):\n    time.sleep(x.max())\n    return x\n"
    )
    command = [
        sys.executable,
        "-m",
        "farandole",
        "predict",
        "--model",
        f"{tmp_path}/own.py:model",
        "--returns",
        "double",
    ]
    command += [
        "--input",
        str(tmp_path / "in.parquet"),
        "--output",
        str(tmp_path / "out"),
        "--overwrite",
    ]
    command += ["--rows-per-file", "1", "-np", str(np)]
    env = {**os.environ, "TMPDIR": str(temporary)}
    pq.write_table(pa.table({"x": [100.0] * np}), tmp_path / "in.parquet")
    with subprocess.Popen(command, env=env) as running:
        while len(list(tmp_path.glob("out/.part*"))) < np:
            assert running.poll() is None
            time.sleep(0.05)
        assert not list(temporary.iterdir())
        running.send_signal(number)
    assert running.returncode in (128 + signal.SIGTERM, -signal.SIGKILL)
    assert len(list(tmp_path.glob("out/.part*"))) == (number == signal.SIGKILL)
    pq.write_table(pa.table({"x": [0.0] * np}), tmp_path / "in.parquet")
    subprocess.run(command, env=env, check=True)
    assert [*temporary.iterdir(), *tmp_path.glob("out/.part*")] == []


def test_the_command_resumes_the_output_of_the_same_function(small: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = "import numpy as np\nclass Twice:\n    def __call__(self, x): return 2.0 * x\n"
    own.write_text(
        f"{text}def load():\n    return Twice().__call__\ndef first(value):\n    return"
        " np.array(value[0])\n"
    )
    command = [
        "predict",
        "--input",
        str(small),
        "--output",
        str(tmp_path / "out"),
        "--model",
        f"{own}:load",
    ]
    command += ["--decode", f"x={own}:first", "--returns", "double"]
    assert [cli.main(command), cli.main(command)] == [0, 0]
    assert [row["prediction"] for row in read(tmp_path / "out")] == [2.0 * row for row in range(6)]
    own.write_text(own.read_text().replace("2.0", "3.0"))
    assert cli.main(command) == 2

    named = [*command, "--model-version"]
    assert cli.main([*named, "7", "--overwrite"]) == 0
    own.write_text(own.read_text().replace("3.0", "4.0"))
    assert cli.main([*named, "7"]) == 0  # all files are there
    assert [row["prediction"] for row in read(tmp_path / "out")] == [3.0 * row for row in range(6)]
    assert cli.main([*named, "8"]) == 2


def test_invalid_numbers_and_names_are_reported_immediately(small: Path, tmp_path: Path) -> None:
    for wrong, why in (
        ({"np": 0}, ("np=0", "1", "number")),
        ({"rows_per_file": 0}, ("rows_per_file=0", "1", "number")),
        ({"rows_per_file": 1.5}, "rows_per_file=1.5"),
        ({"threads": -1}, ("threads=-1", "0", "number")),
        ({"inputs": ["x", "x"]}, ("'x'", "inputs")),
        ({"keep": ["x", "x"]}, ("'x'", "name")),
        (
            {"returns": "a float, b float", "output_columns": ["p", "p"]},
            ("'p'", "columns"),
        ),
    ):
        options: dict[str, Any] = {"returns": "float", **wrong}
        with pytest.raises(SettingsError, match=mentioning(why)):
            predict_parquet(np.sqrt, str(small), str(tmp_path / "out"), **options)
    assert not (tmp_path / "out").exists()
