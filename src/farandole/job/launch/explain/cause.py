"""The verdict on a failed job: its cause, and the consequences for the other ranks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence

from farandole.job.launch.explain.events import (
    Event,
    Facts,
    RankState,
    Verdict,
    rank_states,
    subject,
)
from farandole.job.launch.explain.exit_codes import describe, exit_status
from farandole.job.launch.explain.tracebacks import program_line
from farandole.job.launch.explain.victims import patience, without_cause

# Seconds for a better cause to appear after a plain exit code, which may come from a victim that
# caught its exception.
EXIT_PATIENCE = 0.3
_PLACES = 4  # maximum number of places at which ranks failed in the same way
# Modules that this command's Python has and the program's lacks, because another Python is first on
# the PATH.
_MISSING = {
    "No module named 'farandole'": (
        "farandole is not installed for the Python that ran the program. Replace python by"
        f" {sys.executable}, or activate its environment"
    ),
    "No module named 'horovod'": (
        "The import name horovod belongs to the distribution farandole-horovod: run pip install"
        " ./compat in a clone of Farandole, for the Python that runs the program; or write import"
        " farandole.torch as hvd"
    ),
}


def explain(
    events: Sequence[Event],
    hosts: Sequence[str],
    tails: Mapping[int, str] | None = None,
    activity: Mapping[int, str] | None = None,
) -> Verdict | None:
    """Return the verdict on the rank that caused the failure; None while no rank has failed.

    - ``events``: In the order in which they were seen, without effects of the driver's own signals.
    - ``hosts``: Per rank.
    - ``tails``: Per rank, its last lines on stderr.
    - ``activity``: Per rank, its current activity.

    Causes are ranked: SIGKILL first, because no other rank's failure leads to it; then a rank with
    its own error or killed by another signal; then a rank that exited with a code, which may have
    caught a victim's error; then a rank whose own error followed the loss of another rank. Victims
    are never the cause.
    """
    ranks = rank_states(events, tails or {}, len(hosts))
    facts = Facts(ranks, hosts, tails or {}, activity or {})
    failed = [rank for rank in ranks if rank.standing not in ("running", "finished")]
    if not failed:
        return None
    candidates = [rank for rank in failed if rank.standing != "victim"]
    if not candidates:
        return without_cause(facts)
    return _blame(min(candidates, key=lambda rank: (_weight(rank), rank.order)), facts)


def _weight(rank: RankState) -> int:
    if rank.code == -signal.SIGKILL:
        return 0
    if rank.failed_after_loss:
        return 3
    return 1 if rank.standing in ("error", "signal") else 2


def _patience(cause: RankState, facts: Facts) -> float:
    """Return the seconds in which a better cause may still appear."""
    if facts.all_ended:
        return 0.0
    if cause.failed_after_loss:
        return patience([cause], facts.ranks)
    return EXIT_PATIENCE if cause.standing == "exit" else 0.0


def _blame(cause: RankState, facts: Facts) -> Verdict:
    same = [
        rank.rank
        for rank in facts.ranks
        if rank.rank != cause.rank and _failed_alike(rank, cause, facts.tails)
    ]
    caught = facts.caught + [
        rank.rank
        for rank in facts.ranks
        if rank.standing == "exit" and rank.lost_another and rank != cause
    ]
    caught = sorted(rank for rank in caught if rank not in same)
    apart = [
        rank
        for rank in facts.numbers("error", "signal", "exit")
        if rank != cause.rank and rank not in same
    ]
    lines = [
        *_own_failure(cause, facts),
        *_in_the_same_way(cause, [rank for rank in facts.ranks if rank.rank in same]),
        *_consequences(cause, caught, facts),
    ]
    outcome = cause.outcome if cause.standing == "error" else None
    return Verdict(
        rank=cause.rank,
        patience=_patience(cause, facts),
        exit_code=_status(cause),
        message="\n".join(lines),
        traceback=outcome.traceback if outcome is not None else "",
        apart=tuple(dict.fromkeys((*apart, *caught))),
        host_lost=outcome is not None and bool(outcome.host) and not outcome.kind,
    )


def _status(cause: RankState) -> int:
    """Return the launcher's exit status."""
    # Python loses its own exit code for an interrupt if anything is imported meanwhile.
    if cause.standing == "error" and cause.outcome is not None and cause.outcome.interrupted:
        return 128 + signal.SIGINT
    return exit_status(cause.code)


def _own_failure(cause: RankState, facts: Facts) -> list[str]:
    """Return how the causing rank failed, with its traceback or its last lines on stderr."""
    outcome = cause.outcome if cause.standing == "error" else None
    if outcome is None:
        how = describe(cause.code or 0)
    elif cause.code and not outcome.interrupted:
        how = f"{outcome.words} ({describe(cause.code)})"
    else:
        how = outcome.words
    lines = [f"Rank {cause.rank} on {facts.hosts[cause.rank]} {how}"]
    tail = facts.tails.get(cause.rank, "").strip("\n")
    if outcome is not None and outcome.traceback:
        lines.append(outcome.traceback.rstrip("\n"))
    elif tail:
        lines.append(f"Its last lines on stderr:\n{tail}")
        lines += [cure for missing, cure in _MISSING.items() if missing in tail]
    return lines


def _consequences(cause: RankState, caught: Sequence[int], facts: Facts) -> list[str]:
    """Return the outcomes of the ranks that failed in a different way, or not at all."""
    lines = []
    victims = [rank for rank in facts.ranks if rank.standing == "victim"]
    silent = [rank.rank for rank in victims if rank.host_silent and cause.host_silent]
    if silent:
        were = "was" if len(silent) == 1 else "were"
        hosts = {facts.hosts[rank] for rank in (*silent, cause.rank)}
        shared = (
            ": check what the hosts share, such as a switch or the driver's network"
            if len(hosts) > 1
            else " with it"
        )
        lines.append(
            f"{subject(silent)} on {facts.places(silent)} {were} lost at the same time{shared}."
        )
    followed = [rank.rank for rank in victims if not rank.caught and rank.rank not in silent]
    if followed:
        lines.append(f"{subject(followed)} failed as a consequence.")
    if caught:
        lines.append(f"{subject(caught)} lost another rank before exiting with a code.")
    early = facts.numbers("finished")
    lost_early = cause.failed_after_loss and cause.outcome is not None and cause.lost in early
    if early and (followed or caught or lost_early):
        lines.append(f"{subject(early)} had finished earlier.")
    return lines


def _failed_alike(rank: RankState, cause: RankState, tails: Mapping[int, str]) -> bool:
    if rank.standing != cause.standing:
        return False
    if rank.outcome is not None and cause.outcome is not None and rank.standing == "error":
        return (rank.outcome.kind, rank.outcome.message) == (
            cause.outcome.kind,
            cause.outcome.message,
        )
    return rank.code == cause.code and tails.get(rank.rank) == tails.get(cause.rank)


def _in_the_same_way(cause: RankState, same: Sequence[RankState]) -> list[str]:
    """Return lines about ranks that failed in the same way, with their place in the program.

    If ranks made different calls, the other places are as informative as the cause's.
    """
    ranks_at: dict[str, list[int]] = {}
    for rank in same:
        place = program_line(rank)
        ranks_at.setdefault("" if place == program_line(cause) else place, []).append(rank.rank)
    return [
        f"{subject(ranks)} failed in the same way{f', at {place}' if place else '.'}"
        for place, ranks in list(ranks_at.items())[:_PLACES]
    ]
