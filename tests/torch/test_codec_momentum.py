"""Codecs and strategies with PyTorch's optimizers: optimizers with momentum, and refused
combinations.
"""

from __future__ import annotations

import pytest

from tests.kits.messages import mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_codec_replaces_the_momentum_of_sgd(nesterov: bool) -> None:
    """With equal gradients of 1 and -1, which onebit sends exactly, steps grow to half of the
    momentum's sum: see ``codecs.momentum``.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
        groups = [{"params": weights[:1]}, {"params": weights[1:], "momentum": 0.0}]
        sgd = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=nesterov and not groups)
        sgd.param_groups[0]["nesterov"] = nesterov
        optimizer = hvd.DistributedOptimizer(sgd, codec="onebit")
        given = torch.tensor([1.0, -1.0, 1.0])
        for _ in range(10):
            optimizer.zero_grad()
            sum((weight * given).sum() for weight in weights).backward()
            optimizer.step()
        moved = sum(min((1 - 0.9 ** (step + 1)) / 0.1, 5) for step in range(10))
        assert torch.allclose(weights[0], -0.1 * moved * given)
        assert torch.allclose(weights[1], -0.1 * 10 * given)
        state = optimizer.state_dict()
        applied = state["farandole"]["codec"]["state"]["applied/allreduce.noname.0.0"]
        assert torch.allclose(applied, sgd.state[weights[0]]["momentum_buffer"])

    job(2, fn)


def test_an_optimizer_that_does_not_go_with_it_is_named() -> None:
    def fn(rank: int) -> list[str]:
        import farandole.torch as hvd
        from farandole.checks.finding import findings

        before = len(findings())
        for make, options in (
            (torch.optim.SGD, {"codec": "sign:0.25"}),
            (torch.optim.AdamW, {"codec": "topk:0.625"}),
            (torch.optim.SGD, {"strategy": "diloco:1,momentum=0.75"}),
        ):
            weight = torch.nn.Parameter(torch.zeros(3))
            momentum = {"momentum": 0.9} if make is torch.optim.SGD else {}
            inner = make([weight], lr=0.1, **momentum)
            optimizer = hvd.DistributedOptimizer(inner, **options)
            for _ in range(2):
                optimizer.zero_grad()
                weight.sum().backward()
                optimizer.step()
        return [each.message for each in findings()[before:] if each.code == "FAR031"]

    found, others = job(2, fn)
    assert others == [], "rank 0 logs"
    for message, *values in zip(
        found,
        ("sign:0.25", "topk:0.625", "diloco:1"),
        ("SGD", "AdamW", "2.8"),
        ("0.9", "int8", "0.9"),
        strict=True,
    ):
        assert mentions(message, *values)


def test_weights_that_grow_by_the_outer_step_are_named() -> None:
    def fn(rank: int) -> list[str]:
        import farandole.torch as hvd
        from farandole.checks.finding import findings

        before = len(findings())
        weight = torch.nn.Parameter(torch.ones(3))
        inner = torch.optim.SGD([weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, strategy="bmuf:1,lr=8,momentum=0.875")
        norms = []
        for _ in range(6):
            optimizer.zero_grad()
            (-weight.square().sum() / 4).backward()
            optimizer.step()
            norms.append(weight.norm().item())
        assert norms == sorted(norms)
        return [each.message for each in findings()[before:] if "norm" in each.message]

    (found,), others = job(2, fn)
    assert mentions(found, "FAR031", "bmuf:1,lr=8,momentum=0.875")
    assert others == []


@pytest.mark.slow
def test_scripts_with_momentum_learn_with_each_codec() -> None:
    """Digits, as in a script for one process: SGD 0.1 with momentum 0.9. Accuracy with one seed
    varies by half a point, so two points are allowed.
    """
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    images, digits = datasets.load_digits(return_X_y=True)

    def fn(rank: int) -> dict[str, float]:
        import farandole.torch as hvd

        x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
        found = {}
        for codec in ("", "topk:0.05", "onebit", "randomk:0.1"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
            )
            sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), codec=codec)
            for _ in range(20):
                for rows in torch.randperm(1200).split(60):
                    own = rows[rank::2]
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
                    optimizer.step()
            right = model(x[1200:]).argmax(1) == y[1200:]
            found[codec] = right.float().mean().item() * 100
        return found

    found, _ = job(2, fn)
    assert min(found.values()) >= found[""] - 2, found  # 11 percent is chance
