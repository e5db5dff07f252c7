"""Data in jobs with a fixed global batch."""

from __future__ import annotations

from farandole.errors import SettingsError
from farandole.job import context


def refuse_shares(reader: str) -> None:
    """Raise SettingsError for a reader that divides samples by the number of ranks, in an elastic
    job with a fixed global batch. In a job of a fixed size each rank has one share.
    """
    if context.is_elastic() and context.shares():
        raise SettingsError(
            f"{reader} divides samples by the number of ranks, which may change in an elastic job"
            " with --fixed-global-batch. Use hvd.elastic.ElasticSampler(dataset, batch_size=...),"
            " or omit the flag"
        )
