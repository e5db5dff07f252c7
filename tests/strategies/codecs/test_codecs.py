"""Every codec: the kit, and a plain model of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Retractable, Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.errors import SettingsError
from farandole.job.plugins import registry
from farandole.strategies.codecs import claim, codec
from farandole.strategies.codecs.sign import Sign
from tests.kits.codec import CodecKit, gradients, step, stored
from tests.kits.messages import mentioning
from tests.kits.oracle import reduced
from tests.kits.worlds import two_levels
from tests.pool import procs, ranks, threads

SPECS = (
    "fp16",
    "bf16",
    "int8",
    "onebit",
    "sign",
    "topk:0.05",
    "randomk:0.1",
    "threshold:0.5",
    "powersgd:2",
)
NET = "net:topk:0.05"
LENGTH = 3000

Values = np.ndarray[Any, Any]


def kit(spec: str) -> type[CodecKit]:
    return type(
        f"Test{spec.partition(':')[0].title()}", (CodecKit,), {"codec": lambda self: codec(spec)}
    )


(
    TestFp16,
    TestBf16,
    TestInt8,
    TestOnebit,
    TestSign,
    TestTopk,
    TestRandomk,
    TestThreshold,
    TestPowersgd,
) = map(kit, SPECS)

TestSignum = kit("sign:0.9")


def test_the_kit_runs_every_codec() -> None:
    assert [spec.partition(":")[0] for spec in (*SPECS, NET)] == registry.names("codec")


class TestNet(kit(NET)):  # type: ignore[misc]
    """On hosts with two ranks and with one."""

    def run(self, size: int, body: Callable[[Transport, Any], Any]) -> list[Any]:
        return threads(size, two_levels(size), lambda transport: body(transport, codec(NET)))


def test_a_codec_between_hosts_gets_the_sum_of_each_host() -> None:
    """Two hosts of two ranks, with half of the tensor each: each half equals two ranks with these
    sums.
    """

    def body(transport: Transport) -> list[Values]:
        made = codec(NET)
        assert made is not None
        return [
            step(made, [flat(transport.rank, n)], transport, shapes=[(LENGTH,)])[0]
            for n in range(3)
        ]

    def half(place: int) -> Callable[[int, int], Values]:
        own = slice(place * LENGTH // 2, (place + 1) * LENGTH // 2)
        kind = np.float32
        return lambda host, n: (
            flat(2 * host, n)[own].astype(kind) + flat(2 * host + 1, n)[own].astype(kind)
        )

    first, second = (sums(NET.removeprefix("net:"), half(place), size=2) for place in (0, 1))
    for got in threads(4, two_levels(4), body):
        for number in range(3):
            assert got[number].tobytes() == first[number].tobytes() + second[number].tobytes()


def test_within_one_host_nothing_is_compressed() -> None:
    def body(transport: Transport) -> tuple[bool, int]:
        made = codec(NET)
        assert made is not None
        (got,) = step(made, [flat(transport.rank, 0)], transport, shapes=[(LENGTH,)])
        want = flat(0, 0).astype(np.float32) + flat(1, 0).astype(np.float32)
        return got.tobytes() == want.tobytes(), made.sent

    assert procs(2, body) == [(True, 0)] * 2


@pytest.mark.parametrize("spec", ["net", "net:", "net:net:int8", "net:nothing"])
def test_a_codec_between_hosts_has_to_be_named(spec: str) -> None:
    with pytest.raises(SettingsError, match="codec"):
        codec(spec)


def sums(
    spec: str, given: Callable[[int, int], Values], size: int = 3, steps: int = 3
) -> list[Values]:
    """Return rank 0's result of each step, for ``given(rank, step)`` as one flat tensor of float32."""

    def body(transport: Transport) -> list[Values]:
        made = codec(spec)
        assert made is not None
        return [
            step(made, [given(transport.rank, number)], transport, shapes=[(len(given(0, 0)),)])[0]
            for number in range(steps)
        ]

    found: list[Values] = ranks(size, body)[0]
    return found


def flat(rank: int, number: int) -> Values:
    return gradients(rank, number, [(LENGTH,)])[0]


@pytest.mark.parametrize(("spec", "dtype"), [("fp16", DType.FLOAT16), ("bf16", DType.BFLOAT16)])
def test_halves_are_rounded_once_each_way(spec: str, dtype: DType) -> None:
    (got,) = sums(spec, flat, steps=1)
    want = reduced([stored(flat(rank, 0), dtype) for rank in range(3)], dtype, ReduceOp.SUM)
    assert stored(got, dtype).tobytes() == want.tobytes()


def test_int8_is_off_by_a_step_at_most_and_right_on_average() -> None:
    same = flat(0, 0)
    scale = (
        np.repeat(np.abs(np.resize(same, (-(-LENGTH // 256), 256))).max(axis=1), 256)[:LENGTH] / 127
    )
    got = sums("int8", lambda rank, number: same, size=2, steps=200)
    # 2 ranks' and twice that again
    assert all((np.abs(each - 2 * same) <= 4.001 * scale + 1e-6).all() for each in got)
    assert np.abs(np.mean(got, axis=0) - 2 * same).max() <= 0.3 * scale.max()
    assert got[0].tobytes() == sums("int8", lambda rank, number: same, size=2, steps=1)[0].tobytes()


def one_bit(values: Values) -> Values:
    """Return Seide's quantisation in blocks of 512: for each number the mean of its sign."""
    out = np.empty_like(values)
    for begin in range(0, len(values), 512):
        block = values[begin : begin + 512]
        for side in (block >= 0, block < 0):
            if side.any():
                out[begin : begin + 512][side] = block[side].mean()
    return out


def test_onebit_is_its_model() -> None:
    size, share = 3, 1024  # 3000 numbers in slices of whole blocks
    residual, owed = np.zeros((size, LENGTH)), np.zeros(LENGTH)
    for number, got in enumerate(sums("onebit", flat)):
        values = residual + [flat(rank, number) for rank in range(size)]
        coded = np.array(
            [
                np.concatenate(
                    [one_bit(each[begin : begin + share]) for begin in range(0, LENGTH, share)]
                )
                for each in values
            ]
        )
        residual = values - coded
        total = coded.sum(axis=0) + owed
        want = np.concatenate(
            [one_bit(total[begin : begin + share]) for begin in range(0, LENGTH, share)]
        )
        owed = total - want
        close = np.abs(got - want) <= 1e-4
        assert close.mean() > 0.99, f"step {number}"  # one next to zero may fall on either side
        assert (np.sign(got) == np.sign(want))[close].all()


@pytest.mark.parametrize("most", [1e37, 2.5e38])
def test_onebit_sends_numbers_as_large_as_they_come(most: float) -> None:
    """Neither the sum of a block nor the difference of its two means fits into float32."""
    given = np.where(flat(0, 0) < 0, -most, most)
    (got,) = sums("onebit", lambda rank, number: given if rank else 0 * given, size=2, steps=1)
    assert np.allclose(got, given, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 4])
def test_sign_is_the_vote_of_the_majority(size: int) -> None:
    for number, got in enumerate(sums("sign", flat, size)):
        votes = sum(np.sign(flat(rank, number)) for rank in range(size))
        assert np.array_equal(got, size * np.sign(votes))


@pytest.mark.parametrize("size", [3, 4])
def test_sign_with_momentum_votes_by_the_momentum(size: int) -> None:
    """Tensors are grouped differently in each step; a tensor that some ranks lack counts as zeros,
    and one that all lack is unchanged.
    """
    shapes = [(40, 30), (700,), (9,), (5, 5)]
    units = ([0, 1, 2, 3], [3, 1], [0, 2], [1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3])
    # of a step: tensors, and by which ranks
    lacking = {1: {3: [0]}, 3: {2: range(size), 1: [1]}, 4: {0: range(size)}}

    def given(rank: int, number: int, place: int) -> Values:
        found = gradients(rank, number, shapes)[place].astype(np.float32)
        return found * (rank not in lacking.get(number, {}).get(place, ()))

    def body(transport: Transport) -> list[dict[int, Values]]:
        made, found = codec("sign:0.9"), []
        assert isinstance(made, Retractable)
        for number, members in enumerate(units):
            arrays = [given(transport.rank, number, place) for place in members]
            lack = lacking.get(number, {})
            absent = [place for place in members if transport.rank in lack.get(place, ())]
            results = step(
                made,
                arrays,
                transport,
                shapes=[shapes[place] for place in members],
                names=members,
                absent=absent,
            )
            made.retract([f"t{place}" for place in members if len(lack.get(place, ())) == size])
            found.append(dict(zip(members, results, strict=True)))
        return found

    momentum = [
        [np.zeros(int(np.prod(shape)), np.float32) for shape in shapes] for _ in range(size)
    ]
    for number, got in enumerate(ranks(size, body)[0]):
        for place, votes in got.items():
            if len(lacking.get(number, {}).get(place, ())) == size:
                continue  # this result is dropped
            for rank in range(size):
                own = momentum[rank][place]
                own[:] = np.float32(0.9) * own + np.float32(1 - 0.9) * given(rank, number, place)
            assert np.array_equal(
                votes, size * np.sign(sum(np.sign(each[place]) for each in momentum))
            ), number


def test_momentum_without_gradients_comes_to_an_end() -> None:
    """0.9 times the smallest numbers is themselves, rounded."""
    got = sums(
        "sign:0.9", lambda rank, number: np.full(8, 1.0 if number == 0 else 0.0), size=2, steps=900
    )
    assert (got[0] == 2).all()
    assert (got[600] == 2).all()
    assert (got[-1] == 0).all()


def chosen_by(spec: str, values: Values) -> Values:
    if spec.startswith("topk"):
        return np.argsort(np.abs(values))[-math.ceil(0.05 * len(values)) :]
    return np.flatnonzero(np.abs(values) >= 0.5)


@pytest.mark.parametrize("spec", ["topk:0.05", "threshold:0.5"])
@pytest.mark.parametrize("length", [LENGTH, 40_000])
def test_sparse_codecs_send_large_values_and_keep_the_rest(spec: str, length: int) -> None:
    def given(rank: int, number: int) -> Values:  # no two of one size
        return np.random.default_rng([rank, number]).standard_normal(length).astype(np.float32)

    residual = np.zeros((3, length), np.float32)
    for number, got in enumerate(sums(spec, given)):
        want = np.zeros(length, np.float32)
        for rank in range(3):
            residual[rank] += given(rank, number)
            places = chosen_by(spec, residual[rank])
            want[places] += residual[rank][places]
            residual[rank][places] = 0
        assert np.array_equal(got, want)


def test_randomk_sends_each_number_at_some_time() -> None:
    residual, seen = np.zeros((3, LENGTH), np.float32), np.zeros(LENGTH, int)
    for number, got in enumerate(
        sums("randomk:0.1", lambda rank, number: flat(rank, number) + 1, steps=80)
    ):
        places = np.flatnonzero(got)
        assert len(places) == math.ceil(0.1 * LENGTH)
        seen[places] += 1
        residual += np.array([flat(rank, number) + 1 for rank in range(3)], np.float32)
        assert np.allclose(got[places], residual.sum(axis=0)[places], rtol=1e-4, atol=1e-4)
        residual[:, places] = 0
    assert seen.min() >= 1
    assert seen.max() <= 30


def matrices(spec: str, given: Callable[[int, int], Values], steps: int) -> list[Values]:
    def body(transport: Transport) -> list[Values]:
        made, shape = codec(spec), given(0, 0).shape
        assert made is not None
        return [
            step(made, [given(transport.rank, number).reshape(-1)], transport, shapes=[shape])[
                0
            ].reshape(shape)
            for number in range(steps)
        ]

    found: list[Values] = ranks(3, body)[0]
    return found


def test_powersgd_sends_all_of_a_matrix_of_its_rank() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((40, 2)), rng.standard_normal((2, 50))
    wanted = [rank * left @ right for rank in (0, 1, 2)]
    (got,) = matrices("powersgd:2", lambda rank, number: wanted[rank], steps=1)
    assert np.abs(got - sum(wanted)).max() < 1e-4
    noisy = [each + rng.standard_normal(each.shape) for each in wanted]
    got, later = matrices(
        "powersgd:2", lambda rank, number: noisy[rank] if not number else 0 * noisy[rank], steps=2
    )
    base = np.linalg.svd(got)[0][:, :2]
    assert np.abs(base @ base.T @ sum(noisy) - got).max() < 1e-3
    rest = sum(noisy) - got  # what was left out is what the second step begins with
    base = np.linalg.svd(later)[0][:, :2]
    assert np.abs(base @ base.T @ rest - later).max() < 1e-3


def test_powersgd_converges_to_the_best_approximation() -> None:
    rng = np.random.default_rng(2)
    u, _ = np.linalg.qr(rng.standard_normal((60, 60)))
    v, _ = np.linalg.qr(rng.standard_normal((60, 60)))
    matrix = u * (0.5 ** np.arange(60)) @ v
    made = codec("powersgd:3")
    assert made is not None

    def body(transport: Transport) -> Values:
        for _ in range(8):  # the same again, without what is left over
            made.load_state_dict(
                {name: each for name, each in made.state_dict().items() if name[0] == "q"}
            )
            got = step(made, [matrix.reshape(-1)], transport, shapes=[(60, 60)])[0]
        return got.reshape(60, 60)

    found = ranks(1, body)[0]
    values = np.linalg.svd(matrix - found, compute_uv=False)
    assert values[0] == pytest.approx(0.5**3, rel=1e-3)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("nosuch", "unknown codec 'nosuch' (known: fp16, bf16,"),
        ("onebits", "did you mean"),
        ("topk:2", "more than 0 and at most 1"),
        ("topk:0", "more than 0 and at most 1"),
        ("randomk:nan", "more than 0 and at most 1"),
        ("topk", "codec='topk': topk needs an argument, as in name:argument"),
        ("int8:4", "codec='int8:4': int8 takes no argument"),
        ("sign:1", "momentum"),
        ("sign:-0.1", "less than 1"),
        ("sign:nan", "less than 1"),
        ("sign:much", "less than 1"),
        ("threshold:-1", "more than 0"),
        ("powersgd:1.5", "a whole number, more than 0"),
    ],
)
def test_a_codec_that_cannot_be(spec: str, text: str) -> None:
    with pytest.raises(SettingsError) as error:
        codec(spec)
    assert text in str(error.value)


@dataclasses.dataclass(frozen=True)
class Equal:
    spec = "equal"


def test_optimizers_cannot_take_turns_with_one_codec() -> None:
    one, other, mine, theirs = Equal(), Equal(), object(), object()
    for _ in range(2):
        claim(one, mine, ["w"])  # type: ignore[arg-type]
        claim(other, theirs, ["w"])  # type: ignore[arg-type]
    claim(one, theirs, ["w"])  # type: ignore[arg-type]
    claim(one, mine, ["x"])  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=mentioning("codec='equal'", "'w'"),
    ):
        claim(one, mine, ["v", "w"])  # type: ignore[arg-type]


def test_codecs_are_named_or_given() -> None:
    assert codec("") is codec(None) is None
    made = codec("topk:0.01")
    assert made is not None
    assert made.spec == "topk:0.01"
    assert codec(made) is made
    assert [Sign(momentum).spec for momentum in (0, "0", 0.9, "0.9")] == [
        "sign",
        "sign",
        "sign:0.9",
        "sign:0.9",
    ]


def test_sparse_codecs_refuse_indices_beyond_32_bits() -> None:
    values = np.broadcast_to(np.float32(1), 2**32 + 1)
    part: Any = SimpleNamespace(buffer=Buffer(values, values, DType.FLOAT32))
    with pytest.raises(ValueError, match=mentioning("topk", str(2**32 + 1), str(2**32))):
        codec("topk:0.05").payload(values, [part], 0)
