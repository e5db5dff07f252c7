"""A reader for PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from farandole.data.parquet.feeds import mapped
from farandole.data.parquet.reader import Reader
from farandole.errors import DataError, SettingsError


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """This rank's batches as tensors.

    ``set_epoch``, ``state_dict`` and ``load_state_dict`` call the reader's methods.

    In a DataLoader, set ``batch_size=None`` and ``num_workers=0``: the reader has its own threads.
    DataLoader workers would copy the reader, and its epoch and position would not advance in this
    process.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            raise SettingsError(
                f"num_workers={worker.num_workers} is not supported: workers copy the reader, so"
                " the epoch of this process's reader would never advance. Use"
                " num_workers=0; the reader prefetches in threads (threads=)"
            )
        for batch in self.reader:
            yield mapped(_tensor, batch)

    def set_epoch(self, epoch: int) -> None:
        self.reader.set_epoch(epoch)

    def state_dict(self, steps: int | None = None) -> dict[str, int]:
        return self.reader.state_dict(steps)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.reader.load_state_dict(state)


def _tensor(name: str, array: Any) -> Any:
    if array.dtype == object:
        raise DataError(
            f"column {name!r} holds text, which PyTorch tensors cannot hold. Convert it to indexes"
            " first, or drop the column"
        )
    return torch.from_numpy(array)
