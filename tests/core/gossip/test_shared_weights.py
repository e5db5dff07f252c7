"""The numbers of averages in pairs."""

from __future__ import annotations

import numpy as np

from farandole.core.gossip.shared_weights import SharedWeights


def test_an_average_before_a_correction_counts_later() -> None:
    """Ranks agree on a mean; one of them continues, and averages with this rank before it has the
    mean.
    """
    one, other = (
        SharedWeights([np.full(2, value), np.full(1, value)], statistics=1) for value in (2.0, 6.0)
    )
    for shared in (one, other):
        shared.take([np.zeros(2), shared.flat[0][2:].copy()])
    other.correct([np.full(2, -2.0)], [np.full(1, 4.0)])
    lent = [flat.copy() for flat in other.flat]
    one.halve(lent)
    other.move(lent)
    one.correct([np.full(2, 2.0)], [np.full(1, 4.0)])
    for shared, mean in ((one, 5.0), (other, 3.0)):
        changes = [np.zeros(2), np.full(1, 4.0)]  # training went on from 4.0
        assert shared.take(changes) == 1
        assert [change.tolist() for change in changes] == [[mean] * 2, [mean]]
        assert shared.take([np.zeros(2), changes[1]]) == 0


def test_corrected_statistics_change_by_own_steps() -> None:
    shared = SharedWeights([np.zeros(1), np.array([2.0])], statistics=1)
    shared.move([np.array([0.0, -0.5])])  # another rank's average
    shared.correct([np.zeros(1)], [np.array([1.0])])  # what all ranks have
    found = np.array([1.25])
    shared.take([np.zeros(1), found])
    assert found.tolist() == [0.75]  # 2 - 0.5 - 1, and the 0.25 of the last step


def test_gamma_is_the_part_of_the_way_that_a_pair_goes() -> None:
    one, other = (SharedWeights([np.full(3, value)], gamma=0.5) for value in (0.0, 1.0))
    lent = [flat.copy() for flat in one.flat]
    other.halve(lent)
    one.move(lent)
    assert one.trained[0].tolist() == [0.25] * 3
    assert other.trained[0].tolist() == [0.75] * 3
