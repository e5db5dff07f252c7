"""Programs of Azure ML that train with TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="tensorflow is not installed")
pytest.importorskip("fsspec", reason="fsspec is not installed")

from azureml.core import Workspace
from azureml.core.compute import AmlCompute, ComputeTarget

from tests.compat_azureml.programs_of import copied, submitted
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow


def test_mnist_with_two_processes_on_two_nodes(offline: None, tmp_path: Path) -> None:
    config = AmlCompute.provisioning_configuration(vm_size="Standard_NC12", max_nodes=2)
    ComputeTarget.create(Workspace.from_config(), "gpu-K80-2", config)
    done = submitted(copied("mnist_horovod", tmp_path))
    assert mentions(done.stdout, "rank 0 of 4 at")
    assert mentions(done.stdout, "Streaming user_logs/std_log_process_0.txt")
    assert mentions(done.stdout, "Execution Summary")
    assert mentions(done.stdout, "losses: 3")  # every ten of 25 steps
