"""Models of any framework: as a file that any process can open, and opened once in each process."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import shutil
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from farandole.base.optional import require
from farandole.base.pickled import dumps
from farandole.data import paths
from farandole.errors import SettingsError, did_you_mean
from farandole.inference.isolate import BatchError
from farandole.inference.stream import Predictor
from farandole.inference.versions import version

# that a user may give, beside what all columns have
MODEL_OPTIONS = ("custom_objects", "signature", "trust_pickle")
_OTHER_OPTIONS = (
    "returns",
    "batch_size",
    "inputs",
    "shapes",
    "dtypes",
    "fill",
    "decode",
    "stack",
    "errors",
    "key",
)
KEPT = 4  # models that a process keeps open: the last ones used
_SUFFIXES = {
    ".pt": "torch",
    ".pth": "torch",
    ".pt2": "torch",
    ".ts": "torch",
    ".bin": "torch",
    ".keras": "keras",
    ".h5": "keras",
    ".onnx": "onnx",
}
_CURES = {
    "keras": (
        ". Classes and functions of the program: custom_objects={name: object}; if you trust"
        " whoever made a file with functions in it: trust_pickle=True (--trust-pickle)"
    )
}
_opened: OrderedDict[tuple[Any, ...], Predictor] = OrderedDict()
_lock = threading.Lock()


class Execution(NamedTuple):
    """Where a model computes. ``threads``: 0 leaves the framework's own number. ``device``: "cpu",
    "cuda", "cuda:1".
    """

    threads: int = 0
    device: str = "cpu"


class Model(NamedTuple):
    """A model that can be sent and opened. ``kind``: the module in ``frameworks`` that opens it.
    ``content``: of its file; empty where ``path`` names it. ``options``: for that module.
    ``returns``: the type of what it gives, where the model tells. ``digest``: of the content, or of
    the path and the version of its file. ``identity``: of a path's file, or where the user told
    more than the content does. ``load``: of a function that loads the model: another one each time
    it is packed, as nobody knows what it will load.
    """

    kind: str
    path: str = ""
    content: bytes = b""
    suffix: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    returns: str = ""
    digest: str = ""
    identity: str = ""
    load: str = ""

    @property
    def file_name(self) -> str:
        suffix = self.suffix or os.path.splitext(self.path.rstrip("/"))[1]
        return f"farandole-model-{self.digest}{suffix}"

    @classmethod
    def of_file(cls, kind: str, path: Path, options: Mapping[str, Any], returns: str = "") -> Model:
        """Made of a file that may be removed afterwards."""
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:24]
        return cls(kind, "", content, path.suffix, tuple(sorted(options.items())), returns, digest)


def pack(model: Any, **options: Any) -> Model:
    """A model as it is sent: a torch module, a Keras model, an ONNX model, a function on arrays, a
    function without arguments that gives one of these, or the path of a file with one. ``options``:
    for the module that opens it; ``custom_objects``: classes and functions of a Keras model, by
    name.

    SettingsError for what is none of these.
    """
    if isinstance(model, Model):
        return model
    if unknown := [name for name in options if name not in MODEL_OPTIONS]:
        raise SettingsError(
            "there is no option"
            f" {unknown[0]!r}{did_you_mean(unknown[0], [*MODEL_OPTIONS, *_OTHER_OPTIONS])}"
        )
    given = {name: value for name, value in options.items() if value not in (None, False, {})}
    if "custom_objects" in given:
        given["custom_objects"] = dumps(given["custom_objects"])
    if isinstance(model, (str, os.PathLike)):
        path = paths.normalized(os.fspath(model))
        kind, named = _kind_of_path(path), f"{path} {version(path) or uuid.uuid4().hex}"
        digest = hashlib.sha256(named.encode()).hexdigest()[:24]
        return Model(
            kind, path, options=tuple(sorted(given.items())), digest=digest, identity=named
        )
    with tempfile.TemporaryDirectory(prefix="farandole-model-") as folder:
        packed: Model = _module(kind_of(model)).pack(model, Path(folder), given)
    return packed


def open_model(
    model: Model,
    execution: Execution,
    folder: str | None = None,
    fetch: Callable[[], bytes] | None = None,
) -> Predictor:
    """The model, ready to be called: opened once in this process for as long as it is among the
    last ones used.

    ``folder``: where its file is put for the processes of this host, which map it; default: a
    temporary one, which is removed when the model is open. ``fetch``: gives the content, if the
    model came without.
    """
    local = paths.local(model.path) if model.path else None
    key = (model.digest, model.load, model.options, execution, version(local) if local else "")
    with _lock:
        found = _opened.get(key)
        if found is None:
            with _file(model, folder, fetch or (lambda: model.content)) as path, _opening(model):
                found = _module(model.kind).opened(path, dict(model.options), execution)
            _opened[key] = found
        _opened.move_to_end(key)
        while len(_opened) > KEPT:
            _opened.popitem(last=False)
        return found


@contextlib.contextmanager
def computing(predictor: object) -> Iterator[None]:
    """After an error of CUDA a device computes nothing more: it is no row's error, and the model is
    not used again.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(text in str(error) for text in ("CUDA error", "device-side assert")):
            raise
        with _lock:
            for key in [key for key, found in _opened.items() if found is predictor]:
                del _opened[key]
        raise BatchError(error) from error


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> Predictor:
    """What a loader gave, ready to be called."""
    if isinstance(model, (str, os.PathLike)):
        packed = pack(model)._replace(options=tuple(sorted(options.items())))
        with _file(packed, None, bytes) as path:
            opened: Predictor = _module(packed.kind).opened(path, options, execution)
            return opened
    wrapped: Predictor = _module(kind_of(model)).wrapped(model, options, execution)
    return wrapped


def kind_of(model: Any) -> str:
    """Which module here knows a model. Nothing is imported to find out."""
    for base in type(model).__mro__:
        top, name = base.__module__.split(".")[0], base.__name__
        if (
            top in ("keras", "tf_keras") or "keras" in base.__module__.split(".")[:3]
        ) and name == "Model":
            return "keras"
    for base in type(model).__mro__:
        top, name = base.__module__.split(".")[0], base.__name__
        if top == "torch" and name in ("Module", "ExportedProgram"):
            return "torch"
        if (top, name) == ("onnx", "ModelProto"):
            return "onnx"
        if top == "tensorflow" and hasattr(model, "signatures"):
            return "tensorflow"
    if callable(model):
        return "function"
    method = (
        " (here its method: model.predict)" if callable(getattr(model, "predict", None)) else ""
    )
    raise SettingsError(
        f"model={model!r:.80} is a {type(model).__name__}: give a torch module, a Keras or ONNX"
        f" model, a function on arrays{method}, a function without arguments that loads one of"
        " these, or the path of a file"
    )


def is_loader(function: Callable[..., Any]) -> bool:
    """Whether a function takes no argument, so that it gives the model, instead of being it."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # of C, as numpy's are
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]
    return not needed


def _kind_of_path(path: str) -> str:
    name = path.rstrip("/")
    if paths.local(name) and os.path.isdir(paths.local(name) or ""):
        if os.path.exists(os.path.join(paths.local(name) or "", "saved_model.pb")):
            return "tensorflow"
        raise SettingsError(
            f"model={path!r} is a folder without saved_model.pb: give a SavedModel, or a file"
        )
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if not suffix:
        return "tensorflow"
    raise SettingsError(
        f"model={path!r}: {suffix!r} is no known kind of file; known: {', '.join(_SUFFIXES)}, and"
        " the folder of a SavedModel. For others give a function that loads the model"
    )


def _module(kind: str) -> Any:
    return importlib.import_module(f"farandole.inference.frameworks.{kind}")


@contextlib.contextmanager
def _file(model: Model, folder: str | None, fetch: Callable[[], bytes]) -> Iterator[str]:
    """A path of the model on this machine."""
    local = paths.local(model.path) if model.path else None
    if local is not None:
        if not os.path.exists(local):
            raise SettingsError(
                f"model={model.path!r} is not there on {os.uname().nodename}: name a path that all"
                " hosts reach, or give the model itself, which is sent to them"
            )
        yield local
    elif folder is not None:
        yield _kept(model, folder, fetch)
    else:
        with tempfile.TemporaryDirectory(prefix="farandole-model-") as temporary:
            yield _kept(model, temporary, fetch)


@contextlib.contextmanager
def _opening(model: Model) -> Iterator[None]:
    """SettingsError, with what the framework says, for a file that it does not open. Errors of the
    program's own functions are theirs.
    """
    try:
        yield
    except Exception as error:
        if model.kind == "function" or isinstance(error, SettingsError):
            raise
        named = f"model={model.path!r}" if model.path else "the model"
        raise SettingsError(
            f"{named} cannot be opened: {type(error).__name__}:"
            f" {_short(error)}{_CURES.get(model.kind, '')}"
        ) from error


def _short(error: Exception) -> str:
    """Keras shows the whole configuration of a model."""
    text = " ".join(str(error).split())
    return text if len(text) <= 600 else f"{text[:400]} ... {text[-200:]}"


def _kept(model: Model, folder: str, fetch: Callable[[], bytes]) -> str:
    """The model's file in ``folder``, which processes of this host share: the first one
    writes it.
    """
    path = os.path.join(folder, model.file_name)
    if os.path.exists(path):
        return path
    temporary = f"{path}.{os.getpid()}"
    if not model.path:
        Path(temporary).write_bytes(fetch())
    else:
        system, inside = require("fsspec.core", "loading the model").url_to_fs(model.path)
        system.get(inside, temporary, recursive=model.kind == "tensorflow")
    try:
        os.rename(temporary, path)
    except OSError:  # a folder that another process was faster with
        shutil.rmtree(temporary, ignore_errors=True)
    return path
