"""Lightning 2 on Farandole's transports: one argument of its DDPStrategy.

farandole run -np 2 python examples/torch_lightning.py
torchrun --standalone --nproc-per-node 2 examples/torch_lightning.py
"""

import argparse
import os

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch.distributed  # noqa: F401  # not needed where Farandole is installed with pip


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, index):
        rows, targets = batch
        loss = nn.functional.mse_loss(self.net(rows), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.print(
            f"epoch {self.current_epoch + 1}: loss {self.trainer.callback_metrics['loss']:.5f}"
        )

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> TensorDataset:
    rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(rows, rows.sum(1, keepdim=True).sin())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8, help="rows per process")
    arguments = parser.parse_args()

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # the number of processes on this host
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="farandole"),
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, DataLoader(data(), arguments.batch_size))
    if trainer.is_global_zero:
        weights = sum(float(each.detach().sum()) for each in model.parameters())
        print(
            f"{trainer.world_size} processes on {dist.get_backend()}: weights {weights:.5f}",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
