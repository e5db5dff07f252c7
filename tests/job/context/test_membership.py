"""Names of objects that are equal on ranks that stay and ranks that start later."""

from __future__ import annotations

from farandole.job.context.membership import ObjectNames


def test_new_ranks_name_their_objects_like_ranks_that_stay() -> None:
    stayed, started = ObjectNames(), ObjectNames()
    before = [stayed.next(), stayed.next()]
    for _ in range(3):  # three memberships
        with stayed.within():
            stayed.next()
    assert [started.next(), started.next()] == before == ["1", "2"]
    with stayed.within(), started.within():
        assert [stayed.next(), stayed.next()] == [started.next(), started.next()]
    assert stayed.next() == started.next() == "3"
