"""What gradients are on PyTorch: reduced where they stand, whatever they look like."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.backends import on

pytest.importorskip("torch", reason="torch is not installed")


def test_gradients_of_any_look_are_reduced() -> None:
    """One that is two variables' at once, one of another layout, a negative view, a small type, and a plain one."""

    def fn(rank: int) -> list[Any]:
        import keras
        import torch

        import farandole.keras as hvd

        shape = (160, 130)
        dtypes = ["float32"] * 4 + ["bfloat16", "float32"]
        variables = [keras.Variable(torch.zeros(shape), dtype=dtype) for dtype in dtypes]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
        optimizer.build(variables)
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
        assert (turned[0, 0], wide[0, 0]) == (rank + 2.0, rank + 5.0)  # these two could not be written to
        return found

    one, two = on("torch", 2, fn)
    assert one == two
    assert one[0] == [(-3.0, -3.0), (-3.0, -3.0), (-5.0, -5.0), (-7.0, -7.0), (-9.0, -9.0), (-11.0, -11.0)]
    assert one[1][0] == one[1][1] == (-6.0, -6.0)


def test_the_gradients_of_a_step_are_everybodys_afterwards() -> None:
    """As with DDP: norms that a program takes of them then are the same on all ranks."""

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
