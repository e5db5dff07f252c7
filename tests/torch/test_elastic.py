"""The loop of elastic programs, and the state of a training with PyTorch, in jobs of a fixed
size.
"""

from __future__ import annotations

from typing import Any

import pytest

from farandole.core.api import elastic
from farandole.core.api.elastic import run, run_fn
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


class Notes:
    """A state that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


def test_a_loop_restarts_after_a_recoverable_error() -> None:
    ends: list[Exception] = [HorovodInternalError("lost"), HostsUpdatedInterrupt(skip_sync=True)]
    state = Notes()

    def train(state: Notes, lr: float) -> float:
        state.calls.append("train")
        if ends:
            raise ends.pop(0)
        return lr

    assert run_fn(train, lambda: state.calls.append("reset"))(state, lr=0.5) == 0.5
    assert state.calls == [
        "sync",
        "train",
        "restore",
        "reset",
        "on_reset",
        "sync",
        "train",
        "reset",
        "on_reset",
        "train",
    ]


@pytest.mark.parametrize("wrapped", ["PeerLostError", "HorovodInternalError", ""])
def test_a_loop_survives_a_loss_that_a_framework_wraps(wrapped: str) -> None:
    ends = [HorovodInternalError("lost")]
    state = Notes()

    def train(state: Notes) -> str:
        if ends:
            ends.clear()
            raise ValueError(f"XLA: {wrapped}: rank 1 died" if wrapped else "another mistake")
        return "done"

    looping = run_fn(train, lambda: state.calls.append("reset"))
    if wrapped:
        assert looping(state) == "done"
        assert state.calls == ["sync", "restore", "reset", "on_reset", "sync"]
    else:
        with pytest.raises(ValueError, match="another mistake"):
            looping(state)


def test_in_a_job_of_fixed_size_a_failed_collective_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import farandole.torch as hvd

    said: list[str] = []
    monkeypatch.setattr(
        "farandole.core.api.elastic.logger.warning", lambda text, *args: said.append(text % args)
    )

    @run
    def train(state: Notes) -> None:
        """Docs."""
        raise HorovodInternalError("lost")

    elastic._warn_of_fixed_size.cache_clear()
    hvd.init()
    try:
        with pytest.raises(HorovodInternalError, match="lost"):
            train(state := Notes())
        with pytest.raises(HorovodInternalError, match="lost"):
            train(Notes())
    finally:
        hvd.shutdown()
    assert (state.calls, train.__name__, train.__doc__) == (["sync"], "train", "Docs.")
    assert [mentions(text, "1", "fixed size") for text in said] == [True]


def test_a_state_goes_back_and_follows_rank_0() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        def train(model: Any, optimizer: Any) -> None:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        torch.manual_seed(rank)
        model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1 + rank, momentum=0.9),
            model.named_parameters(),
        )
        train(model, optimizer)
        sampler = hvd.elastic.ElasticSampler(range(8))
        sampler.record_batch(0, 1 + rank)
        state = hvd.elastic.TorchState(
            model=model, optimizer=optimizer, other=other, sampler=sampler, epoch=rank, seen=[rank]
        )

        def facts() -> Any:
            momentum = optimizer.state[model.weight]["momentum_buffer"]
            weights = [model.weight, other.weight, momentum]
            rate = optimizer.param_groups[0]["lr"]
            return (
                [each.detach().tolist() for each in weights],
                rate,
                sampler.processed_num,
                state.epoch,
                state.seen,
            )

        before = facts()
        train(model, optimizer)
        sampler.record_batch(1, 1)
        state.epoch, state.seen = 7, [7]
        state.seen.append(8)
        state.restore()
        restored = facts() == before
        state.sync()
        synced = facts()
        state.commit()
        train(model, optimizer)
        state.restore()
        state.model = torch.nn.Linear(2, 1)
        kept = state.model.weight.tolist()
        state.model.weight.data.zero_()
        state.restore()
        return restored, synced, facts() == synced, state.model.weight.tolist() == kept

    (restored, synced, again, assigned), other = job(2, check)
    assert (restored, again, assigned) == (True, True, True)
    assert other == (True, synced, True, True)
    assert synced[1:] == (0.1, 2, 0, [0])


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"op": "Sum"}, {"codec": "topk:0.5"}, {"op": "Adasum"}, {"strategy": "local_sgd:2"}],
    ids=str,
)
def test_a_restore_in_the_middle_of_a_step_drops_gradients(
    passes: int, options: dict[str, Any]
) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        def run(back: str) -> Any:
            torch.manual_seed(0)
            model, given = torch.nn.Linear(2, 1), dict(options)
            if "op" in given:
                given["op"] = getattr(hvd, given["op"])
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                model.named_parameters(),
                backward_passes_per_step=passes,
                **given,
            )

            def backward(factor: float) -> None:
                model(torch.tensor([[1.0 + rank, 2.0]]) * factor).square().sum().backward()

            def train() -> None:
                optimizer.zero_grad()
                for _ in range(passes):
                    backward(1.0)
                optimizer.step()

            train()
            state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
            for _ in range(2 * bool(back)):
                optimizer.zero_grad()
                backward(1000.0)
                if back == "synchronize":
                    optimizer.synchronize()
                state.restore()
                if back == "at once":  # no zero_grad() in between
                    for _ in range(passes):
                        backward(1.0)
                    optimizer.step()
                    state.restore()
            train()
            train()
            return [parameter.tolist() for parameter in model.parameters()]

        expected = run("")
        for back in ("restore", "at once", *(["synchronize"] if "strategy" not in options else [])):
            assert run(back) == expected, back

    job(2, check)


def test_going_back_after_a_backward_that_failed() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        state, seen = hvd.elastic.TorchState(model=model, optimizer=optimizer), []
        state.sync()

        def fail(parameter: Any) -> None:
            if not seen:
                seen.append(parameter)
                raise HorovodInternalError("lost")

        model.bias.register_post_accumulate_grad_hook(fail)
        with pytest.raises(HorovodInternalError, match="lost"):
            model(torch.ones(1, 2)).sum().backward()
        state.restore()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2) * (1 + 2 * rank)).sum().backward()
            gradient = model.weight.grad.tolist()
            optimizer.step()
        return gradient

    assert job(2, check) == [[[2.0, 2.0]]] * 2


def test_a_state_keeps_the_given_objects() -> None:
    """A copy of a scheduler would have a copy of the optimizer, so the training optimizer would
    keep its rate.
    """

    def check(rank: int) -> Any:
        import farandole.torch as hvd

        optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=1.0 + rank)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        losses: list[float] = []
        state = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler, losses=losses)
        given = state.scheduler is scheduler, state.losses is losses
        state.sync()
        synced = state.scheduler is scheduler, state.losses is losses
        optimizer.step()
        scheduler.step()
        state.losses.append(0.25)
        state.save()
        optimizer.step()
        scheduler.step()
        state.losses.append(0.5)
        rates = [optimizer.param_groups[0]["lr"]]
        state.restore()
        rates.append(optimizer.param_groups[0]["lr"])
        return given, synced, rates, scheduler.last_epoch, state.losses

    zero, one = job(2, check)
    assert zero == ((True, True), (True, True), [0.25, 0.5], 1, [0.25])
    assert one == ((True, True), (True, False), [0.25, 0.5], 1, [0.25])


def test_after_a_reset_a_reader_continues_from_its_position() -> None:
    from farandole.torch.elastic_state import TorchState

    class Reader:
        """Yields from the position of the last load, like the readers of Parquet files."""

        begin = done = 0

        def state_dict(self) -> dict[str, int]:
            return {"position": self.done}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.begin = self.done = state["position"]

    model = torch.nn.Linear(1, 1)
    state = TorchState(model=model, reader=Reader(), epoch=0)
    state.reader.done, state.epoch = 5, 3
    with torch.no_grad():
        model.weight.fill_(2.0)
    state.on_reset()
    assert (state.reader.begin, state.epoch, model.weight.item()) == (5, 3, 2.0)


def test_custom_types_are_handled_as_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from farandole.torch import elastic_state as of_torch

    class Scheduler:
        last = 3

        def state_dict(self) -> dict[str, int]:
            return {"last": self.last}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.last = state["last"]

    monkeypatch.setattr(of_torch, "_registry", of_torch.get_handler_registry())
    of_torch.set_handler_registry(
        [*of_torch.get_handler_registry(), (Scheduler, of_torch.StateHandler)]
    )
    state = of_torch.TorchState(scheduler=Scheduler())
    state.scheduler.last = 9
    state.restore()
    assert state.scheduler.last == 3


def test_an_interrupted_sync_does_not_mix_two_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    from farandole.torch import elastic_state as of_torch

    def receive_weights(state: Any, root_rank: int) -> None:
        for tensor in state.values():
            tensor.fill_(2.0)

    def lose(*args: Any, **kwargs: Any) -> None:
        raise HorovodInternalError("rank 0 was lost")

    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = of_torch.TorchState(model=model, optimizer=optimizer, epoch=1)
    monkeypatch.setattr(of_torch, "broadcast_parameters", receive_weights)
    monkeypatch.setattr(of_torch, "broadcast_optimizer_state", lose)
    with pytest.raises(HorovodInternalError):
        state.sync()
    state.restore()
    assert (model.weight.item(), optimizer.param_groups[0]["lr"], state.epoch) == (1.0, 0.5, 1)


def test_a_handler_for_horovod_synchronizes_its_own_way() -> None:
    from farandole.torch import elastic_state as of_torch

    class Doubling(of_torch.ModelStateHandler):
        def sync(self) -> None:
            with torch.no_grad():
                self.value.weight.mul_(2.0)
            self.save()

    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, 1.0)
    state = of_torch.TorchState(model=model, bcast=None)
    state._handlers["model"] = Doubling(model)
    state._bcast_object, state._rank = (lambda values: values), (lambda: 0)
    state.sync()
    assert model.weight.item() == 2.0


def test_a_packed_state_continues_in_another_process() -> None:
    from farandole.torch.elastic_state import TorchState

    def made() -> tuple[Any, Any]:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return TorchState(model=model, optimizer=optimizer, schedule=schedule, step=0), model

    def train(state: Any, model: Any) -> list[float]:
        for _ in range(3):
            state.optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            state.optimizer.step()
            state.schedule.step()
            state.step += 1
        return [*model.weight.flatten().tolist(), state.optimizer.param_groups[0]["lr"], state.step]

    (first, model), (second, other) = made(), made()
    train(first, model)
    first.save()
    packed = first.to_bytes(first.saved_values())
    expected = train(first, model)
    second.from_bytes(packed)
    second.restore()
    assert train(second, other) == expected
    with pytest.raises(ValueError, match=mentioning("schedule", "model")):
        TorchState(model=model, step=0).from_bytes(packed)
