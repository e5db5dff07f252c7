"""Negotiation is a pure function: the same messages give the same decisions in any rounds."""

from __future__ import annotations

import random

import pytest

from farandole.base.types import DType, Kind, ReduceOp, Request
from farandole.core.engine.mismatch import mismatch
from farandole.core.engine.negotiation import Negotiation
from tests.kits.messages import mentions


def ask(name: str, **kwargs: object) -> tuple[str, Request]:
    return name, Request(name, **{"kind": Kind.ALLREDUCE, "shape": (4,), **kwargs})  # type: ignore[arg-type]


def test_complete_requests_run_in_the_order_of_completion() -> None:
    negotiation = Negotiation(2)
    assert negotiation.step([[ask("a"), ask("b")], []]) == []
    assert negotiation.missing() == {"a": (1,), "b": (1,)}
    done = negotiation.step([[], [ask("b"), ask("a")]])
    assert [response.names for response in done] == [("b",), ("a",)]
    assert negotiation.idle


@pytest.mark.parametrize("seed", range(200))
def test_ranks_may_ask_in_any_order_in_any_rounds(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 4)
    names = [f"t{i}" for i in range(chance.randint(1, 12))]
    left = [chance.sample(names, len(names)) for _ in range(size)]
    copies = [Negotiation(size) for _ in range(size)]
    ran: list[str] = []
    while any(left):
        cuts = [chance.randint(0, len(mine)) for mine in left]
        messages = [
            [ask(name) for name in mine[:cut]] for mine, cut in zip(left, cuts, strict=True)
        ]
        left = [mine[cut:] for mine, cut in zip(left, cuts, strict=True)]
        answers = [copy.step(messages) for copy in copies]
        assert all(answer == answers[0] for answer in answers)
        ran += [name for response in answers[0] for name in response.names]
    assert sorted(ran) == sorted(names)
    assert copies[0].idle


def test_two_kinds_under_one_name_fail_when_all_ranks_came() -> None:
    negotiation = Negotiation(2)
    group = [
        ask(
            f"grouped_allgather.w_{i}of2",
            kind=Kind.ALLGATHER,
            group="grouped_allgather.w",
            group_size=2,
        )
        for i in (1, 2)
    ]
    assert negotiation.step([[ask("allreduce.w")], group]) == []
    assert negotiation.objections(0, ["allreduce.other"]) == [], "its program can still go on"
    assert negotiation.objections(0, ["allreduce.w"]) == ["w"]
    assert negotiation.step([[], []], [["w"], []]) == []
    assert negotiation.objections(0, ["allreduce.w"]) == [], "it has said so"
    (response,) = negotiation.step(
        [[], []], [[], negotiation.objections(1, ["grouped_allgather.w_1of2"])]
    )
    assert sorted(response.names) == [
        "allreduce.w",
        "grouped_allgather.w_1of2",
        "grouped_allgather.w_2of2",
    ]
    assert mentions(response.error, "Mismatched", "ALLREDUCE", "GROUPED_ALLGATHER")
    assert negotiation.idle


def test_kinds_in_another_order_under_one_name_are_no_conflict() -> None:
    negotiation = Negotiation(2)
    one, two = ask("allreduce.w"), ask("broadcast.w", kind=Kind.BROADCAST)
    assert negotiation.step([[one], [two]], [[], []]) == []
    assert negotiation.step([[], []], [["w"], []]) == []
    assert [response.error for response in negotiation.step([[two], [one]])] == ["", ""]
    assert negotiation.step([[one], [two]]) == []
    assert negotiation.step([[], []], [[], ["w"]]) == [], "objections of before do not count"
    several = Negotiation(3)
    assert several.step([[one], [two], []]) == []
    assert several.objections(0, ["allreduce.w"]) == [], "the third may still come with either"
    assert several.step([[], [], [ask("allocate.w", kind=Kind.ALLOCATE)]]) == []
    assert several.conflicts() == {}, "nor does the program know of that name"


def test_a_group_waits_for_its_last_member() -> None:
    negotiation = Negotiation(2)
    members = [ask(f"g_{i}of3", group="g", group_size=3) for i in range(3)]
    assert negotiation.step([members, members[:2]]) == []
    (response,) = negotiation.step([[], members[2:]])
    assert response.names == ("g_0of3", "g_1of3", "g_2of3")


def test_one_bad_member_fails_its_whole_group() -> None:
    negotiation = Negotiation(2)
    good, bad = (
        ask("g_0of2", group="g", group_size=2),
        ask("g_1of2", group="g", group_size=2, shape=(5,)),
    )
    (response,) = negotiation.step([[good, ask("g_1of2", group="g", group_size=2)], [good, bad]])
    assert response.names == ("g_0of2", "g_1of2")
    assert response.error.startswith("Mismatched ALLREDUCE tensor shapes")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_groups_of_different_sizes_fail_whole(swapped: bool, together: bool) -> None:
    negotiation = Negotiation(2)
    two = [ask(f"g.{i}", group="g", group_size=2) for i in "ab"]
    three = [ask(f"g.{i}", group="g", group_size=3) for i in "abc"]
    messages = [three, two] if swapped else [two, three]
    if not together:
        assert negotiation.step([messages[0], []]) == []
        messages[0] = []
    (response,) = negotiation.step([*messages[:2]])
    assert set(response.names) == {"g.a", "g.b", "g.c"}
    counts = (
        "3 tensors on rank 0 and 2 tensors on rank 1"
        if swapped
        else "2 tensors on rank 0 and 3 tensors on rank 1"
    )
    assert response.error.startswith(f"Mismatched groups: g has {counts}.")
    assert negotiation.idle
    (response,) = negotiation.step([two, two])
    assert response.error == ""


def test_groups_of_different_counts_fail_when_all_ranks_came() -> None:
    def group(size: int) -> list[tuple[str, Request]]:
        return [
            (
                f"g_{i}of{size}.7",
                Request(f"g_{i}of{size}", Kind.ALLREDUCE, group="g", group_size=size),
            )
            for i in range(1, size + 1)
        ]

    negotiation = Negotiation(4)
    assert negotiation.step([group(2), [JOINING], group(3), []]) == []
    (response,) = negotiation.step([[], [], [], group(2)])
    assert set(response.names) == {name for size in (2, 3) for name, _ in group(size)}
    assert response.error.startswith(
        "Mismatched groups: g.7 has 2 tensors on ranks 0, 3 and 3 tensors on rank 2. "
    )
    assert not any(name.startswith("g") for name in negotiation.missing())


def test_allgather_tells_every_rank_s_first_dimension() -> None:
    rows = [ask("x", kind=Kind.ALLGATHER, shape=(n, 3)) for n in (2, 0, 5)]
    (response,) = Negotiation(3).step([[row] for row in rows])
    assert response.parts == ((2, 0, 5),)


def test_alltoall_tells_every_rank_s_splits() -> None:
    one, two = (
        ask("x", kind=Kind.ALLTOALL, shape=(4,)),
        ask("x", kind=Kind.ALLTOALL, shape=(3,), splits=(3, 0)),
    )
    (response,) = Negotiation(2).step([[one], [two]])
    assert response.parts == ((2, 2), (3, 0))


BASE = Request("x", Kind.ALLREDUCE, shape=(2, 3))
GATHER = BASE._replace(kind=Kind.ALLGATHER)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            BASE,
            BASE._replace(dtype=DType.INT32),
            "Mismatched data types: One rank had type float32, but another rank had type int32.",
        ),
        (
            BASE,
            GATHER,
            "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER.",
        ),
        (
            BASE,
            BASE._replace(shape=(2, 4)),
            (
                "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2, 3], "
                "but another rank sent a tensor of shape [2, 4]."
            ),
        ),
        (
            GATHER,
            GATHER._replace(shape=(2,)),
            (
                "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 2, "
                "but another rank sent a tensor of rank 1."
            ),
        ),
        (
            GATHER,
            GATHER._replace(shape=(9, 4)),
            (
                "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal"
                " to 3, but another rank sent a tensor with dimension 1 equal to 4."
            ),
        ),
        (
            BASE,
            BASE._replace(prescale=0.5),
            (
                "Mismatched prescale and/or postscale factors: One rank sent factors (1.0, 1.0), "
                "but another rank sent factors (0.5, 1.0)."
            ),
        ),
        (
            BASE,
            BASE._replace(op=ReduceOp.MAX),
            (
                "Mismatched reduction operation: One rank sent reduction op SUM, but another rank"
                " sent reduction op MAX."
            ),
        ),
        (
            BASE._replace(kind=Kind.BROADCAST),
            BASE._replace(kind=Kind.BROADCAST, root=1),
            (
                "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank"
                " specified root rank 1."
            ),
        ),
        (
            BASE,
            BASE._replace(device="GPU"),
            (
                "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, "
                "but another rank specified device GPU."
            ),
        ),
        (
            GATHER._replace(shape=()),
            GATHER._replace(shape=()),
            "Process-set rank zero tried to ALLGATHER a rank-zero tensor.",
        ),
    ],
)
def test_disagreements_in_horovod_s_words(first: Request, second: Request, text: str) -> None:
    assert mismatch([first, second]).startswith(text)


def test_the_tensor_is_named_if_the_program_named_it() -> None:
    other = BASE._replace(op=ReduceOp.MAX)
    assert mismatch([BASE, other]).endswith(
        f"sent reduction op MAX. (tensor: {BASE.name}; rank 1 differs from rank 0)"
    )
    unnamed = BASE._replace(name="allreduce.noname"), other._replace(name="allreduce.noname")
    assert mentions(mismatch(unnamed), "MAX", "reduction")
    rowless = GATHER._replace(name="allgather.scores", shape=())
    assert "(allgather.scores has shape (), a single number" in mismatch([rowless, rowless])


def test_equal_requests_and_first_dimensions_match() -> None:
    assert mismatch([GATHER, GATHER._replace(shape=(7, 3))]) == ""
    assert mismatch([BASE, BASE, BASE]) == ""


JOINING = ("join", Request("join", Kind.JOIN))


def test_a_rank_that_joined_is_not_waited_for() -> None:
    negotiation = Negotiation(3)
    assert negotiation.step([[ask("a")], [JOINING], []]) == []
    (response,) = negotiation.step([[], [], [ask("a")]])
    assert (response.names, response.absent, response.error) == (("a",), (1,), "")
    assert not negotiation.idle, "nothing may be remembered while somebody has joined"


def test_joining_releases_requests_that_waited_for_that_rank() -> None:
    negotiation = Negotiation(2)
    assert negotiation.step([[ask("a"), ask("b")], []]) == []
    done = negotiation.step([[], [JOINING]])
    assert [(response.names, response.absent) for response in done] == [
        (("a",), (1,)),
        (("b",), (1,)),
    ]


def test_join_returns_the_last_rank_after_all_have_joined() -> None:
    negotiation = Negotiation(3)
    negotiation.step([[], [JOINING], []])
    negotiation.step([[], [], [JOINING]])
    (response,) = negotiation.step([[JOINING], [], []])
    assert (response.kind, response.parts) == (Kind.JOIN, ((0,),))
    assert negotiation.idle
    assert negotiation.step([[JOINING], [JOINING], [JOINING]])[0].parts == ((2,),), (
        "and may begin again"
    )


@pytest.mark.parametrize(
    "kind", [Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER, Kind.BARRIER]
)
def test_kinds_that_need_all_ranks_fail_after_join(kind: Kind) -> None:
    negotiation = Negotiation(2)
    negotiation.step([[JOINING], []])
    (response,) = negotiation.step([[], [ask("a", kind=kind)]])
    assert response.error.startswith(
        f"{kind.name.capitalize()} is not supported with Join at this time."
    )


def test_the_ranks_that_disagree_are_named() -> None:
    other = BASE._replace(op=ReduceOp.MAX)
    assert mismatch([None, BASE, BASE, other]).endswith("; rank 3 differs from rank 1)")
    assert mismatch([BASE, other, None, other]).endswith("; ranks 1, 3 differ from rank 0)")
    assert mentions(mismatch([BASE, *[other] * 10]), "ranks 1, 2, 3, 4, 5, 6, 7, 8", "rank 0")
    unnamed = [request._replace(name="allreduce.noname") for request in (BASE, other)]
    assert mentions(mismatch(unnamed), "have no name", "by number")
    assert mismatch(unnamed).endswith("(rank 1 differs from rank 0)")
