"""A script of Lightning that continues from its checkpoint after a restart with fewer ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kits.command import run_command

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
pytestmark = pytest.mark.slow

# Rank 1 ends in the third epoch of the first start, and its host is then left with one slot.
SCRIPT = """
import json, os, signal, sys
import lightning.pytorch as pl
import torch
import farandole.torch.distributed
from lightning.pytorch.strategies import DDPStrategy

folder = sys.argv[1]
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        if self.current_epoch == 2 and restarts == 0 and self.global_rank == 1:
            with open(os.path.join(folder, "hosts.txt"), "w") as file:
                file.write("localhost:1")
            os.kill(os.getpid(), signal.SIGKILL)
        return (self.layer(batch[0]) - 1).square().mean()

    def on_train_epoch_start(self):
        if self.global_rank == 0:
            with open(os.path.join(folder, "epochs"), "a") as file:
                words = [restarts, self.trainer.world_size, self.current_epoch]
                file.write(json.dumps(words) + "\\n")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
keep = pl.callbacks.ModelCheckpoint(folder, save_last=True, every_n_epochs=1)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(process_group_backend="farandole"),
    max_epochs=4,
    callbacks=[keep],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = os.path.join(folder, "last.ckpt")
loader = torch.utils.data.DataLoader(rows, batch_size=2)
trainer.fit(Line(), loader, ckpt_path=last if os.path.exists(last) else None)
"""


def test_a_trainer_continues_with_fewer_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hosts.txt").write_text("localhost:2")
    bounds = ["--min-np", "1", "--max-np", "2", "-np", "2", "--max-restarts", "2"]
    hosts = ["--host-discovery-script", f"file:{tmp_path}/hosts.txt"]
    run_command(tmp_path, *bounds, *hosts)
    epochs = [json.loads(line) for line in (tmp_path / "epochs").read_text().splitlines()]
    assert epochs == [[0, 2, 0], [0, 2, 1], [0, 2, 2], [1, 1, 2], [1, 1, 3]]
