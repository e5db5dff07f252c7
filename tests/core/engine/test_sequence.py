"""Numbers for what users leave unnamed."""

from __future__ import annotations

from farandole.core.engine.sequence import SequenceNumbers


class Heard(list[int]):
    def add(self, number: int) -> None:
        self.append(number)

    def restart(self) -> None:
        self.clear()


def test_numbers_are_per_purpose_and_unique_after_a_meeting() -> None:
    numbers = SequenceNumbers()
    heard = numbers.recorded(Heard)
    assert [numbers.next(), numbers.next_call(), numbers.next()] == [1, 2, 3]
    assert [numbers.next_optimizer(), numbers.next_optimizer(), numbers.next_allocation()] == [
        1,
        2,
        1,
    ]
    assert heard == [2], "the program's own calls"
    assert numbers.recorded(Heard) is heard, "one hears for all"
    numbers.restart()
    assert heard == []
    first = numbers.next_call()
    assert first > 1 << 40, "numbers that no rank has used, however many calls it made"
    assert heard == [first]
    assert numbers.next_optimizer() == 3, (
        "a rank that had no data goes on with the optimizer of the others"
    )
    assert SequenceNumbers().next() == 1
