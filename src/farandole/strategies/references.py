"""The values shared by the ranks after an exchange of weights, one class for each kind.

A codec sends differences from these values. A strategy names its kind by ``reference``; a new kind
is a subclass of ``NoReference`` with its own encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base.contracts import Codec, Encoding, PushCodec, Strategy, Voting
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.core.gossip.quorum import Quorum

_MAX_STEP = 0.1  # the longest acceptable step of a weight if only its direction is known


class NoReference:
    """Ranks share no values: weights are sent uncompressed."""

    same_slots: bool = False
    takes_codec: bool = False
    adds_up: bool = False

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """See ``contracts.SharedReference``."""
        *others, last = strategies_with_codecs()
        return (
            f"has nothing to compress with strategy={strategy.spec!r}, whose ranks keep separate"
            f" weights. Remove one of them, or use {', '.join(others)} or {last}"
        )

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        # Imported here and in subclasses: the command line checks for objections and needs no
        # engine.
        from farandole.strategies.encodings import WholeEncoding

        return WholeEncoding()


class MeanReference(NoReference):
    """The base of kinds whose ranks average their weights.

    ``outer``: an outer optimizer steps along the mean and determines the step size. ``reach``: the
    distance by which it moves a weight in each exchange if all means are 1.
    """

    same_slots = True
    takes_codec = True

    def __init__(self, *, outer: bool = False, reach: float = 0.0) -> None:
        self.outer = outer
        self.reach = reach

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """See ``contracts.SharedReference``."""
        if not (isinstance(codec, Voting) and codec.votes):
            return ""
        if self.outer and self.reach <= _MAX_STEP:
            return ""
        if self.outer:
            return (
                f"sends only -1, 0 or 1 for each element, and with strategy={strategy.spec!r}"
                f" weights would move by up to {self.reach:g} in each exchange (lr / (1 -"
                f" momentum)); the limit is {_MAX_STEP:g}. Use lr=0.002, as for Adam, or int8,"
                " onebit, topk or another codec that sends magnitudes"
            )
        return (
            f"sends only -1, 0 or 1 for each element, and with strategy={strategy.spec!r} weights"
            " would move by that much in each exchange. Remove one of them, or use int8, onebit,"
            " topk or another codec that sends magnitudes"
        )


class LastWeightsReference(MeanReference):
    """All ranks have the same weights after an exchange."""

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        if codec is None:
            return super().encoding(codec, owner)
        from farandole.strategies.encodings import ChangeEncoding

        return ChangeEncoding(codec, owner)


class QuorumReference(MeanReference):
    """The ranks of one average have the same weights afterwards; other ranks have older weights."""

    takes_codec = False

    def __init__(self, rule: Quorum, *, outer: bool = False, reach: float = 0.0) -> None:
        super().__init__(outer=outer, reach=reach)
        self.rule = rule

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """See ``contracts.SharedReference``."""
        return (
            f"compresses sums over all ranks, but with strategy={strategy.spec!r} an average"
            " does not wait for all of them. Remove the codec or the quorum"
        )

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        from farandole.strategies.quorum import QuorumEncoding

        return QuorumEncoding(self.rule)


class FirstSlotReference(MeanReference):
    """All ranks have the same first slot after an exchange; their weights differ."""

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        if codec is None:
            return super().encoding(codec, owner)
        from farandole.strategies.encodings import DistanceEncoding

        return DistanceEncoding(codec, owner)


class SenderReference(NoReference):
    """The base of kinds whose ranks send independently, with a codec for pushes. ``sending``: a
    description for messages.
    """

    takes_codec = True
    sending: str

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """See ``contracts.SharedReference``."""
        if isinstance(codec, PushCodec):
            return ""
        return (
            f"compresses sums over all ranks, but with strategy={strategy.spec!r} {self.sending}."
            " Remove one of them, or use int8, onebit, topk or another codec that compresses"
            " pushes"
        )


class CentreReference(SenderReference):
    """The centre at parameter servers, to which each rank pushes. ``adds_up``: pushes are added
    immediately, not synchronously.
    """

    same_slots = True
    sending = "each rank pushes independently"

    def __init__(self, *, adds_up: bool = False) -> None:
        self.adds_up = adds_up

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        if not isinstance(codec, PushCodec):
            return super().encoding(codec, owner)
        from farandole.strategies.encodings import PushEncoding

        return PushEncoding(codec, owner)


def strategies_with_codecs() -> list[str]:
    """Return the names of all strategies that take a codec."""
    kinds = {name: registry.load("strategy", name) for name in registry.names("strategy")}
    return [name for name, kind in kinds.items() if kind.reference.takes_codec]
