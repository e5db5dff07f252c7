"""Training with strategies and codecs that continues from the folder of an earlier job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farandole.core.api.commits import rank_files
from farandole.core.ps import client
from tests.kits.messages import mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow

STEPS, CUT = 13, 6  # the cut is between two exchanges
LOCAL = (
    "local_sgd:4",
    "local_sgd:4|topk:0.5",
    "diloco:4,momentum=0.5",
    "bmuf:4",
    "easgd:4",
    "easgd:4|int8",
    "gossip:ring,every=4",
    "ps:1|topk:0.5",
    "allreduce|topk:0.3",
    "allreduce|powersgd:1",
)
SERVERS = (
    "ps:1,optimizer=adam,lr=0.01",
    "ps:4,optimizer=adam,lr=0.01",
    "ps:1,optimizer=momentum,momentum=0.5",
    "ps:2,optimizer=adagrad",
)


def trained(
    ranks: int, specs: Sequence[str], steps: int, folder: Path | None = None, **settings: Any
) -> list[tuple[Any, list[str]]]:
    """Return each rank's weights and messages after all steps up to ``steps``."""

    def body(rank: int) -> Any:
        import farandole.torch as hvd

        torch.set_num_threads(1)
        torch.manual_seed(0)
        models = [torch.nn.Linear(5, 3) for _ in specs]
        optimizers = []
        for model, spec in zip(models, specs, strict=True):
            strategy, _, codec = spec.partition("|")
            inner = torch.optim.Adam(model.parameters(), lr=0.05)
            optimizers.append(
                hvd.DistributedOptimizer(
                    inner, model.named_parameters(), strategy=strategy, codec=codec or None
                )
            )
        named = {f"model{place}": model for place, model in enumerate(models)}
        named |= {f"optimizer{place}": one for place, one in enumerate(optimizers)}
        state = hvd.elastic.TorchState(step=0, **named)
        shown: list[str] = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                random = torch.Generator().manual_seed(1000 * state.step + rank)
                x = torch.randn(8, 5, generator=random)
                for model, optimizer in zip(models, optimizers, strict=True):
                    optimizer.zero_grad()
                    (model(x) - x[:, :3] ** 2).square().mean().backward()
                    optimizer.step()
                state.step += 1
                state.commit()

        with pytest.MonkeyPatch.context() as patch:
            for module in (client, rank_files):
                patch.setattr(
                    module.logger, "warning", lambda text, *args: shown.append(text % args)
                )
            train(state)
        return [[each.tolist() for each in model.parameters()] for model in models], shown

    path = "" if folder is None else str(folder)
    return job(ranks, body, store=True, commit_dir=path, commit_dir_seconds=1000.0, **settings)


def check_equal(specs: Sequence[str], found: list[Any], expected: list[Any]) -> None:
    for rank, ((mine, shown), (theirs, _)) in enumerate(zip(found, expected, strict=True)):
        differ = [spec for spec, a, b in zip(specs, mine, theirs, strict=True) if a != b]
        assert (rank, differ, shown) == (rank, [], [])


def test_local_weights_and_residuals_continue_exactly(tmp_path: Path) -> None:
    expected = trained(2, LOCAL, STEPS)
    trained(2, LOCAL, CUT, tmp_path)
    check_equal(LOCAL, trained(2, LOCAL, STEPS, tmp_path), expected)


def test_other_numbers_of_ranks_continue_from_rank_0(tmp_path: Path) -> None:
    trained(2, LOCAL[:1], CUT, tmp_path)
    found = trained(3, LOCAL[:1], CUT, tmp_path)
    assert all(weights == found[0][0] for weights, _ in found)
    ((message,), *others) = [shown for _, shown in found]
    assert mentions(message, f"commit {CUT}", "2 ranks", "3")
    assert others == [[], []]


def test_a_missing_file_of_a_rank_is_reported(tmp_path: Path) -> None:
    trained(2, LOCAL[:1], CUT, tmp_path)
    for each in tmp_path.glob("rank1-*"):
        each.write_bytes(b"damaged")
    (own, (message,)), (other, _) = trained(2, LOCAL[:1], CUT, tmp_path)
    assert own == other
    assert mentions(message, f"commit {CUT}", "rank 1")


@pytest.mark.parametrize("servers", [1, 3])
def test_optimizers_on_servers_continue_exactly(tmp_path: Path, servers: int) -> None:
    expected = trained(2, SERVERS, STEPS)
    trained(2, SERVERS, CUT, tmp_path, servers=2)
    check_equal(SERVERS, trained(2, SERVERS, STEPS, tmp_path, servers=servers), expected)
