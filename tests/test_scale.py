"""The measurements and the model behind docs/scaling.md."""

from __future__ import annotations

import pytest

from benchmarks import model, simulated
from farandole.core.transports.tcp import overlay

GIVEN = model.Constants(
    message=1e-5,
    rank=1e-8,
    meet=1e-3,
    exchange=5e-4,
    value=1e-7,
    connection=1e-3,
    step=2e-4,
    link=0.9,
    copying=2e9,
)


def made(at: model.Constants) -> dict[str, object]:
    """Points that lie on the model."""
    trees = [(ranks, 2 * model.depth(ranks)) for ranks in (64, 256, 1024, 2048)]
    ringed = [(hosts, nbytes) for hosts in (2, 4) for nbytes in (1 << 24, 1 << 26)]
    work = (overlay.FANOUT + 1) * at.message
    return {
        "rounds": [
            {"ranks": 8, "path": 1.0, "steps": 1},
            *(
                {"ranks": ranks, "path": steps * work + ranks * at.rank, "steps": steps}
                for ranks, steps in trees
            ),
        ],
        "meetings": [
            {
                "ranks": ranks,
                "connect": ranks * at.meet,
                "exchange": ranks * (at.exchange + ranks * at.value),
            }
            for ranks in (100, 1000, 4000)
        ],
        "connection": at.connection,
        "allreduce": [
            *(
                {
                    "hosts": hosts,
                    "rate": 1e9,
                    "bytes": nbytes,
                    "seconds": 2 * (hosts - 1) * at.step
                    + model.crossing(nbytes, hosts, 1e9) / at.link,
                }
                for hosts, nbytes in ringed
            ),
            {"hosts": 2, "rate": 0.0, "bytes": 1 << 26, "seconds": (1 << 26) / at.copying},
        ],
    }


def test_a_fit_recovers_the_constants_of_the_model() -> None:
    assert model.fitted(made(GIVEN)) == pytest.approx(GIVEN, rel=1e-6)


def test_predictions_add_up_their_parts() -> None:
    assert model.agreement(8, GIVEN) == pytest.approx(model.LATENCY + 14e-5)
    assert model.agreement(1024, GIVEN) == pytest.approx(6 * (model.LATENCY + 11e-5) + 1024e-8)
    full = model.crossing(1e8, 128, 1e9) / GIVEN.link
    assert model.allreduce(1024, 1e9, GIVEN) == pytest.approx(254 * 2e-4 + full)
    copying = 2 * 127 / 128 * 1e8 / 8 / 2e9
    assert model.allreduce(1024, 4e11, GIVEN) == pytest.approx(254 * 2e-4 + copying)
    answers = 4 * 40 * 1024**2 * 8 / (1e9 * model.PAYLOAD)
    assert model.start(1024, 1e9, GIVEN) == pytest.approx(
        1024 * (1e-3 + 4 * (5e-4 + 1024e-7) + 1e-3) + answers
    )


@pytest.mark.parametrize(("size", "direct", "steps"), [(4, True, 1), (12, False, 4)])
def test_simulated_ranks_agree(size: int, direct: bool, steps: int) -> None:
    found = simulated.measure(size, direct=direct, repetitions=2)
    assert (found.ranks, found.steps) == (size, steps)
    assert found.connections == (3 if direct else 10)
    assert found.path > 0
    assert overlay.DIRECT == 32


def test_simulated_clients_meet_and_connect() -> None:
    found = simulated.meeting(5)
    assert found.ranks == 5
    assert min(found.connect, found.exchange) > 0
    assert simulated.connection(3) > 0
