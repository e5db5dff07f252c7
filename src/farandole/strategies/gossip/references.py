"""What ranks of decentralised strategies have in common: nothing, or copies at their neighbours."""

from __future__ import annotations

from farandole.base.contracts import Codec, Encoding, PushCodec, Strategy
from farandole.strategies.references import NoReference, SenderReference


class NeighbourReference(SenderReference):
    """A copy of each rank's weights, as far as it has sent them, which its neighbours have."""

    sending = "each sends to its neighbours alone"

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """See ``contracts.SharedReference``."""
        if not isinstance(codec, PushCodec):
            return super().encoding(codec, owner)
        from farandole.strategies.gossip.encoding import CopyEncoding

        return CopyEncoding(codec, owner)


class PairReference(NoReference):
    """Nothing: while two ranks average, both change by averages with others."""

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """See ``contracts.SharedReference``."""
        return (
            f"has nothing to compress with strategy={strategy.spec!r}, whose ranks average in pairs"
            " in the background: take gossip, which goes with a codec, or leave out the codec"
        )
