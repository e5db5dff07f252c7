"""Hugging Face's Trainer on Farandole's transports: one line before the TrainingArguments. A tiny,
randomly initialized Llama learns to count.

farandole run -np 2 python examples/torch_trainer.py
torchrun --standalone --nproc-per-node 2 examples/torch_trainer.py
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import farandole.torch.distributed  # noqa: F401  # not needed where Farandole is installed with pip

WORDS = 16


class Counting(Dataset):
    """Rows of consecutive numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(8) + index) % WORDS
        return {"input_ids": row, "labels": row}


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=8,
    )
    return LlamaForCausalLM(shape)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8, help="rows per process")
    arguments = parser.parse_args()

    # otherwise the Trainer creates a Gloo group on CPUs
    dist.init_process_group("farandole")
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=arguments.batch_size,
            learning_rate=0.02,
            report_to="none",
            save_strategy="no",
            logging_strategy="epoch",
            disable_tqdm=True,
        )
        trainer = Trainer(make_model(), settings, train_dataset=Counting())
        trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        weights = sum(float(each.detach().sum()) for each in trainer.model.parameters())
        print(f"losses {' '.join(f'{float(loss):.4f}' for loss in losses)}", flush=True)
        print(
            f"{dist.get_world_size()} processes on {dist.get_backend()}: weights {weights:.4f}",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
