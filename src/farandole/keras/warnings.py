"""Warnings to users whose job misses its purpose: once, on rank 0."""

from __future__ import annotations

from farandole.base.log import logger

_said: set[str] = set()


def say(key: str, text: str, *, level: int = 30) -> None:
    """Log ``text``, unless something was said about ``key`` in this job."""
    if key not in _said:
        _said.add(key)
        logger.log(level, text)


def forget() -> None:
    """A new job begins."""
    _said.clear()


def uneven(steps: str) -> None:
    say(
        "uneven",
        f"the ranks took different numbers of steps in an epoch ({steps}): those with fewer waited,"
        " counting as zero in averages, and go on from the weights of those with more. Give all"
        " ranks equally much data, unless a callback has stopped training on one of them",
    )


def no_xla() -> None:
    say(
        "xla",
        "jit_compile=True: the training step is not compiled by XLA, since it exchanges gradients"
        " with other ranks; evaluate() and predict() are",
    )


def shuffled() -> None:
    say(
        "shuffled",
        "the dataset is shuffled in another order on each rank before it is dealt out: in an epoch"
        " some rows come twice, and others never. Give shuffle() (list_files,"
        " image_dataset_from_directory ...) one seed, the same on all ranks; or shuffle what"
        " hvd.shard(dataset) gives",
    )


def not_synchronized(layer: str) -> None:
    say(
        "synchronized",
        f"{layer} has synchronized=True, which is for tf.distribute: here it normalizes by each"
        " rank's own batch. Take farandole.tensorflow.SyncBatchNormalization, which normalizes by"
        " the batches of all ranks",
    )
