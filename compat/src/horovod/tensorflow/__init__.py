"""``import horovod.tensorflow as hvd``: farandole.tensorflow."""

from importlib import import_module as _import

from horovod.common.util import check_extension

check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__)

from tensorflow.compat.v1.train import Optimizer as _LegacyOptimizer  # noqa: E402,F401

from farandole.compat import keras2  # noqa: E402
from farandole.compat.internals import (  # noqa: E402
    make_allreduce_grads as _make_allreduce_grads_fn,  # noqa: F401
)
from farandole.compat.internals import (  # noqa: E402
    make_broadcast_group as _make_broadcast_group_fn,  # noqa: F401
)
from farandole.tensorflow import *  # noqa: E402,F403

# SyncBatchNormalization imports Keras.
from farandole.tensorflow import __getattr__ as __getattr__  # noqa: E402
from farandole.tensorflow.optimizer import _Distributed as _DistributedOptimizer  # noqa: E402,F401
from horovod.common.util import _cache as _cache  # noqa: E402
from horovod.common.util import gpu_available as gpu_available  # noqa: E402
from horovod.common.util import split_list as split_list  # noqa: E402
from horovod.tensorflow.mpi_ops import _allreduce as _allreduce  # noqa: E402
from horovod.tensorflow.mpi_ops import _basics as _basics  # noqa: E402
from horovod.tensorflow.mpi_ops import _grouped_allreduce as _grouped_allreduce  # noqa: E402
from horovod.tensorflow.util import _executing_eagerly as _executing_eagerly  # noqa: E402
from horovod.tensorflow.util import _make_subgraph as _make_subgraph  # noqa: E402
from horovod.tensorflow.util import refs_to_vars as refs_to_vars  # noqa: E402
from horovod.tensorflow.util import vars_to_refs as vars_to_refs  # noqa: E402

# These replace farandole's modules of the same name.
_import("horovod.tensorflow.compression")
_import("horovod.tensorflow.elastic")
_import("horovod.tensorflow.functions")

keras2.let_variables_be_called()
