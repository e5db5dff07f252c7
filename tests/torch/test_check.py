"""Mistakes that silently train wrong models, or repeat the work of one rank, are reported on all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.kits.heard import heard
from tests.kits.messages import mentions
from tests.run_job import job

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))


def batch_of(seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 40, generator=generator), torch.randint(3, (8,), generator=generator)


def train(
    rank: int,
    model: Any,
    steps: int,
    *,
    lr: float = 0.1,
    before: Callable[[int, Any], Any] | None = None,
    same_data: bool = False,
    **options: Any,
) -> Any:
    """``before(step, model)`` may change the model before a step; its result, if not None, decides
    whether to step.
    """
    import farandole.torch as hvd

    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        named_parameters=model.named_parameters(),
        **options,
    )
    for step in range(1, steps + 1):
        wanted = before(step, model) if before is not None else None
        optimizer.zero_grad()
        images, labels = batch_of(step if same_data else 1000 * step + rank)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        if wanted is not False:
            optimizer.step()
    return optimizer


def broadcast(model: Any) -> Any:
    import farandole.torch as hvd

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model


def change(model: Any) -> None:
    with torch.no_grad():
        model[2].bias.add_(1.0)


def no_broadcast(rank: int) -> None:
    train(rank, model_of(rank), 2)


def late_load_at_the_start(rank: int) -> None:
    model = broadcast(model_of(rank))
    if rank == 0:
        change(model)
    train(rank, model, 2)


def late_load(rank: int) -> None:
    train(
        rank,
        broadcast(model_of(rank)),
        9,
        before=lambda step, model: change(model) if (rank, step) == (0, 6) else None,
    )


def learning_rate(rank: int) -> None:
    train(rank, broadcast(model_of(rank)), 4, lr=0.1 / (1 + rank))


def skipped_step(rank: int) -> None:
    train(rank, broadcast(model_of(rank)), 12, before=lambda step, model: (rank, step) != (1, 10))


def same_data(rank: int) -> None:
    train(rank, broadcast(model_of(rank)), 4, same_data=True)


def same_nan(rank: int) -> None:
    model = broadcast(model_of(rank))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    train(rank, model, 4)


def another_model(rank: int) -> None:
    """Step an optimizer of a different model than the trained one; and one that only sometimes has
    a gradient.
    """
    import farandole.torch as hvd

    old, new = broadcast(model_of(rank)), broadcast(model_of(rank))
    kinds = (torch.optim.SGD, old), (torch.optim.Adagrad, new)
    optimizers = [hvd.DistributedOptimizer(kind(each.parameters(), lr=0.1)) for kind, each in kinds]
    for step in range(12):
        images, labels = batch_of(1000 * step + rank)
        if not step % 9:
            torch.nn.functional.cross_entropy(new(images), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Dropping(torch.optim.SGD):
    """A model without gradients after a step."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.zero_grad()
        return loss


def gradients_that_steps_drop(rank: int) -> None:
    import farandole.torch as hvd

    model = broadcast(model_of(rank))
    optimizer = hvd.DistributedOptimizer(Dropping(model.parameters(), lr=0.1))
    for step in range(12):
        images, labels = batch_of(1000 * step + rank)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


class TwoSteps(torch.optim.Optimizer):
    """Like SAM: the program calls its two steps, and never ``step``."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)

    def second_step(self) -> None:
        self.base.step()
        self.zero_grad()


def steps_past(rank: int, **options: Any) -> None:
    import farandole.torch as hvd

    model = broadcast(model_of(rank))
    optimizer = hvd.DistributedOptimizer(TwoSteps(model.parameters(), 0.1), **options)
    for step in range(12):
        images, labels = batch_of(1000 * step + rank)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.second_step()


def steps_past_a_strategy(rank: int) -> None:
    steps_past(rank, strategy="local_sgd:2")


def steps_past_adasum(rank: int) -> None:
    import farandole.torch as hvd

    steps_past(rank, op=hvd.Adasum)


def steps_past_gradients(rank: int) -> None:
    """Step without gradients, which are exchanged nevertheless."""
    steps_past(rank)


def steps_within(rank: int) -> None:
    """``step`` calls that of a second optimizer; and an optimizer of half of the parameters steps
    next to it.
    """
    import farandole.torch as hvd

    class Lookahead(TwoSteps):
        def step(self, closure: Any = None) -> None:
            self.base.step()

    model = broadcast(model_of(rank))
    optimizer = hvd.DistributedOptimizer(
        Lookahead(model[2].parameters(), 0.1), strategy="local_sgd:2"
    )
    plain = torch.optim.SGD(model[0].parameters(), lr=0.0)
    for step in range(12):
        images, labels = batch_of(1000 * step + rank)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        plain.step()
        optimizer.step()
        optimizer.zero_grad()


def test_steps_past_the_one_that_exchanges() -> None:
    programs = steps_past_a_strategy, steps_past_adasum, steps_past_gradients, steps_within
    said, others = heard(2, *programs)
    assert others == [[]] * len(programs)
    assert [len(texts) for texts in said] == [1, 1, 0, 0], said
    assert mentions(said[0][0], "SGD", "10", "TwoSteps", "step()")
    assert "strategy 'local_sgd:2" in said[0][0]
    assert "wrap that one: DistributedOptimizer(SGD(...))" in said[0][0]
    assert mentions(said[1][0], "op=Adasum", "step()")


def all_is_well(rank: int) -> None:
    train(rank, broadcast(model_of(rank)), 20)


def test_mistakes_of_one_rank() -> None:
    programs = (
        no_broadcast,
        late_load_at_the_start,
        late_load,
        learning_rate,
        skipped_step,
        same_data,
        another_model,
        same_nan,
        gradients_that_steps_drop,
        all_is_well,
    )
    said, others = heard(2, *programs)
    assert others == [[]] * len(programs)  # rank 0 speaks
    start, loaded, drift, rate, skipped, data, idle, *nothing = said
    assert nothing == [[], [], []]
    assert [len(texts) for texts in said[:-3]] == [1] * 7, said  # once each
    assert mentions(start[0], "different weights")
    assert "rank 1 differs from rank 0 in 4 of 4 parameters, first in 0.weight" in start[0]
    assert mentions(start[0], "hvd.broadcast_parameters", "model.state_dict()")
    assert "rank 1 differs from rank 0 in 1 of 4 parameters, first in 2.bias" in loaded[0]
    assert mentions(loaded[0], "rank 0", "checkpoint")
    assert mentions(drift[0], "step 4", "step 8")
    assert "lr is 0.1 on rank 0, 0.05 on rank 1" in rate[0]
    assert mentions(skipped[0], "optimizer.step()", "steps")
    assert mentions(skipped[0], "step 11")  # at once, not at step 16
    assert mentions(data[0], "2", "gradients")
    assert "torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank())" in data[0]
    assert mentions(idle[0], "SGD", "10", "4", "steps")


def unnamed(rank: int) -> None:
    import farandole.torch as hvd

    model = model_of(rank)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    images, labels = batch_of(rank)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def test_a_finding_has_the_names_of_the_model_and_the_line() -> None:
    said, _ = heard(2, unnamed)
    place = unnamed.__code__
    lines = range(place.co_firstlineno, place.co_firstlineno + 9)
    assert mentions(said[0], "0.weight", "FAR001")
    assert any(f"{place.co_filename.rpartition('/')[2]}:{line})" in said[0][0] for line in lines)


def test_ranks_of_two_hosts_that_deal_by_local_rank() -> None:
    """Ranks 0 and 2 read one part, rank 1 the other."""

    def local(rank: int) -> None:
        train(rank % 2, broadcast(model_of(rank)), 5)

    said, *others = heard(3, local, all_is_well)
    assert others == [[[], []]] * 2
    assert [len(texts) for texts in said] == [1, 0], said
    assert mentions(said[0][0], "rank 2", "rank 0")


def test_unnamed_collectives_in_another_order() -> None:
    def one() -> None:
        import farandole.torch as hvd

        hvd.allreduce(torch.ones(3))

    def other() -> None:
        import farandole.torch as hvd

        hvd.allreduce(torch.zeros(3))

    def with_calls(rank: int, calls: Callable[[int], None]) -> None:
        train(rank, broadcast(model_of(rank)), 9, before=lambda step, model: calls(step))

    def swap(rank: int) -> None:
        with_calls(
            rank,
            lambda step: (
                [each() for each in ((one, other) if rank or step < 6 else (other, one))] and None
            ),
        )

    def branches(rank: int) -> None:
        import farandole.torch as hvd

        def calls(step: int) -> None:
            if rank:
                hvd.allreduce(torch.ones(3))
            else:
                hvd.allreduce(torch.zeros(3))
            if rank == step % 2:
                hvd.allreduce(torch.ones(3))
            else:
                hvd.allreduce(torch.zeros(3))
            for root in range(2):
                if root == rank:
                    hvd.broadcast(torch.ones(3), root)
                else:
                    hvd.broadcast(torch.zeros(3), root)
            (
                hvd.allreduce(torch.ones(3), name="named")
                if rank
                else hvd.allreduce(torch.zeros(3), name="named")
            )

        with_calls(rank, calls)

    def joined(rank: int) -> None:
        import farandole.torch as hvd

        def calls(step: int) -> None:
            for _ in range(rank + step % 3):
                one()
            hvd.join()
            one()
            other()

        with_calls(rank, calls)

    first, *others = heard(2, swap, branches, joined)[0]
    assert others == [[], []]
    [text] = first
    assert mentions(text, "collectives", "order")
    for asked in (one, other):
        assert mentions(text, f"{__file__}:{asked.__code__.co_firstlineno + 3}"), text


def test_the_ranks_that_differ_are_named_and_all_can_raise() -> None:
    def program(rank: int) -> str:
        from farandole.errors import RanksDifferError

        model = broadcast(model_of(rank))
        if rank == 2:
            change(model)
        with pytest.raises(RanksDifferError) as caught:
            train(rank, model, 1)
        train(rank, broadcast(model), 2)  # the engine continues
        return str(caught.value)

    texts = job(4, program, check="raise")
    assert len(set(texts)) == 1
    assert "rank 2 differs from ranks 0, 1, 3 in 1 of 4 parameters, first in 2.bias" in texts[0]


def test_ranks_with_other_optimizers_or_frozen_parameters() -> None:
    """If one rank has frozen a parameter, weights stay equal, with smaller gradients of the others."""

    def frozen(rank: int) -> None:
        model = broadcast(model_of(0))
        model[0].weight.requires_grad_(rank == 0)
        train(rank, model, 2)

    def another(rank: int) -> None:
        import farandole.torch as hvd

        model = broadcast(model_of(0))
        kind = torch.optim.Adam if rank else torch.optim.SGD
        optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.1))
        for step in range(2):
            optimizer.zero_grad()
            images, labels = batch_of(10 * step + rank)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    freezing, other = heard(2, frozen, another)[0]
    assert [text for text in freezing if mentions(text, "rank 0", "rank 1")], freezing
    assert [text for text in other if "the optimizer is SGD on rank 0, Adam on rank 1" in text], (
        other
    )


def test_differences_that_ranks_may_have_are_not_reported() -> None:
    """Batch statistics, frozen parameters, separate sets of ranks, ranks with less data."""

    def frozen(rank: int) -> None:
        model = model_of(0)
        model[0].weight.requires_grad_(False)
        with torch.no_grad():
            model[0].weight.add_(rank)
        train(rank, model, 4)

    def batch_norm(rank: int) -> None:
        torch.manual_seed(0)
        train(
            rank,
            torch.nn.Sequential(
                torch.nn.Linear(40, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
            ),
            8,
        )

    def alone(rank: int) -> None:
        import farandole.torch as hvd

        sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2])]
        train(rank, model_of(rank // 2), 5, process_set=sets[rank // 2])

    def joined(rank: int) -> None:
        import farandole.torch as hvd

        model = broadcast(model_of(rank))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in range(3):
            for step in range(4 + rank):
                optimizer.zero_grad()
                images, labels = batch_of(100 * epoch + 10 * step + rank)
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            last = hvd.join()
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)

    def left_alone(rank: int) -> None:
        """The only rank with remaining data has the same gradients as all ranks that are compared
        with it.
        """
        import farandole.torch as hvd

        train(rank, broadcast(model_of(rank)), 2 if rank else 20)
        hvd.join()

    def gradients_of_zeros(rank: int) -> None:
        import farandole.torch as hvd

        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            optimizer.zero_grad()
            (model(batch_of(rank)[0]) * 0.0).sum().backward()
            optimizer.step()

    programs = frozen, batch_norm, alone, joined, left_alone, gradients_of_zeros
    assert heard(3, *programs, dynamic_process_sets=True) == [[[]] * len(programs)] * 3


def test_checks_that_are_off_report_nothing() -> None:
    assert heard(2, no_broadcast, same_data, check="off") == [[[], []]] * 2


@pytest.mark.parametrize(
    "kind",
    [
        "sgd",
        "adamw",
        "lbfgs",
        "half",
        "scaled",
        "accumulated",
        "compressed",
        "sparse",
        "channels_last",
        "adasum",
        "sum",
    ],
)
def test_no_false_alarm(kind: str) -> None:
    """Equal actions on all ranks leave equal bits."""

    def program(rank: int) -> None:
        import farandole.torch as hvd

        model = torch.nn.Sequential(
            torch.nn.Embedding(20, 12, sparse=kind == "sparse"),
            torch.nn.Flatten(),
            torch.nn.Linear(48, 30),
            torch.nn.Unflatten(1, (30, 1, 1)),
            torch.nn.Conv2d(30, 4, 1),
            torch.nn.Flatten(),
        )
        if kind == "half":
            model = model.to(torch.bfloat16)
        if kind == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        broadcast(model)
        made = {"adamw": torch.optim.AdamW, "lbfgs": partial(torch.optim.LBFGS, max_iter=3)}.get(
            kind, torch.optim.SGD
        )
        passes = 2 if kind == "accumulated" else 1
        optimizer = hvd.DistributedOptimizer(
            made(model.parameters(), lr=0.01 / 1024 if kind == "scaled" else 0.01),
            backward_passes_per_step=passes,
            compression=hvd.Compression.fp16 if kind == "compressed" else hvd.Compression.none,
            op={"adasum": hvd.Adasum, "sum": hvd.Sum}.get(kind, hvd.Average),
        )
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def loss(step: int) -> Any:
            torch.manual_seed(7 * step + rank)
            return model(torch.randint(20, (6, 4))).float().square().mean()

        def closure() -> Any:
            optimizer.zero_grad()
            value = loss(1)
            value.backward()
            return value

        for step in range(9):
            if kind == "lbfgs":
                optimizer.step(closure)
                continue
            optimizer.zero_grad()
            for turn in range(passes):
                (loss(step + 100 * turn) * (1024.0 if kind == "scaled" else 1.0)).backward()
            optimizer.step()
            scheduler.step()

    assert heard(2, program) == [[[]]] * 2


def test_adasum_ranks_with_unequal_first_weights_are_reported() -> None:
    def adasum(rank: int) -> None:
        import farandole.torch as hvd

        train(rank, model_of(rank), 2, op=hvd.Adasum)

    (said,), _ = heard(2, adasum)
    assert len(said) == 1
    assert mentions(said[0], "different weights")


def renormed(rank: int) -> None:
    import farandole.torch as hvd

    torch.manual_seed(0)
    rows = torch.nn.Embedding(6, 3, max_norm=0.5)
    model = torch.nn.ModuleDict({"rows": rows, "out": torch.nn.Linear(3, 1)})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model["out"](rows(torch.tensor([rank, 2 + rank]))).square().sum().backward()
    optimizer.step()


def test_rows_that_forward_rescales_are_named() -> None:
    said, _ = heard(2, renormed)
    assert mentions(said[0], "Embedding", "max_norm=0.5", "rows.weight", "renorm(2, 0, 0.5)")
