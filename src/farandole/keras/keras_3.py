"""The names of ``farandole.keras`` that need Keras 3. Importing this module wraps ``fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.core.api import names
from farandole.keras import callbacks as callbacks
from farandole.keras import elastic as elastic
from farandole.keras.data import shard as shard
from farandole.keras.fit import install
from farandole.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from farandole.keras.pipeline import Pipeline as Pipeline
from farandole.keras.saving import load_model as load_model
from farandole.keras.seeds import seed_everything as seed_everything
from farandole.keras.values import allgather as allgather
from farandole.keras.values import allreduce as allreduce
from farandole.keras.values import barrier as barrier
from farandole.keras.values import broadcast as broadcast
from farandole.keras.values import cuda_built as cuda_built
from farandole.keras.values import nccl_built as nccl_built
from farandole.keras.values import reducescatter as reducescatter
from farandole.keras.values import rocm_built as rocm_built
from farandole.keras.weights import broadcast_global_variables as broadcast_global_variables
from farandole.keras.weights import broadcast_model as broadcast_model
from farandole.keras.weights import broadcast_variables as broadcast_variables

if not TYPE_CHECKING:
    __all__ = names.listed(names.KERAS, names.BUILT_FOR_FRAMEWORK, names.KERAS_3_ONLY)

install()
