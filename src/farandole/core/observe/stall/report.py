"""The texts of the stall check. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farandole.base.contracts import Waiting
from farandole.core.observe.stall.names import MOST, listed, shown
from farandole.core.observe.stall.stack_query import Answer
from farandole.core.observe.stall.stacks import Frame
from farandole.errors import counted, ranks_named

_RANKS_SHOWN = 16
_FRAMES_SHOWN = 6
_FLAG = "--stall-check-shutdown-time-seconds"


def report(
    stalled: Sequence[Waiting],
    warning: float,
    limit: float,
    answers: Mapping[int, Answer],
    *,
    detailed: bool = False,
) -> str:
    """Return the warning about these collectives; ``detailed``: with the user's complete stack of
    every rank.
    """
    agreeing = [wait for wait in stalled if not wait.inside]
    begun = [wait for wait in stalled if wait.inside]
    lines = (_agreeing(agreeing, warning, limit) if agreeing else []) + (
        _begun(begun, warning) if begun else []
    )
    lines += _activities(answers, detailed)
    if not any(limit and wait.seconds >= limit for wait in stalled):
        until = f"after {limit:g} s" if limit else "never: the job waits forever"
        lines.append(
            f"{_FLAG} (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS) sets when a stalled job ends; now:"
            f" {until}."
        )
    return "\n".join(lines)


def reason(over: Sequence[Waiting], limit: float, answers: Mapping[int, Answer]) -> str:
    """Return the reason for the end of the job."""
    names = _names(over)
    silent = {rank: answer.silent for rank, answer in answers.items() if answer.silent}
    if any(wait.inside for wait in over):
        ranks = sorted(silent) or _missing(over)
        text = f"{ranks_named(ranks)} stopped inside {names}"
    else:
        ranks = _culprits(_missing(over), answers)
        text = f"{ranks_named(ranks)} stayed away from {names}"
    places = [_place(rank, answers[rank]) for rank in ranks if rank in answers][:_RANKS_SHOWN]
    return "; ".join([f"{text} for more than {limit:g} s ({_FLAG})", *places])


def stacks_text(answers: Mapping[int, Answer]) -> str:
    """Return the innermost frames of each rank, or the reason of its silence, as lines for the end
    of a message.
    """
    lines = []
    for rank, answer in answers.items():
        lines.append(_activity(rank, answer) if answer.silent else f"{_activity(rank, answer)} at:")
        lines += [f"    {_location(frame)}" for frame in answer.stack[-_FRAMES_SHOWN:]]
    return "".join(f"\n{line}" for line in lines)


def _agreeing(stalled: Sequence[Waiting], warning: float, limit: float) -> list[str]:
    """Return Horovod's warning."""
    lines = [
        (
            "One or more tensors were submitted to be reduced, gathered or broadcasted by subset"
            f" of ranks and are waiting for remainder of ranks for more than {warning:g} seconds."
            " This may indicate that different ranks are trying to submit different tensors or"
            " that only subset of ranks is submitting tensors, which will cause deadlock. "
        ),
        "Missing ranks:",
    ]
    over = False
    for rank in _missing(stalled):
        theirs = [wait for wait in stalled if rank in wait.missing]
        late = bool(limit) and any(wait.seconds >= limit for wait in theirs)
        over = over or late
        lines.append(f"{rank}{'!' if late else ''}: [{_names(theirs)}]")
    if over:
        lines.append(
            f'One or more rank (marked by "!") is stalled for longer than {limit:g} seconds. Will'
            " shutdown."
        )
    return lines


def _begun(stalled: Sequence[Waiting], warning: float) -> list[str]:
    return [
        f"A collective has started on all ranks but made no progress for more than {warning:g}"
        f" seconds: [{_names(stalled)}] waits for {ranks_named(_missing(stalled))}."
    ]


def _activities(answers: Mapping[int, Answer], detailed: bool) -> list[str]:
    if not answers:
        return []
    order = sorted(
        answers, key=lambda rank: (not answers[rank].silent, bool(answers[rank].waits), rank)
    )
    lines = ["Where the ranks are:"]
    for rank in order[:_RANKS_SHOWN]:
        answer = answers[rank]
        if detailed and not answer.silent:
            lines.append(f"{_activity(rank, answer)} at:")
            lines += [f"    {_location(frame)}" for frame in answer.stack]
        else:
            lines.append(_place(rank, answer))
    if len(order) > _RANKS_SHOWN:
        lines.append(f"and {counted(len(order) - _RANKS_SHOWN, 'more rank')}")
    return lines


def _place(rank: int, answer: Answer) -> str:
    """Return the position of a rank in one line."""
    if answer.silent or not answer.stack:
        return _activity(rank, answer)
    return f"{_activity(rank, answer)} at {_location(answer.stack[-1])}"


def _activity(rank: int, answer: Answer) -> str:
    if answer.silent:
        return f"rank {rank} does not answer: {answer.silent}"
    if answer.stuck:
        return (
            f"rank {rank} is inside [{_joined(answer.stuck)}] and waits for"
            f" {ranks_named(answer.awaited)}"
        )
    if answer.waits:
        return f"rank {rank} waits with [{_joined(answer.waits)}]"
    return f"rank {rank} is"


def _location(frame: Frame) -> str:
    return f"{frame.file}, line {frame.line}, in {frame.function}" + (
        f": {frame.code}" if frame.code else ""
    )


def _names(stalled: Sequence[Waiting]) -> str:
    return _joined([wait.name for wait in stalled])


def _joined(names: Sequence[str]) -> str:
    return listed(names) + (" ..." if len(set(map(shown, names))) > MOST else "")


def _missing(stalled: Sequence[Waiting]) -> list[int]:
    return sorted({rank for wait in stalled for rank in wait.missing})


def _culprits(missing: Sequence[int], answers: Mapping[int, Answer]) -> list[int]:
    """Return the missing ranks, except ranks that wait for another missing rank in an earlier
    collective.
    """
    held = {
        rank
        for rank in missing
        if rank in answers and set(answers[rank].awaited) & (set(missing) - {rank})
    }
    return [rank for rank in missing if rank not in held] or list(missing)
