"""Lighten the imports of PyTorch, Keras and TensorFlow, in every Python process that tests start.

The first optimizer of PyTorch in a process imports torch._dynamo, and sympy with it, only to
exclude itself from compilation: 1.3 s of CPU in each rank of each job, half of what a rank of a
test costs. Nothing is compiled before a program imports torch._dynamo, as torch.compile does; then
PyTorch's own functions are called.

Keras and TensorFlow import optional packages for a few functions that no test uses: 2 s of 5.

Imports create hundreds of thousands of permanent objects, which the garbage collector visits
repeatedly, and at the end of the process: 0.6 s of 1.8 s for torch.
"""

import gc
import sys


def _compiling():
    return "torch._dynamo" in sys.modules


def _defer_exclusion(module):
    """Let functions marked with ``torch._disable_dynamo`` run as they are until then."""
    from functools import partial, wraps

    exclude = module._disable_dynamo

    def deferred(function=None, recursive=True):
        if function is None:
            return partial(deferred, recursive=recursive)
        excluded = exclude(function, recursive)

        @wraps(function)
        def call(*args, **kwargs):
            return (excluded if _compiling() else function)(*args, **kwargs)

        return call

    module._disable_dynamo = deferred


def _defer_graph_breaks(module):
    """Let ``step()`` of an optimizer set the gradient mode without breaks of a graph until then."""
    from functools import wraps

    import torch

    use_grad = module._use_grad_for_differentiable

    def deferred(function):
        broken = use_grad(function)

        @wraps(function)
        def call(self, *args, **kwargs):
            if _compiling():
                return broken(self, *args, **kwargs)
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return function(self, *args, **kwargs)

        return call

    module._use_grad_for_differentiable = deferred


def _collect_with_groups(module):
    """Let the collector visit all objects at the end of a process that has made a process group:
    otherwise Gloo's threads outlive their group, and abort one process in twenty.
    """
    from functools import wraps

    init = module.init_process_group

    @wraps(init)
    def init_process_group(*args, **kwargs):
        _LARGE.clear()
        gc.unfreeze()
        return init(*args, **kwargs)

    module.init_process_group = init_process_group


_CHANGES = {
    "torch._compile": _defer_exclusion,
    "torch.optim.optimizer": _defer_graph_breaks,
    "torch.distributed.distributed_c10d": _collect_with_groups,
}
# Modules and the optional package of each: DataFrames in fit(), wrappers for scikit-learn, drawings,
# functions of JAX for mobile phones and in checkpoints of Orbax.
_OPTIONAL = {
    "keras.src.wrappers.fixes": "sklearn",
    "keras.src.wrappers.sklearn_wrapper": "sklearn",
    "keras.src.trainers.data_adapters.array_slicing": "pandas",
    "tf_keras.src.engine.data_adapter": "pandas",
    "keras.src.visualization.plot_image_gallery": "matplotlib",
    "keras.src.visualization.plot_bounding_box_gallery": "matplotlib",
    "keras.src.callbacks.orbax_checkpoint": "jax",
    "tensorflow.lite.python.util": "jax",
}
_LARGE = {"torch", "tensorflow", "keras", "jax", "tf_keras"}
# They import torch._dynamo for its function disable().
_EXCLUDING = ("keras.src.backend.torch.image", "keras.src.backend.torch.random")


class _Exclusion:
    """``torch._dynamo`` before it is imported: PyTorch's own functions are marked like this."""

    @staticmethod
    def disable(function=None, recursive=True):
        from torch import _disable_dynamo

        return _disable_dynamo(function, recursive)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if not any(name in names for names in (_CHANGES, _OPTIONAL, _LARGE, _EXCLUDING)):
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_lightly(module):
            if name in _CHANGES:
                execute(module)
                _CHANGES[name](module)
            elif name in _LARGE:
                _execute_uncollected(execute, module)
            elif name in _OPTIONAL:
                _execute_with(_OPTIONAL[name], None, execute, module)
            else:
                _execute_with("torch._dynamo", _Exclusion, execute, module)

        spec.loader.exec_module = execute_lightly
        return spec


def _execute_uncollected(execute, module):
    """Execute ``module``, and exempt what it has created from collections."""
    collecting = gc.isenabled()  # False within another import
    gc.disable()
    try:
        execute(module)
    finally:
        if collecting:
            gc.enable()
            gc.freeze()


def _execute_with(package, instead, execute, module):
    """Execute ``module`` with ``instead`` in the place of a package, unless that is imported."""
    if package in sys.modules:
        execute(module)
        return
    sys.modules[package] = instead
    try:
        execute(module)
    finally:
        if sys.modules.get(package) is instead:
            del sys.modules[package]


sys.meta_path.insert(0, _Finder)
