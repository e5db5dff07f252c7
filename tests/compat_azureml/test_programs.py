"""Programs for Azure ML's SDK run on this host without a change."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from farandole.job.runs.home import RunsHome
from tests.compat_azureml.data import write
from tests.compat_azureml.programs_of import copied, submitted
from tests.compat_azureml.tools import python
from tests.kits.messages import mentions
from tests.kits.notebook import executed, outputs, printed
from tests.kits.web import web_server

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow


def images(path: Path) -> Path:
    """Write a ZIP file of images of two kinds and return its path."""
    draw = np.random.default_rng(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(32):
            kind, brightness = ("effusion", 160) if number % 2 else ("normal", 90)
            pixels = np.clip(draw.normal(brightness, 30, 64), 0, 255).astype(np.uint8)
            archive.writestr(f"{kind}/{number}.raw", pixels.tobytes())
    return path


def test_the_effusion_detector_on_four_nodes(offline: None, tmp_path: Path) -> None:
    images(tmp_path / "web" / "data.zip")
    folder = copied("effusion", tmp_path)
    with web_server(tmp_path / "web") as url:
        done = submitted(folder, f"{url}/data.zip")
    out = done.stdout
    assert mentions(out, "/data.zip")
    assert mentions(out, str(folder / "data" / "data.zip"))
    assert mentions(out, "status: Completed")
    assert mentions(out, "nodes: 4 Mpi")
    assert mentions(out, "inputs: Mount")
    assert mentions(out, "outputs/effusion.pt")
    assert mentions(out, "losses: 20")
    assert mentions(out, "epoch 20", "4 ranks")
    assert mentions(out, "effusion 1 True")
    # One line for the packages that differ, one for the image.
    assert len([line for line in done.stderr.splitlines() if "tensorflow-gpu" in line]) == 1
    assert len([line for line in done.stderr.splitlines() if "openmpi3.1.2" in line]) == 1
    assert (folder / "data" / "data.zip").exists()


def test_ddp_by_the_service_and_by_its_launcher(offline: None, tmp_path: Path) -> None:
    folder = copied("cifar_ddp", tmp_path)
    draw = np.random.default_rng(2)
    (folder / "cifar-10").mkdir()
    np.savez(
        folder / "cifar-10" / "images.npz",
        x=draw.normal(size=(64, 12)).astype(np.float32),
        y=draw.integers(0, 2, 64),
    )
    out = submitted(folder).stdout
    assert mentions(out, "by the service: Completed 4")  # two ranks, two epochs
    assert mentions(out, "by torch's launcher: Completed")
    assert mentions(out, "user_logs/std_log_process_1.txt")
    assert (folder / "downloaded.pt").exists()


def test_everything_that_a_run_records(offline: None, tmp_path: Path) -> None:
    folder = copied("everything", tmp_path)
    alone = python("train.py", "--rate", "0.1", cwd=folder)
    assert alone.returncode == 0, alone.stderr
    assert mentions(alone.stdout, "offline: True")
    printed = alone.stdout.splitlines()
    assert (
        printed[1 + [mentions(each, "scalar", "accuracy") for each in printed].index(True)]
        == "0.98"
    )
    assert mentions(alone.stdout, "image", "picture")
    out = submitted(folder).stdout
    assert mentions(out, "accuracy 0.98")
    assert mentions(out, "loss [1.0, 0.5, 0.333]")
    assert mentions(out, "thresholds [0.1, 0.5, 0.9]")
    assert mentions(out, "confusion {'actual': [1, 1], 'predicted': [0, 1]}")
    assert mentions(out, "curve {'x': [1, 2], 'y': [0.5, 0.7]}")
    assert mentions(out, "'matrix'", "'picture'", "'predictions'", "'residuals'", "'roc'")
    assert mentions(out, "tags {'kind': 'all', 'purpose': 'test'}")
    assert mentions(out, "'notes/notes.txt'", "'outputs/model.txt'")
    assert mentions(out, "weights")


def test_a_sweep_in_a_notebook_finds_its_best_run(
    offline: None, home: RunsHome, tmp_path: Path
) -> None:
    folder = copied("tuning", tmp_path)
    cells = (folder / "submit.py").read_text().split("\n\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbformat.write(notebook, folder / "submit.ipynb")
    done = executed(folder / "submit.ipynb", folder)
    shown = [output.data for output in outputs(done) if "data" in output]
    assert any("tuning_" in data.get("text/html", "") for data in shown)
    saved = nbformat.writes(done)
    assert home.path not in saved
    assert "token=" not in saved
    out = printed(done)
    assert mentions(out, "hyperdrive train.py")
    assert mentions(out, "children: 4 ['Completed', 'Completed', 'Completed', 'Completed']")
    assert mentions(out, "sorted: True")
    assert mentions(out, "best is first: True")
    assert mentions(
        out, "arguments: ['--epochs', '3', '--data', 'DatasetConsumptionConfig:rows'] True"
    )
    assert mentions(out, "metrics: ['accuracy', 'size'] True")
    assert mentions(out, "of all: True")
    assert mentions(out, "input: ['/train.py']")


def test_an_output_becomes_a_dataset(offline: None, tmp_path: Path) -> None:
    write(
        tmp_path / "source" / "write.py",
        "import os, sys\nprint(open(os.path.join(sys.argv[2], 'a.txt')).read())\n"
        "assert os.environ['made'] == sys.argv[1]\n"
        "open(os.path.join(sys.argv[1], 'b.txt'), 'w').write('b')\n",
    )
    write(tmp_path / "data" / "a.txt", "from the datastore")
    program = write(
        tmp_path / "submit.py",
        """
from azureml.core import Dataset, Experiment, ScriptRunConfig, Workspace
from azureml.data import OutputFileDatasetConfig

ws = Workspace.from_config()
store = ws.get_default_datastore()
store.upload("data", "there", show_progress=False)
output = OutputFileDatasetConfig("made", destination=(store, "made/{run-id}"))
output = output.register_on_complete("found")
reference = store.path("there").as_mount()
config = ScriptRunConfig("source", "write.py", arguments=[output, reference])
run = Experiment(ws, "outputs").submit(config)
run.wait_for_completion(show_output=True)
print(Dataset.get_by_name(ws, "found").to_path(), run.id)
""",
    )
    out = submitted(program.parent).stdout
    assert mentions(out, "from the datastore")
    assert mentions(out, "['/b.txt']")


INPUTS = """
import os, sys
from glob import glob
from azureml.core import Dataset, Run

run = Run.get_context()
mounted, copied, direct, several = sys.argv[2::2]
print("mounted", os.path.basename(mounted), open(mounted).read())
print("same", mounted == os.environ["one"] == run.input_datasets["one"])
open(copied, "w").write("changed")
found = run.input_datasets["itself"]
print("direct", found.to_path(), Dataset.get_by_id(run.experiment.workspace, direct).id == found.id)
print("several", sorted(map(os.path.basename, glob(os.path.join(several, "**", "*.gz"), recursive=True))))
print("variables", os.environ["AZUREML_DATASET_ENVIRONMENT_VARS"].count("input__"))
print("workspace", run.experiment.workspace.name, run.get_secret("db-password"))
"""


def test_inputs_of_a_run_in_every_mode(offline: None, tmp_path: Path) -> None:
    for name in ("a.txt", "train.gz", "b/test.gz"):
        write(tmp_path / "web" / name, name)
    write(tmp_path / "source" / "read.py", INPUTS)
    with web_server(tmp_path / "web") as url:
        program = write(
            tmp_path / "submit.py",
            f"""
from azureml.core import Dataset, Experiment, Keyvault, ScriptRunConfig, Workspace

ws = Workspace.create("inputs", show_output=False)
ws.get_default_keyvault().set_secret("db-password", "s3cret")
one = Dataset.File.from_files("file://{tmp_path}/web/a.txt")
gz = Dataset.File.from_files(["{url}/train.gz", "{url}/b/test.gz"]).register(ws, "mnist data")
arguments = ["--one", one.as_named_input("one").as_mount(), "--copy", one.as_download()]
arguments += ["--direct", one.as_named_input("itself"), "--gz", gz.as_mount("/tmp/elsewhere")]
run = Experiment(ws, "inputs").submit(ScriptRunConfig("source", "read.py", arguments=arguments))
run.wait_for_completion(show_output=True)
for each in run.get_details()["inputDatasets"]:
    print(each["consumptionDetails"]["inputName"][:7], each["consumptionDetails"]["mechanism"])
print(run.get_details()["runDefinition"]["arguments"][1])
""",
        )
        done = submitted(program.parent)
    out = done.stdout
    assert mentions(out, "mounted a.txt a.txt")
    assert mentions(out, "same True")
    assert mentions(out, "direct ['/a.txt'] True")
    assert mentions(out, "several ['test.gz', 'train.gz']")
    assert mentions(out, "variables 2")
    assert mentions(out, "workspace inputs s3cret")
    assert mentions(out, "one Mount")
    assert mentions(out, "input__ Download")
    assert mentions(out, "itself Direct")
    assert mentions(out, "DatasetConsumptionConfig:one")
    assert mentions(done.stderr, "'/tmp/elsewhere'")
    assert (tmp_path / "web" / "a.txt").read_text() == "a.txt"
