"""A collective that fails again after each return to the last commit ends the job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.errors import JobFailedError
from farandole.job.elastic.options import ElasticOptions
from tests.job.launch.elastic.training import run_job
from tests.kits.messages import mentioning

pytestmark = pytest.mark.slow


def train() -> None:
    """Train with a different shape on rank 1 in step 3, and commit at each beginning."""
    hvd.init()
    state = ObjectState(step=0)

    @elastic.run
    def steps(state: Any) -> None:
        state.commit()
        while state.step < 5:
            wrong = hvd.rank() == 1 and state.step == 3
            hvd.allreduce(np.ones(7 if wrong else 2), name="loss")
            state.step += 1
            state.commit()

    steps(state)


def test_the_job_ends_with_the_reason() -> None:
    with pytest.raises(JobFailedError, match=mentioning("RepeatedFailureError", "loss", "7")):
        run_job(train, (), ElasticOptions(np=2, min_np=1, max_np=2), {"localhost": 2})
