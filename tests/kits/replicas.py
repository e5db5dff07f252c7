"""Check a framework's state for the repair of replicas."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_state(state: Any, expected: list[str]) -> None:
    """Change a bit of each replica, repair it, and return to saved values.

    ``expected``: parts of the names of replicas that the state must have, in any order.
    """

    def digests() -> dict[str, int]:
        return {name: state.digest_of_replica(value) for name, value in state.replicas().items()}

    before, saved = digests(), state.saved_values()
    for part in expected:
        assert any(part in name for name in before), (part, sorted(before))
    for name in before:
        right = np.array(state.bytes_of_replica(state.replicas()[name]))
        wrong = right.copy()
        wrong[len(wrong) // 2] ^= 1
        state.overwrite_replicas({name: wrong})
        assert {key for key, found in digests().items() if found != before[key]} == {name}
        state.save()
        state.overwrite_replicas({name: right})
        assert digests() == before
        state.restore()  # the last save has the wrong bit
        assert digests() != before
        state.use_saved_values(saved)
        state.restore()
        assert digests() == before
