"""The shared values of decentralised strategies: none, or copies at the neighbours."""

from __future__ import annotations

from farandole.base.contracts import Codec, Encoding, PushCodec, Strategy
from farandole.strategies.references import NoReference, SenderReference


class NeighbourReference(SenderReference):
    """A copy of each rank's weights as sent so far, which its neighbours keep."""

    sending = "each rank sends to its neighbours only"

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        if not isinstance(codec, PushCodec):
            return super().encoding(codec, owner)
        from farandole.strategies.gossip.encoding import CopyEncoding

        return CopyEncoding(codec, owner)


class PairReference(NoReference):
    """No shared values: while two ranks average, averages with other ranks change both."""

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """See ``contracts.SharedReference``."""
        return (
            f"has nothing to compress with strategy={strategy.spec!r}, whose ranks average in"
            " pairs in the background. Use strategy gossip, which supports codecs, or remove the"
            " codec"
        )
