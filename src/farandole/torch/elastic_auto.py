"""Elastic training of a PyTorch model by a decorator: ``hvd.elastic.auto``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from farandole.core.api.elastic import run
from farandole.data import ElasticSampler
from farandole.job import context
from farandole.torch.elastic_state import TorchState
from farandole.torch.helpers import check_loader, is_shuffled, with_sampler
from farandole.torch.shares.samples import seeded_by_sample
from farandole.torch.shares.state import ShareState

Step = Callable[[TorchState, Any], Any]


def auto(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    epochs: int = 1,
    commit_every: int = 1,
    after_epoch: Callable[[TorchState], Any] | None = None,
    **values: Any,
) -> Callable[[Step], Callable[[], TorchState]]:
    """Decorate ``step(state, batch)``, so that calling it without arguments trains for ``epochs``
    epochs, and continues when ranks are lost or added.

    Each sample is seen once per epoch, on any number of ranks; the last batches of an epoch may
    repeat samples to give all ranks the same number. With ``--fixed-global-batch`` the step is
    called for each share of a batch, and ``state.batch`` counts batches of all shares; random
    numbers, in the step and in the loader's workers, are the same for any number of ranks. Model,
    optimizer, position in the data and ``values`` are committed after every ``commit_every`` steps.
    After a loss all of them return to the last commit.

    Arguments:
        model: The model.
        optimizer: A ``hvd.DistributedOptimizer`` of the model.
        loader: A DataLoader over a dataset with a length; ``shuffle=True`` or ``False``, or an
            ``ElasticSampler``. Batch size is per rank. It must not have been distributed yet.
        epochs: The number of epochs.
        commit_every: Steps from one commit to the next.
        after_epoch: A function that is called with the state at the end of each epoch, on all
            ranks, before the commit.
        values: Further values of the state, as ``state.<name>``, such as a scheduler or
            ``best=0.0``. With ``--fixed-global-batch``, count steps only if
            ``hvd.elastic.is_step_complete()``: ranks have different numbers of shares.

    Returns the decorator. The decorated function returns the state (``TorchState``), whose
    ``epoch`` and ``batch`` count completed ones.

    Raises:
        TypeError: ``loader`` is not a DataLoader, or has an IterableDataset.
        ValueError: ``optimizer`` does not exchange gradients; ``loader`` has a batch_sampler or
            another sampler; ``epochs`` or ``commit_every`` is less than 1.
    """
    _check(optimizer, epochs, commit_every)
    loader, sampler = _elastic(loader)
    size = loader.batch_size
    assert size is not None
    steps = optimizer._farandole
    by_shares = isinstance(steps, ShareState)
    state = TorchState(
        model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, **values
    )

    def decorate(step: Step) -> Callable[[], TorchState]:
        @run
        def train(state: Any) -> None:
            while state.epoch < epochs:
                for batch in loader:
                    if by_shares:
                        steps.begin_share()
                    step(state, batch)
                    if by_shares:
                        steps.check_share_done()
                    sampler.record_batch(state.batch, size)
                    if not context.is_between_steps():
                        continue
                    state.batch += 1
                    if state.batch % commit_every == 0:
                        state.commit()
                if after_epoch is not None:
                    after_epoch(state)
                state.epoch += 1
                state.batch = 0
                sampler.set_epoch(state.epoch)
                state.commit()

        @functools.wraps(step)
        def trained() -> TorchState:
            train(state)
            return state

        return trained

    return decorate


def _check(optimizer: Any, epochs: int, commit_every: int) -> None:
    if not hasattr(optimizer, "_farandole"):
        raise ValueError(
            f"optimizer={type(optimizer).__name__} does not exchange gradients between ranks. Wrap"
            " it: optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
        )
    for name, value in (("epochs", epochs), ("commit_every", commit_every)):
        if value < 1:
            raise ValueError(f"{name}={value} must be >= 1")


def _elastic(loader: Any) -> tuple[DataLoader[Any], ElasticSampler]:
    """Return the loader with an elastic sampler, and that sampler."""
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, ElasticSampler):
        sampler = loader.sampler
        sampler.batch_size = loader.batch_size
        if not (context.shares() and loader.num_workers):
            return loader, sampler
    else:
        check_loader(loader)
        sampler = ElasticSampler(
            loader.dataset, shuffle=is_shuffled(loader), batch_size=loader.batch_size
        )
    if context.shares() and loader.num_workers:
        return seeded_by_sample(loader, sampler), sampler
    return with_sampler(loader, sampler), sampler
