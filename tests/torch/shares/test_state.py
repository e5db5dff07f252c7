"""Gradients by share: the same bits for any number of ranks, in ordinary training loops."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.run_job import job
from tests.torch.shares.jobs import bits, with_shares

torch = pytest.importorskip("torch", reason="torch is not installed")


class Noisy(torch.utils.data.Dataset):  # type: ignore[misc]
    """Pictures with random changes."""

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        picture = torch.randn(1, 6, 6, generator=generator)
        return picture + torch.randn(1, 6, 6) + random.random(), index % 3


def network() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
    )


def trained(ranks: int, workers: int = 0, clip: float = 0.0, shares: int = 4) -> Any:
    """Return the bits of weights, statistics and momentum of each rank, and its counts."""

    def check(rank: int) -> Any:
        import farandole.torch as hvd

        with_shares(shares)
        torch.manual_seed(3)
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        loader = torch.utils.data.DataLoader(
            Noisy(), batch_size=3, shuffle=True, num_workers=workers
        )
        calls = []

        @hvd.elastic.auto(model, optimizer, loader, epochs=2, scheduler=scheduler)
        def train(state: Any, batch: Any) -> None:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            calls.append(state.batch)

        train()
        momenta = [optimizer.state[each]["momentum_buffer"] for each in model.parameters()]
        return bits(*model.state_dict().values(), *momenta), scheduler.last_epoch, len(calls)

    return job(ranks, check)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_any_number_of_ranks_trains_the_same_bits(clip: float) -> None:
    ((expected, steps, calls),) = trained(1, clip=clip)
    assert (steps, calls) == (6, 24)
    for ranks in (2, 3, 4):
        found = trained(ranks, clip=clip)
        assert [each[0] for each in found] == [expected] * ranks
        assert {each[1] for each in found} == {6}
        assert sum(each[2] for each in found) == 24


@pytest.mark.slow
def test_workers_change_samples_the_same_way() -> None:
    ((expected, _, _),) = trained(1, workers=2)
    assert [each[0] for each in trained(3, workers=1)] == [expected] * 3


def test_the_gradient_is_the_mean_over_all_shares() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        with_shares(5)
        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
        )
        steps, found = optimizer._farandole, []
        before = model.weight.detach().clone()
        for share in range(steps.shares.begin, steps.shares.end):
            optimizer.zero_grad()
            model(torch.tensor([[float(share), 1.0]])).sum().backward()
            gradient = model.weight.grad
            found.append(None if gradient is None else gradient.tolist())
            is_unchanged = torch.equal(model.weight, before)
            assert is_unchanged
            optimizer.step()
        return found, (before - model.weight).round(decimals=4).tolist(), steps.steps

    first, second = job(2, check)
    assert first == ([None, None, [[2.0, 1.0]]], [[2.0, 1.0]], 1)
    assert second == ([None, [[2.0, 1.0]]], [[2.0, 1.0]], 1)


def test_parameters_without_gradients_stay_without() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        with_shares(3)
        a, b, c = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b, c], lr=1.0), op=hvd.Sum)
        shares = optimizer._farandole.shares
        for share in range(shares.begin, shares.end):
            (a.sum() if share else a.sum() + 2 * b.sum()).backward()
            optimizer.step()
        return [a.tolist(), b.tolist(), c.grad is None]

    for ranks in (1, 2):
        assert job(ranks, check) == [[[-2.0] * 3, [-1.0] * 3, True]] * ranks


def loop(rank: int) -> Any:
    """Run a custom loop, with commits after each batch and an evaluation."""
    import farandole.torch as hvd

    with_shares(4)
    torch.manual_seed(3)
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    data = Noisy()
    sampler = hvd.elastic.ElasticSampler(data, batch_size=3)
    loader = torch.utils.data.DataLoader(data, batch_size=3, sampler=sampler)
    saves = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < 2:
            for inputs, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                sampler.record_batch(0, 3)
                state.commit()
                saves.append(state._handlers["sampler"]._saved["processed_num"])
            model.eval()
            with torch.no_grad():
                model(torch.ones(1, 1, 6, 6))
            model.train()
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0))
    return bits(*model.state_dict().values()), saves


def test_a_loop_of_the_program_commits_whole_steps() -> None:
    ((expected, saves),) = job(1, loop)
    assert saves[:8] == [0, 0, 0, 12, 12, 12, 12, 24]
    (bits_0, saves_0), (bits_1, saves_1), (bits_2, saves_2) = job(3, loop)
    assert bits_0 == bits_1 == bits_2 == expected
    assert saves_0[:4] == [0, 12, 12, 24]
    assert saves_1 == saves_2 == [12, 24, 26] * 2


def commits_with(every_batch: bool) -> int:
    """Count steps in a custom loop, and commit after every second one."""
    import farandole.torch as hvd

    with_shares(3)
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, count=0)
    for _ in range(4 * optimizer._farandole.shares.held):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        if every_batch or hvd.elastic.is_step_complete():
            state.count += 1
            if state.count % 2 == 0:
                state.commit()
    return int(state.count)


def test_steps_are_counted_when_they_are_complete() -> None:
    assert job(2, lambda rank: commits_with(every_batch=False)) == [4, 4]


def test_commits_at_different_steps_are_reported() -> None:
    with pytest.raises(Exception, match=mentioning("commit", "is_step_complete()")):
        job(2, lambda rank: commits_with(every_batch=True))


def checks_with(every_batch: bool) -> int:
    """Check for changed hosts after every second step, and never commit."""
    import farandole.torch as hvd

    with_shares(3)
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, count=0)
    for _ in range(4 * optimizer._farandole.shares.held):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        if every_batch or hvd.elastic.is_step_complete():
            state.count += 1
            if state.count % 2 == 0:
                state.check_host_updates()
    return int(state.count)


def test_host_updates_are_checked_at_the_same_steps() -> None:
    assert job(2, lambda rank: checks_with(every_batch=False)) == [4, 4]
    with pytest.raises(Exception, match=mentioning("check_host_updates()", "is_step_complete()")):
        job(2, lambda rank: checks_with(every_batch=True))


def test_going_back_in_the_middle_of_a_step() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        with_shares(4)
        torch.manual_seed(0)
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer)

        def share() -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 1, 6, 6)).square().sum().backward()
            optimizer.step()

        def step() -> list[bytes]:
            for _ in range(2):
                share()
            return bits(*model.state_dict().values())

        step()
        state.save()
        expected = step()
        state.restore()
        share()
        state.restore()
        return step() == expected

    assert job(2, check) == [True, True]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"op": "Adasum"}, ("op=ADASUM",)),
        ({"strategy": "local_sgd:2"}, ("strategy=local_sgd:2",)),
        ({"codec": "int8"}, ("codec=int8",)),
        ({"compression": "fp16"}, ("compression",)),
        ({"backward_passes_per_step": 2}, ("backward_passes_per_step=2", "--max-np")),
        ({"gradient_predivide_factor": 2.0}, ("gradient_predivide_factor=2.0",)),
    ],
)
def test_options_without_one_order_are_refused(
    options: dict[str, Any], says: tuple[str, ...]
) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        given = dict(options)
        for name in ("op", "compression"):
            if name in given:
                kind = hvd if name == "op" else hvd.Compression
                given[name] = getattr(kind, given[name])
        parameter = torch.nn.Parameter(torch.ones(1))
        hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), **given)

    with pytest.raises(Exception, match=mentioning("--fixed-global-batch", *says)):
        job(1, check, fixed_global_batch=True)


def misuse(kind: str) -> None:
    import farandole.torch as hvd

    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))

    def optimizer_of(parameters: Any) -> Any:
        return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))

    optimizer = optimizer_of(model.parameters())
    loss = model(torch.ones(2, 1)).sum()
    if kind == "twice":
        loss.backward(retain_graph=True)
        loss.backward()
    elif kind == "no backward":
        optimizer.step()
    elif kind == "closure":
        optimizer.step(lambda: loss)
    elif kind == "dropped":
        loss.backward()
        optimizer.zero_grad()
    elif kind == "two optimizers":
        parameter = torch.nn.Parameter(torch.ones(1))
        other = optimizer_of([parameter])
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 1)).sum().backward()
            optimizer.step()
            parameter.sum().backward()
            other.step()
    elif kind == "scaler":
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    elif kind == "sparse":
        table = torch.nn.Embedding(3, 2, sparse=True)
        held = optimizer_of(table.parameters())
        table(torch.tensor([0, 1])).sum().backward()
        held.step()
    else:
        norm = torch.nn.SyncBatchNorm(1)
        hvd.elastic.TorchState(model=norm, optimizer=optimizer)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("twice", ("backward()", "step()")),
        ("no backward", ("backward()",)),
        ("closure", ("closure",)),
        ("dropped", ("zero_grad()",)),
        ("two optimizers", ("optimizers", "groups")),
        ("scaler", ("GradScaler", "bfloat16")),
        ("sparse", ("sparse=False",)),
        ("norm", ("SyncBatchNorm", "BatchNorm")),
    ],
)
def test_programs_that_cannot_be_exact_are_refused(kind: str, says: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=mentioning("--fixed-global-batch", *says)):
        job(1, lambda rank: misuse(kind), fixed_global_batch=True)


def test_the_job_reports_its_guarantee() -> None:
    from farandole.torch.shares.guarantee import facts_of, objection

    own = facts_of([torch.ones(1)])
    threads = str(torch.get_num_threads())
    assert objection(own, [own, own]) == ""
    other = tuple((name, "77" if value == threads else value) for name, value in own)
    assert "77" in objection(own, [own, other])
    on_gpu = tuple((name, "cuda" if name == "device" else value) for name, value in own)
    assert "torch.use_deterministic_algorithms" in objection(on_gpu, [on_gpu])
