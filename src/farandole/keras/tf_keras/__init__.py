"""Horovod's API for Keras 2, the package ``tf_keras``.

With TF_USE_LEGACY_KERAS=1 ``tf.keras`` is ``tf_keras``, and ``farandole.tensorflow.keras`` is this
package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.core.api import names
from farandole.core.api.basics import *  # noqa: F403

# not for ``*``, which would hide Python's print
from farandole.core.api.helpers import print as print
from farandole.core.api.helpers import save_model
from farandole.core.api.objects import allgather_object as allgather_object
from farandole.core.api.objects import broadcast_object as broadcast_object
from farandole.job.config import Settings
from farandole.job.context import is_elastic
from farandole.keras.tf_keras import callbacks as callbacks
from farandole.keras.tf_keras import elastic as elastic
from farandole.keras.tf_keras.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.keras.tf_keras.optimizer import (
    PartialDistributedOptimizer as PartialDistributedOptimizer,
)
from farandole.keras.tf_keras.saving import load_model as load_model
from farandole.keras.tf_keras.sync_batch_norm import (
    SyncBatchNormalization as SyncBatchNormalization,
)
from farandole.keras.tf_keras.values import allgather as allgather
from farandole.keras.tf_keras.values import allreduce as allreduce
from farandole.keras.tf_keras.values import broadcast as broadcast
from farandole.keras.tf_keras.values import broadcast_global_variables as broadcast_global_variables
from farandole.keras.tf_keras.values import reducescatter as reducescatter
from farandole.tensorflow.broadcasting import broadcast_variables as broadcast_variables
from farandole.tensorflow.capabilities import cuda_built as cuda_built
from farandole.tensorflow.capabilities import nccl_built as nccl_built
from farandole.tensorflow.capabilities import rocm_built as rocm_built
from farandole.tensorflow.functions import Compression as Compression
from farandole.tensorflow.mpi_ops import barrier as barrier
from farandole.tensorflow.seeds import seed_everything as seed_everything

# Only in an elastic job does ``fit`` differ from Keras's.
if is_elastic() or Settings.from_env().commit_dir:
    from farandole.keras.tf_keras.fit import install

    install()

save = save_model

if not TYPE_CHECKING:
    __all__ = names.listed(names.KERAS_2)
