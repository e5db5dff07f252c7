"""The verdict if all failed ranks are victims: a rank finished early, or was lost without a
visible trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.errors import PeerLostError, RendezvousError, ServerLostError, ShutDownError
from farandole.job.launch.explain.events import Facts, RankState, Verdict, subject
from farandole.job.launch.explain.exit_codes import exit_status
from farandole.job.launch.explain.tracebacks import own_words

VICTIM_PATIENCE = 3.0  # seconds for a cause to appear after its first victim
# The same if all ranks lost by victims have ended; simultaneous ends are known by then.
ENDED_PATIENCE = 1.0
_ABSENT = 4  # maximum number of absent ranks whose activity is named
_SAME_CALLS = (
    "every rank must make the same calls: for instance, give all ranks the same number of"
    " batches, or call hvd.join() on ranks that run out of data."
)


def patience(bereft: Sequence[RankState], ranks: Sequence[RankState]) -> float:
    """Return the seconds to wait for the cause of the losses of ``bereft`` while ranks are
    running.
    """
    todo = {rank.lost for rank in bereft}
    seen: set[int] = set()
    while todo:
        number = todo.pop()
        if not 0 <= number < len(ranks) or ranks[number].code is None:
            return VICTIM_PATIENCE
        seen.add(number)
        # This rank may itself have lost another rank.
        if ranks[number].lost >= 0 and ranks[number].lost not in seen:
            todo.add(ranks[number].lost)
    return ENDED_PATIENCE


def without_cause(facts: Facts) -> Verdict:
    """Return the verdict if only victims have failed."""
    victims = [rank for rank in facts.ranks if rank.standing == "victim"]
    first = min(victims, key=lambda victim: victim.order)
    assert first.outcome is not None
    verdict = Verdict(
        rank=-1,
        patience=0.0 if facts.all_ended else patience(victims, facts.ranks),
        exit_code=next((exit_status(victim.code) for victim in victims if victim.code), 1),
        message="",
        traceback=first.outcome.traceback,
        apart=tuple(facts.caught),
    )
    if first.kind == RendezvousError.__name__:
        rank, message = _late(facts, first)
        return verdict._replace(rank=rank, patience=0.0, message=message)
    waiting = subject([victim.rank for victim in victims])
    if server := next((rank for rank in victims if rank.kind == ServerLostError.__name__), None):
        assert server.outcome is not None
        message = (
            f"{server.outcome.message[:1].upper()}{server.outcome.message[1:]}.\n{waiting} failed"
            " as a consequence."
        )
        return verdict._replace(message=message, traceback=server.outcome.traceback)
    rank, message = _missing_rank(facts, victims, first) or (
        -1,
        _apart(victims, facts.hosts)
        or f"{_lost_each_other(victims, facts.hosts)}; the cause is unknown.",
    )
    return verdict._replace(rank=rank, message=f"{message}\n{own_words(first)}")


def _missing_rank(
    facts: Facts, victims: Sequence[RankState], first: RankState
) -> tuple[int, str] | None:
    """Return the rank that the victims waited for, and the message; None if unknown."""
    waiting = subject([victim.rank for victim in victims])
    if early := facts.numbers("finished"):
        return early[0], (
            f"{subject(early)} on {facts.places(early)} finished (exit code 0) while"
            f" {waiting.lower()} waited for an exchange with {'it' if len(early) == 1 else 'them'}:"
            f" {_SAME_CALLS}"
        )
    failed = {victim.rank for victim in victims}
    lost = next(
        (rank.lost for rank in victims if rank.outcome is not None and rank.lost not in failed), -1
    )
    if not 0 <= lost < len(facts.hosts):
        return None
    if first.kind == ShutDownError.__name__:
        return lost, (
            f"Rank {lost} on {facts.hosts[lost]} called shutdown() or ended while"
            f" {waiting.lower()} waited for an exchange with it: {_SAME_CALLS}"
        )
    return lost, (
        f"{waiting} waited for rank {lost} on {facts.hosts[lost]}, whose process is still running:"
        " it hangs or is busy, its network is down, or it called exec without hvd.shutdown()."
    )


def _apart(victims: Sequence[RankState], hosts: Sequence[str]) -> str:
    """Describe two hosts that reported to the end but lost each other; empty if there are none."""
    blamed = {victim.rank for victim in victims}
    # A rank that reports SILENT gives up, which others see as BROKE.
    for why in (PeerLostError.SILENT, PeerLostError.BROKE):
        for victim in sorted(victims, key=lambda victim: victim.order):
            lost, said = (
                (victim.outcome.lost, victim.outcome.message)
                if victim.outcome is not None
                else (-1, "")
            )
            if lost in blamed and why in said and hosts[lost] != hosts[victim.rank]:
                pair = f"between {hosts[victim.rank]} and {hosts[lost]}"
                both = f"rank {victim.rank} and rank {lost} reach the driver"
                if why == PeerLostError.SILENT:
                    return f"The network {pair} was lost: {both} but not each other."
                return (
                    f"The connection {pair} was cut: {both} but not each other. Check firewalls"
                    " and routers."
                )
    return ""


def _late(facts: Facts, first: RankState) -> tuple[int, str]:
    """Return the first of the ranks that did not reach ``init()``, and the message."""
    assert first.outcome is not None
    absent = [rank for rank in facts.ranks if rank.standing in ("running", "finished")]
    lines = [first.outcome.message[:1].upper() + first.outcome.message[1:]]
    for rank in absent[:_ABSENT]:
        now = facts.activity.get(rank.rank, "")
        if rank.standing == "finished":
            now = "has ended (exit code 0)"
        if now:
            lines.append(f"Rank {rank.rank} on {facts.hosts[rank.rank]}: {now}")
    if len(absent) > _ABSENT:
        lines.append(f"... and {len(absent) - _ABSENT} more.")
    lines.append(f"{subject(facts.numbers('victim'))} failed as a consequence.")
    return (absent[0].rank if absent else first.outcome.lost), "\n".join(lines)


def _lost_each_other(victims: Sequence[RankState], hosts: Sequence[str]) -> str:
    if len(victims) > 1:
        return f"{subject([victim.rank for victim in victims])} lost each other"
    (only,) = victims
    lost = only.outcome.lost if only.outcome is not None else -1
    whom = (
        f"rank {lost} on {hosts[lost]}"
        if 0 <= lost < len(hosts) and lost != only.rank
        else "the other ranks"
    )
    return f"Rank {only.rank} on {hosts[only.rank]} lost the connection to {whom}"
