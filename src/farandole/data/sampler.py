"""Samplers whose order does not depend on the number of ranks.

The order of an epoch is one permutation of the whole dataset. Rank r of n takes positions r, r + n,
r + 2n ..., so that batch k of n ranks with B/n samples each holds the same samples as batch k of
one process with B. The progress of a training run consists of two whole numbers, the epoch and the
position up to which samples are done, so that any number of ranks can resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.data.permutation import Permutation
from farandole.data.shares import refuse_shares
from farandole.errors import SettingsError, counted
from farandole.job import context
from farandole.strategies.shares.blocks import Shares, block
from farandole.strategies.shares.streams import seed_generators, stream

if TYPE_CHECKING:
    from farandole.base.types import Array

EVEN = ("pad", "drop", "weights")
_BLOCK = 1 << 14  # indices computed at a time


class DistributedSampler:
    """A drop-in replacement for ``torch.utils.data.DistributedSampler`` (any ``DataLoader`` takes
    it as ``sampler=``).

    ``dataset``: any object with a length, or the length itself. ``num_replicas`` and ``rank``: the
    number of ranks and this rank; by default the job's values at the start of the iteration.
    ``shuffle``: whether the order is a new permutation in each epoch, which depends on ``seed`` and
    the epoch. ``drop_last``: the same as ``even="drop"``. ``even``: the handling of samples that do
    not divide evenly among the ranks, by default "pad":

    - ``"pad"``: some samples are repeated, so that all ranks have the same number;
    - ``"drop"``: the last few are skipped in this epoch;
    - ``"weights"``: like "pad", and ``weights()`` returns the weight of each sample, so that
      averages over ranks equal one process's averages.

    Raises SettingsError for contradictory arguments.
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        even: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.length = dataset if isinstance(dataset, int) else len(dataset)
        self.shuffle = shuffle
        self.seed = seed
        self.even = even or ("drop" if drop_last else "pad")
        if self.even not in EVEN:
            raise SettingsError(
                f"even={even!r} cannot divide samples. Use one of {', '.join(EVEN)}"
            )
        if self.length < 0:
            raise SettingsError(
                f"dataset={dataset!r} must be a dataset or its length, not a negative number"
            )
        if (num_replicas is None) != (rank is None):
            raise SettingsError(
                f"num_replicas={num_replicas} and rank={rank} must be given together. Pass both or"
                " neither"
            )
        if rank is not None and not 0 <= rank < (num_replicas or 0):
            raise SettingsError(
                f"rank={rank} must be from 0 to num_replicas - 1 = {(num_replicas or 0) - 1}"
            )
        self._told = None if rank is None or num_replicas is None else (rank, num_replicas)
        # Rank, size and session of the job for which the remaining samples were divided.
        self._dealt: tuple[int, int, str] | None = None
        self.epoch = 0
        self.position = 0  # samples done in the epoch's order, on all ranks together
        self._base = 0  # start of the iteration

    # The interface of a data loader's sampler.

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices, from the position of the last ``reset`` on."""
        rank, size = self._divide()
        if self._told is None and type(self) is not ElasticSampler:
            refuse_shares(type(self).__name__)
        count, base, left, epoch = self._count(), self._base, self.length - self._base, self.epoch
        order = Permutation(self.length, self.seed, epoch) if self.shuffle else None
        for begin in range(0, count, _BLOCK):
            steps = np.arange(begin, min(begin + _BLOCK, count), dtype=np.int64)
            positions = base + (steps * size + rank) % left
            yield from (positions if order is None else order(positions)).tolist()

    def __len__(self) -> int:
        """Return the number of samples that this rank takes until the epoch ends."""
        self._divide()
        return self._count()

    # Progress of the training.

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch. The current epoch, if it is partly done (after ``load_state_dict``),
        resumes at its position.
        """
        if epoch != self.epoch or self.position >= self.length:
            self.position = 0
        self.epoch = epoch
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record batch ``batch_idx``, counted from 0 at the last ``reset``, as done on all ranks,
        with ``batch_size`` samples each.
        """
        _, size = self._divide()
        done = self._base + min((batch_idx + 1) * batch_size, self._count()) * size
        self.position = max(self.position, min(done, self.length))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Record ``len(indices)`` more samples as done on every rank."""
        _, size = self._divide()
        self.position = min(self.position + len(indices) * size, self.length)

    def reset(self) -> None:
        """Divide the remaining samples among the present ranks."""
        self._base = self.position
        self._dealt = None

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of its samples that are done."""
        return {"epoch": self.epoch, "processed_num": self.position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict()``, which may come from a job with a different number of
        ranks.

        Raises SettingsError if its position is not within the dataset.
        """
        position = int(state_dict["processed_num"])
        if not 0 <= position <= self.length:
            raise SettingsError(
                f"processed_num={position} is not within the dataset's"
                f" {counted(self.length, 'sample')}: the state belongs to another dataset"
            )
        self.epoch = int(state_dict["epoch"])
        self.position = position
        self.reset()

    # Weights.

    def weights(self, batch_idx: int, batch_size: int) -> Array:
        """Return the weight of each sample of this rank's batch: float32, as many as the batch has
        samples.

        ``batch_idx``: the batch, counted from 0 at the last ``reset``. ``batch_size``: the samples
        per rank. The average over ranks of ``sum(weights * values)`` is the mean of ``values`` over
        the batch of all ranks, each sample once: use a loss per sample (``reduction="none"``), and
        Average. Without padding all weights are 1 / batch size.
        """
        rank, size = self._divide()
        steps = np.arange(
            batch_idx * batch_size, min((batch_idx + 1) * batch_size, self._count()), dtype=np.int64
        )
        if not steps.size:
            return np.empty(0, dtype=np.float32)
        left = self.length - self._base
        real = min((int(steps[-1]) + 1) * size, left) - int(steps[0]) * size
        weight = size / real if self.even == "weights" else 1 / len(steps)
        own = (
            steps * size + rank < left
            if self.even == "weights"
            else np.ones(len(steps), dtype=bool)
        )
        weights: Array = np.where(own, np.float32(weight), np.float32(0))
        return weights

    def _count(self) -> int:
        assert self._dealt is not None
        left, size = self.length - self._base, self._dealt[1]
        return left // size if self.even == "drop" else -(-left // size)

    def _divide(self) -> tuple[int, int]:
        """Return rank and size. If they have changed, or ``init()`` was called again, divide the
        remaining samples again.
        """
        world = self._told or (context.rank(), context.size())
        # After a reset, the program iterates from the beginning, even with the same number of
        # ranks.
        session = "" if self._told else context.session_id()
        if (*world, session) != self._dealt:
            self._base = self.position
            self._dealt = (*world, session)
        return world


class ElasticSampler(DistributedSampler):
    """Horovod's sampler for elastic jobs: samples recorded as done are not seen again after ranks
    join or leave.

    Call ``record_batch`` after each batch, and ``set_epoch`` at the *end* of an epoch. ``dataset``,
    ``shuffle``, ``seed`` and ``even``: see ``DistributedSampler``. ``batch_size``: the loader's
    batch size, required with ``--fixed-global-batch``.

    In a job with a fixed global batch of V shares, share i of a batch holds the samples that rank i
    of V ranks would see. A rank yields its shares one after another, and the global generators of
    Python, numpy and PyTorch are seeded before each of them. The last batch of an epoch is full:
    some samples are repeated, or skipped with ``even="drop"``.
    """

    def __init__(
        self,
        dataset: Sized | int,
        shuffle: bool = True,
        seed: int = 0,
        *,
        even: str = "pad",
        batch_size: int | None = None,
    ) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed, even=even)
        self.batch_size = batch_size
        self._recorded = 0  # samples of this rank's shares of the current global batch

    def __iter__(self) -> Iterator[int]:
        shares = self._shares()
        if shares is None:
            yield from super().__iter__()
            return
        for index, _ in self._by_shares(shares, seeding=True):
            yield index

    def streams(self) -> Iterator[tuple[int, int]]:
        """Yield this rank's indices, each with a 64-bit seed for random augmentation of the sample.
        The seed depends on the epoch and the sample's position in it.

        Only in a job with a fixed global batch.
        """
        shares = self._shares()
        assert shares is not None
        for index, place in self._by_shares(shares, seeding=False):
            yield index, stream(self.seed, self.epoch, place)

    def __len__(self) -> int:
        shares = self._shares()
        if shares is None:
            return super().__len__()
        left = self._batches(shares) - self._first_batch(shares)
        return max(0, left) * shares.held * self._share_size()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``, with no samples done."""
        self.epoch = epoch
        self.position = 0
        self.reset()

    def reset(self) -> None:
        """Divide the remaining samples among the present ranks. Shares of an incomplete global
        batch are computed again.
        """
        super().reset()
        self._recorded = 0

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record one more batch as done on all ranks, with ``batch_size`` samples each. With a
        fixed global batch, record each share; the samples are done when the rank's last share is.

        ``batch_idx`` is ignored, because some programs count batches from the beginning of the
        epoch, and others from the point where they resumed.
        """
        self._record(batch_size)

    def record_indices(self, indices: Sequence[int]) -> None:
        """Record ``len(indices)`` more samples as done on every rank."""
        self._record(len(indices))

    def _record(self, count: int) -> None:
        _, size = self._divide()
        shares = self._shares()
        if shares is None:
            self.position = min(self.position + count * size, self.length)
            return
        self._recorded += count
        own, whole = shares.held * self._share_size(), shares.total * self._share_size()
        batches, self._recorded = divmod(self._recorded, own)
        if batches:
            done = self.position // whole + batches
            self.position = min(done * whole, self.length)

    # A fixed global batch.

    def _shares(self) -> Shares | None:
        """Return this rank's shares of a fixed global batch; None without one."""
        rank, size = self._divide()
        total = context.shares()
        return block(rank, size, total) if total else None

    def _by_shares(self, shares: Shares, *, seeding: bool) -> Iterator[tuple[int, int]]:
        """Yield indices, each with its position in the epoch. ``seeding``: whether to seed the
        global generators before each share.
        """
        epoch, size = self.epoch, self._share_size()
        whole = size * shares.total
        order = Permutation(self.length, self.seed, epoch) if self.shuffle else None
        for batch in range(self._first_batch(shares), self._batches(shares)):
            for share in range(shares.begin, shares.end):
                if seeding:
                    seed_generators(stream(self.seed, epoch, batch, share))
                places = batch * whole + share + np.arange(size, dtype=np.int64) * shares.total
                positions = places % self.length
                indices = positions if order is None else order(positions)
                yield from zip(indices.tolist(), places.tolist(), strict=True)

    def _first_batch(self, shares: Shares) -> int:
        """Return the first unfinished global batch."""
        whole = self._share_size() * shares.total
        return self._batches(shares) if self._base >= self.length else self._base // whole

    def _batches(self, shares: Shares) -> int:
        """Return the number of global batches of an epoch."""
        whole = self._share_size() * shares.total
        return self.length // whole if self.even == "drop" else -(-self.length // whole)

    def _share_size(self) -> int:
        """Return the number of samples of a share. Raises SettingsError if it is unknown."""
        if self.batch_size is None or self.even == "weights":
            raise SettingsError(
                f"ElasticSampler(batch_size={self.batch_size}, even={self.even!r}) cannot divide"
                " samples with --fixed-global-batch: pass the loader's batch size, and"
                " even='pad' or 'drop'"
            )
        return self.batch_size

    # Attributes that Horovod programs read.

    @property
    def processed_num(self) -> int:
        """The number of samples of the epoch that are done, on all ranks together."""
        return self.position

    @processed_num.setter
    def processed_num(self, number: int) -> None:
        self.position = number

    @property
    def rank(self) -> int:
        return self._divide()[0]

    @property
    def num_replicas(self) -> int:
        return self._divide()[1]

    @property
    def num_samples(self) -> int:
        return len(self)

    @property
    def total_size(self) -> int:
        """The number of samples that all ranks together take until the epoch ends, including
        repetitions.
        """
        return len(self) * self.num_replicas
