"""Mistakes of programs, and the other ranks when one fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.heard import listening
from tests.kits.messages import mentioning, mentions
from tests.run_job import job
from tests.torch.test_optimizer import data, loss_of, net, part, values

torch = pytest.importorskip("torch", reason="torch is not installed")


def wrap_alone(**options: Any) -> Any:
    """Call DistributedOptimizer with these options on one rank."""
    import farandole.torch as hvd

    hvd.init()
    try:
        model = net()
        chosen = {key: value(model) if callable(value) else value for key, value in options.items()}
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **chosen)
    finally:
        hvd.shutdown()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"named_parameters": lambda model: model.parameters()},
            ValueError,
            ("named_parameters"),
        ),
        (
            {
                "named_parameters": lambda model: [
                    ("a", parameter) for parameter in model.parameters()
                ]
            },
            ValueError,
            ("named_parameters", "duplicates", "a"),
        ),
        (
            {"named_parameters": lambda model: list(model.named_parameters())[:-1]},
            ValueError,
            (("named_parameters", "number")),
        ),
        (
            {"groups": -1},
            ValueError,
            ("groups", "torch.Tensor"),
        ),
        (
            {"groups": "all"},
            ValueError,
            ("groups", "torch.Tensor"),
        ),
        ({"groups": [[1, 2]]}, ValueError, ("groups", "torch.Tensor")),
        (
            {"groups": lambda model: [[model.side.bias], [model.side.bias]]},
            ValueError,
            ("groups", "parameter"),
        ),
        (
            {"gradient_predivide_factor": 2.0, "op": 1},
            ValueError,
            ("gradient_predivide_factor", "Average"),
        ),
        ({"gradient_predivide_factor": -1.0}, ValueError, ("gradient_predivide_factor", "0")),
        ({"backward_passes_per_step": 0}, ValueError, ("backward_passes_per_step", "0")),
        (
            {"backward_passes_per_step": 2.5},
            ValueError,
            ("backward_passes_per_step", "2.5", "number"),
        ),
        (
            {"backward_passes_per_step": "2"},
            ValueError,
            ("backward_passes_per_step", "'2'"),
        ),
        ({"op": 3}, ValueError, ("Average", "Sum", "Adasum")),
        (
            {"op": lambda model: torch.distributed.ReduceOp.SUM},
            ValueError,
            ("RedOpType.SUM", "0"),
        ),
        (
            {"compression": "fp16"},
            ValueError,
            ("compression='fp16'", "hvd.Compression.fp16"),
        ),
        ({"process_set": [0, 1]}, TypeError, ("process_set=[0, 1]", "ProcessSet")),
        (
            {"op": 2, "gradient_predivide_factor": 2.0},
            ValueError,
            ("gradient_predivide_factor", "Average"),
        ),
    ],
    ids=str,
)
def test_arguments_that_cannot_be(
    options: dict[str, Any], error: type[Exception], text: str | tuple[str, ...]
) -> None:
    with pytest.raises(error, match=mentioning(text)):
        wrap_alone(**options)


def test_two_optimizers_of_one_parameter_that_add_up() -> None:
    """The second would sum the sums of the first. Averages of averages are right, as is one
    optimizer after another.
    """

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        def gradient(*ops: Any) -> float:
            weight = torch.nn.Parameter(torch.zeros(1))
            optimizers = [
                hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), op=op) for op in ops
            ]
            (weight * (rank + 1)).sum().backward()
            optimizers[-1].step()
            return weight.grad.item()

        for ops in ((hvd.Sum, hvd.Sum), (hvd.Average, hvd.Sum), (hvd.Sum, hvd.Average)):
            with pytest.raises(ValueError, match=mentioning("[1]", "DistributedOptimizer")):
                gradient(*ops)
        weight, found = torch.nn.Parameter(torch.zeros(1)), []
        for _ in range(2):
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), op=hvd.Sum)
            torch.optim.lr_scheduler.StepLR(optimizer, 1)  # refers to it, and it to that
            optimizer.zero_grad()
            (weight * (rank + 1)).sum().backward()
            optimizer.step()
            found.append(weight.grad.item())
            del optimizer
        return gradient(hvd.Average, hvd.Average), found

    assert job(2, train) == [(1.5, [3.0, 3.0])] * 2


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [(torch.optim.SGD, "the class SGD"), (torch.nn.Linear(2, 2), "a Linear")],
    ids=str,
)
def test_objects_other_than_optimizers_are_refused(optimizer: Any, found: str) -> None:
    import farandole.torch as hvd

    with pytest.raises(TypeError, match=mentioning("DistributedOptimizer", found)):
        hvd.DistributedOptimizer(optimizer)


def test_num_groups_is_deprecated_and_passes_are_checked() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups"):
        optimizer = wrap_alone(num_groups=2)
    with pytest.raises(ValueError, match=mentioning("backward_passes_per_step", "0")):
        optimizer.set_backward_passes_per_step(-1)


def test_wrapping_twice_and_wrapping_without_init() -> None:
    import farandole.torch as hvd

    with pytest.raises(ValueError, match=mentioning("distributed")):
        hvd.DistributedOptimizer(wrap_alone())
    with pytest.raises(ValueError, match=mentioning("hvd.init")):
        hvd.DistributedOptimizer(torch.optim.SGD(net().parameters(), lr=0.1))


def test_too_many_passes_and_dropped_gradients() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        batch = part(rank, 2, *data())
        loss_of(model, *batch).backward()
        text = ("backward_passes_per_step", "2", "gradient")
        with pytest.raises(AssertionError, match=mentioning(text)):
            loss_of(model, *batch).backward()
        # after a step that was skipped; it is the optimizer's that counts
        model.zero_grad(set_to_none=False)
        with pytest.raises(
            AssertionError,
            match=mentioning("SAM", "optimizer.zero_grad()", "set_to_none=False"),
        ):
            loss_of(model, *batch).backward()
        optimizer.zero_grad()  # all was reduced: nothing races
        optimizer.set_backward_passes_per_step(2)
        loss_of(model, *batch).backward()
        with pytest.raises(
            AssertionError, match=mentioning("optimizer.zero_grad()", "loss.backward()")
        ):
            optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()
        optimizer.set_backward_passes_per_step(1)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    one, other = job(2, train)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_two_threads_run_backward_concurrently() -> None:
    def train(rank: int) -> None:
        import threading

        import farandole.torch as hvd

        nets = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter for net in nets for parameter in net.parameters()], lr=0.1)
        )
        began, other_ended = threading.Event(), threading.Event()

        def backward(net: Any, wait: bool) -> None:
            hidden = net[0](torch.ones(4, 2))
            if wait:  # the gradients of net[1] are there

                def hold(gradient: Any) -> None:
                    began.set()
                    assert other_ended.wait(60)

                hidden.register_hook(hold)
            net[1](hidden).mean().backward()

        thread = threading.Thread(target=backward, args=(nets[0], True))
        thread.start()
        assert began.wait(60)
        with pytest.raises(AssertionError, match=mentioning("threads", "backward")):
            backward(nets[1], False)
        other_ended.set()
        thread.join()
        optimizer.step()
        optimizer.zero_grad()
        for each in nets:  # one after the other
            thread = threading.Thread(target=backward, args=(each, False))
            thread.start()
            thread.join()
        optimizer.step()

    job(2, train)


def test_ranks_with_different_parameters_are_reported() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        layer = torch.nn.Linear(3, 2 + rank)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.1), named_parameters=layer.named_parameters()
        )
        with pytest.raises(ValueError, match=mentioning("parameters")) as caught:
            layer(torch.ones(1, 3)).sum().backward()
        more = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(1 + rank))
        other = hvd.DistributedOptimizer(torch.optim.SGD(more.parameters(), lr=0.1))
        with pytest.raises(ValueError, match=mentioning("rank 0", "2", "rank 1", "4")):
            other.step()
        hvd.allreduce(torch.ones(2))  # the engine continues
        optimizer.zero_grad()
        with pytest.raises(
            hvd.HorovodInternalError, match=mentioning("shapes", "broadcast.bias", "rank 1")
        ):
            hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
        return str(caught.value)

    for text in job(2, train):
        assert "'weight' has shape (2, 3) on rank 0 and (3, 3) on rank 1" in text


def test_a_type_that_cannot_travel() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        with pytest.raises(ValueError, match=mentioning("torch.ComplexHalfTensor", "type")):
            hvd.DistributedOptimizer(
                torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex32))], lr=0.1)
            )

    job(2, train)


def test_a_model_converted_after_its_optimizer_was_wrapped() -> None:
    def fn(rank: int) -> str:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        for step in range(2):
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        model.double()  # the gradients, too, in their place
        x, y = part(rank, 2, *data(2))
        with pytest.raises(ValueError) as caught:
            loss_of(model, x.double(), y.double()).backward()
        return str(caught.value)

    assert all(mentions(text, "float32", "float64", "DistributedOptimizer") for text in job(2, fn))


def test_a_rank_that_dies_ends_the_step_of_the_others() -> None:
    def train(rank: int) -> None:
        import farandole.torch as hvd
        from farandole.job import context

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def steps(count: int) -> None:
            for _ in range(count):
                optimizer.zero_grad()
                loss_of(model, *part(rank, 2, *data())).backward()
                optimizer.step()

        if rank == 1:
            steps(1)
            context.engine().abort("rank 1 gave up")
            return
        with pytest.raises(hvd.HorovodInternalError):
            steps(2)  # it may be in the first one still

    job(2, train)


def test_a_failed_handle_that_is_never_synchronized() -> None:
    """The tensor is unchanged, and a program that continues takes it for the mean."""

    def ends(*, asks: bool) -> Any:
        def program(rank: int) -> Any:
            import farandole.torch as hvd

            with listening() as lines:
                handle = hvd.allreduce_async_(torch.ones(2 + rank), name="late")
                while not hvd.poll(handle):
                    pass
                if asks:
                    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
                        hvd.synchronize(handle)
                hvd.barrier()
                hvd.shutdown()
            return lines

        return job(2, program)

    for lines in ends(asks=False):
        assert len(lines) == 1, lines
        assert mentions(lines[0], "1", "collective(s)")
        assert "hvd.synchronize(handle)" in lines[0]
        assert "Mismatched ALLREDUCE tensor shapes" in lines[0]
    assert ends(asks=True) == [[], []]
