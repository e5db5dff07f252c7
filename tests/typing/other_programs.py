"""Users' programs for the other frameworks; only numpy has types here. See ``torch_program``."""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import farandole.jax
import farandole.keras
import farandole.mxnet
import farandole.numpy as hvd
import farandole.tensorflow


def arrays(array: NDArray[np.float32], mean: np.float64) -> None:
    assert_type(hvd.allreduce(array).ndim, int)
    assert_type(hvd.allreduce(mean).ndim, int)
    assert_type(hvd.allreduce_async(array), int)
    assert_type(hvd.alltoall(array, [1, 1])[1].ndim, int)
    hvd.allreduce_(array, op=hvd.Max)
    assert_type(hvd.allgather_object(3), list[int])


def the_job() -> None:
    farandole.tensorflow.init()
    assert_type(farandole.tensorflow.rank(), int)
    farandole.keras.init()
    assert_type(farandole.keras.size(), int)
    farandole.jax.init()
    assert_type(farandole.jax.local_rank(), int)
    farandole.mxnet.init()
    assert_type(farandole.mxnet.is_homogeneous(), bool)

    print(farandole.jax.DistributedOptimizer, farandole.keras.DistributedOptimizer)
    print(farandole.mxnet.DistributedTrainer, farandole.tensorflow.DistributedGradientTape)
