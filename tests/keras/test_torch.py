"""Gradients on PyTorch, with any layout, are reduced in place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.backends import on
from tests.kits.messages import mentioning

pytest.importorskip("torch", reason="torch is not installed")


def test_gradients_of_any_layout_are_reduced() -> None:
    """A gradient shared by two variables, one of a different layout, a negative view, a small type,
    and a plain one.
    """

    def fn(rank: int) -> list[Any]:
        import keras
        import torch

        import farandole.keras as hvd

        shape = (160, 130)
        dtypes = ["float32"] * 4 + ["bfloat16", "float32"]
        variables = [keras.Variable(torch.zeros(shape), dtype=dtype) for dtype in dtypes]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
        optimizer.build(variables)
        with variables[0].value.device:
            twice = torch.full(shape, rank + 1.0)
            turned = torch.full(shape[::-1], rank + 2.0).T
            negative = torch.imag(torch.conj(torch.full(shape, complex(0, -rank - 3.0))))
            small = torch.full(shape, rank + 4.0, dtype=torch.bfloat16)
            wide = torch.tensor(rank + 5.0).expand(shape)
        assert negative.is_neg()
        found = []
        for _ in range(2):
            optimizer.apply([twice.clone()] * 2 + [turned, negative, small, wide], variables)
            found.append([(float(each.value.min()), float(each.value.max())) for each in variables])
        # these two could not be written to
        assert (turned[0, 0], wide[0, 0]) == (rank + 2.0, rank + 5.0)
        return found

    one, two = on("torch", 2, fn)
    assert one == two
    assert one[0] == [
        (-3.0, -3.0),
        (-3.0, -3.0),
        (-5.0, -5.0),
        (-7.0, -7.0),
        (-9.0, -9.0),
        (-11.0, -11.0),
    ]
    assert one[1][0] == one[1][1] == (-6.0, -6.0)


def test_gradients_after_a_step_are_those_of_all_ranks() -> None:
    """As with DDP: norms that a program computes of them are equal on all ranks."""

    def fn(rank: int) -> Any:
        import keras
        import torch

        import farandole.keras as hvd
        from tests.keras import programs as p

        model = p.embedding(0)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        x, y = hvd.shard(*p.words(48))
        optimizer.build(model.trainable_variables)
        p.loss()(torch.as_tensor(y), model(torch.as_tensor(x))).backward()
        variables = model.trainable_variables
        with torch.no_grad():
            optimizer.apply([each.value.grad for each in variables], variables)
        return [each.value.grad.tolist() for each in variables]

    one, two = on("torch", 2, fn)
    assert one == two


def test_loaders_are_distributed() -> None:
    """Distributed loaders keep everything except their samples; loaders that would draw other
    samples are refused.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from farandole.keras.data import _part

    def init(number: int) -> None:
        """Initialise a worker."""

    rows = torch.arange(10.0)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=2, num_workers=1, worker_init_fn=init, prefetch_factor=3
    )
    part = _part(loader, 1, 2, False)
    assert (part.worker_init_fn, part.prefetch_factor, part.num_workers) == (init, 3, 1)
    assert list(part.sampler) == [1, 3, 5, 7, 9]
    for options in ({"replacement": True}, {"num_samples": 4}):
        sampler = torch.utils.data.RandomSampler(rows, **options)
        with pytest.raises(
            ValueError,
            match=mentioning("RandomSampler", "num_samples"),
        ):
            _part(torch.utils.data.DataLoader(rows, sampler=sampler), 0, 2, True)
