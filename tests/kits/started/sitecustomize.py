"""Let PyTorch's optimizers work without torch.compile, in every Python process that tests start.

The first optimizer of a process imports torch._dynamo, and sympy with it, only to exclude itself
from compilation: 1.3 s of CPU in each rank of each job, half of what a rank of a test costs.
Nothing is compiled before a program has imported torch._dynamo, as torch.compile does; from then
on PyTorch's own functions are called.
"""

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


_CHANGES = {"torch._compile": _defer_exclusion, "torch.optim.optimizer": _defer_graph_breaks}


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _CHANGES:
            return None
        from importlib.machinery import PathFinder

        change, spec = _CHANGES.pop(name), PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change
        return spec


sys.meta_path.insert(0, _Finder)
