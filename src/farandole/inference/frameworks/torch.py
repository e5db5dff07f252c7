"""PyTorch modules, TorchScript and exported programs."""

from __future__ import annotations

import contextlib
import importlib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from farandole.base import pickled
from farandole.errors import SettingsError, counted
from farandole.inference.fixed_batch import fixed_rows, run_in_fixed_batches
from farandole.inference.models import Execution, Model, computing

if TYPE_CHECKING:
    from farandole.base.types import Array

RETURNS = "array<float>"
_FLAGS = {  # for operations in graphs: the argument that selects training behaviour
    "dropout": 2,
    "feature_dropout": 2,
    "alpha_dropout": 2,
    "feature_alpha_dropout": 2,
    "native_dropout": 2,
    "rrelu": 3,
    "batch_norm": 5,
    "_native_batch_norm_legit": 5,
    "_native_batch_norm_legit_functional": 5,
}


class TorchPredictor:
    """A predictor that calls a module in evaluation mode, without gradients. The arguments are the
    columns, in order.
    """

    def __init__(self, module: Any, execution: Execution) -> None:
        if operation := _training(module):
            warnings.warn(
                f"the model's graph contains {operation} in training mode, which eval() does not"
                " change, so predictions are random or depend on other rows of a batch. Call"
                " model.eval() before tracing or exporting",
                stacklevel=2,
            )
        self._execution = execution
        self._rows = _rows(module)
        self._device = _device(execution.device)
        self._module = module.to(self._device) if isinstance(module, torch.nn.Module) else module
        # an exported program has no modes
        with contextlib.suppress(NotImplementedError, AttributeError):
            module.eval()
        floating = [each.dtype for each in _tensors(module) if each.dtype.is_floating_point]
        self.floating = str(floating[0]).removeprefix("torch.") if floating else "float32"
        self._cast = None if self.floating in ("float16", "float32", "float64") else floating[0]
        if self._cast is not None:  # bfloat16 and other types that numpy lacks
            self.floating = "float32"

    def __call__(self, inputs: dict[str, Array]) -> Any:
        fit(self._execution)
        with computing(self), torch.inference_mode():
            return run_in_fixed_batches(
                lambda part: _arrays(self._called(part)), inputs, self._rows
            )

    def _called(self, inputs: dict[str, Array]) -> Any:
        tensors = [self._tensor(array) for array in inputs.values()]
        try:
            return self._module(*tensors)
        except TypeError as error:
            texts = [name for name, array in inputs.items() if array.dtype == object]
            if not texts:
                raise
            raise TypeError(
                f"{error} ({texts[0]!r} is text: cast it to a number, or convert it to indices)"
            ) from error
        except RuntimeError as error:  # torch neither names the input nor converts it
            whole = [name for name, array in inputs.items() if array.dtype.kind in "biu"]
            if not whole or not any(word in str(error) for word in ("dtype", "type")):
                raise
            kind = inputs[whole[0]].dtype.name
            cure = (
                f"dtypes={{{whole[0]!r}: ...}} (--dtype {whole[0]}=...) converts it to 'float32'"
                " or 'int64'"
            )
            raise RuntimeError(f"{error} ({whole[0]!r} is {kind}: {cure})") from error

    def _tensor(self, array: Array) -> Any:
        if array.dtype == object:
            return array  # text, for a module that accepts it
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self._cast is not None and tensor.is_floating_point():
            tensor = tensor.to(self._cast)
        return tensor.to(self._device, non_blocking=True)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(
            f"device={name!r} is not a device of torch, such as cpu, cuda or cuda:1 ({error})"
        ) from error
    seen = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type == "cuda" and (device.index or 0) >= seen:
        gpus = counted(seen, "GPU") if seen else "no GPUs"
        raise SettingsError(
            f"device={name!r}, but torch finds {gpus} in this process"
            + (
                f", numbered from 0: cuda:{seen - 1} is the last. 'cuda' gives each process its own"
                if seen
                else ""
            )
        )
    return device


def _rows(module: Any) -> int:
    """Return the number of rows of a program exported with an example's shapes; 0 if it accepts any
    number.
    """
    if not isinstance(module, torch.fx.GraphModule):
        return 0
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    nodes += [
        node for node in module.graph.nodes if any(user.op == "output" for user in node.users)
    ]
    return fixed_rows(getattr(node.meta.get("val"), "shape", None) for node in nodes)


def _training(module: Any) -> str:
    """Return an operation of a traced or exported graph that always behaves as in training; "" if
    there is none.

    A batch norm without running statistics always uses batch statistics.
    """
    if isinstance(module, torch.fx.GraphModule):
        called = [node for node in module.graph.nodes if node.op == "call_function"]
        operations = [
            (str(node.target).removeprefix("aten.").partition(".")[0], node.args) for node in called
        ]
    elif isinstance(module, torch.jit.ScriptModule) and hasattr(module, "inlined_graph"):
        operations = [
            (node.kind().removeprefix("aten::"), [_constant(each) for each in node.inputs()])
            for node in module.inlined_graph.nodes()
        ]
    else:
        return ""
    for name, arguments in operations:
        flag = _FLAGS.get(name, len(arguments))
        if (
            flag < len(arguments)
            and arguments[flag] is True
            and not ("batch_norm" in name and arguments[3] is None)
        ):
            return str(name)
    return ""


def _constant(value: Any) -> Any:
    """Return the value of a constant in a TorchScript graph; return computed values and settable
    modes unchanged.
    """
    if value.type().kind() == "NoneType":
        return None
    constant = value.toIValue()
    return value if constant is None else constant


def fit(execution: Execution) -> None:
    """Set PyTorch's threads to the task's number, which may have changed since the last call."""
    if execution.threads and torch.get_num_threads() != execution.threads:
        torch.set_num_threads(execution.threads)


def pack(model: Any, folder: Path, options: Mapping[str, Any]) -> Model:
    """Save the module in its own file format, including the user's functions and classes."""
    path = folder / "model.pt"
    if isinstance(model, torch.jit.ScriptModule):
        torch.jit.save(model, str(path))
    elif isinstance(model, torch.export.ExportedProgram):
        path = folder / "model.pt2"
        torch.export.save(model, str(path))
    else:
        try:
            torch.save(getattr(model, "_orig_mod", model), path, pickle_module=pickled)
        except Exception as error:  # a lock, an open file or a parametrization, for example
            text = " ".join(str(error).split())
            raise SettingsError(
                f"the module cannot be pickled ({type(error).__name__}: {text}). Pass a function"
                " without arguments that creates it and loads its weights"
            ) from error
    # this program has made the file
    return Model.of_file("torch", path, {**options, "trust_pickle": True}, RETURNS)


def load(path: str, options: Mapping[str, Any], execution: Execution) -> TorchPredictor:
    """Open a model, with memory-mapped weights, so that processes of a host share them. Raises
    SettingsError for files that require trust.
    """
    return TorchPredictor(_load(path, bool(options.get("trust_pickle"))), execution)


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> TorchPredictor:
    return TorchPredictor(
        model.module() if isinstance(model, torch.export.ExportedProgram) else model, execution
    )


def _load(path: str, trusted: bool) -> Any:
    names = set()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] or name for name in archive.namelist()}
    if "constants.pkl" in names:
        return torch.jit.load(path, map_location="cpu")
    if (
        path.endswith(".pt2")
        or "archive_format" in names
        or "serialized_exported_program.json" in names
    ):
        if not trusted:  # torch unpickles parts of it without restrictions
            raise _untrusted(f"{path} is an exported program, which contains pickles")
        return torch.export.load(path).module()
    mapped = bool(names)  # torch's format before 2020 is not an archive
    if not mapped:
        _check_old(path)
    if trusted:
        module = torch.load(path, map_location="cpu", mmap=mapped, weights_only=False)
    else:
        module = _load_layers(path, mapped)
    if not isinstance(module, torch.nn.Module):
        raise SettingsError(
            f"{path} contains a {type(module).__name__}, not a module. Save the module itself with"
            " torch.save(module, path), or pass a function that creates it and loads these"
            " weights"
        )
    return module


def _check_old(path: str) -> None:
    """Raise SettingsError for a file that is not an archive, unless it may be in the old torch.save
    format, a sequence of pickles.
    """
    with open(path, "rb") as file:
        begin = file.read(2)
    if not begin.startswith(b"\x80"):
        what = "is truncated" if begin == b"PK" else ("is not a file of torch.save")
        raise SettingsError(f"{path} {what}. Rewrite it with torch.save(module, path)")


def _load_layers(path: str, mapped: bool) -> Any:
    """Load a module of torch's own layers without running code from the file."""
    if not mapped:  # torch cannot list the contents
        raise _untrusted(
            f"{path} has the format of torch.save before 1.6, a pickle whose contents cannot be"
            " inspected"
        )
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    layers = {name: layer for name in unsafe if (layer := _layer(name))}
    if others := sorted(set(unsafe) - layers.keys()):
        raise _untrusted(f"{path} is a pickle that imports {', '.join(others[:5])}")
    with torch.serialization.safe_globals(list(layers.values())):
        return torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)


def _untrusted(what: str) -> SettingsError:
    return SettingsError(
        f"{what}, so opening it can run code from the file. If you trust its author, use"
        " trust_pickle=True (--trust-pickle). Otherwise save the model as TorchScript"
    )


def _layer(name: str) -> Any:
    """Return a class of torch.nn by name, or None."""
    module, _, attribute = name.rpartition(".")
    if not module.startswith("torch.nn.modules."):
        return None
    layer = getattr(importlib.import_module(module), attribute, None)
    return layer if isinstance(layer, type) and issubclass(layer, torch.nn.Module) else None


def _tensors(module: Any) -> list[Any]:
    if not isinstance(module, torch.nn.Module):
        return []
    return [*module.parameters(), *module.buffers()]


def _arrays(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        found = output.detach()
        if found.dtype == torch.bfloat16:
            found = found.float()
        return found.cpu().numpy()
    if isinstance(output, Mapping):
        return {name: _arrays(each) for name, each in output.items() if each is not None}
    if isinstance(output, (tuple, list)):
        made = [_arrays(each) for each in output]
        return tuple(made) if isinstance(output, tuple) else made
    return output
