"""A whole training step: in one process, and with the gradients of all ranks averaged by Farandole
or by the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.crew import Plan
from benchmarks.samples import ALONE, Case, interleave
from benchmarks.steps import MODELS, Team
from farandole.core.api.array_binding import ArrayBinding
from farandole.core.api.collectives import Collectives
from farandole.job import context

STEPS = 5
REPETITIONS = 31

barrier = Collectives(ArrayBinding()).barrier


def cases(team: Team, plan: Plan) -> Iterator[Case]:
    steps = 1 if plan.quick else STEPS
    repetitions = 3 if plan.quick else REPETITIONS
    for title, model in MODELS:
        turns = dict(team.turns(model))
        turns[ALONE] = only_on_rank_0(turns[ALONE])
        samples = interleave(turns, repetitions=repetitions, per_sample=steps, before=barrier)
        yield Case("step", title, samples, steps)


def only_on_rank_0(run: Callable[[], object]) -> Callable[[], object]:
    return run if context.rank() == 0 else lambda: None
