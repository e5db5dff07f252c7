"""Models of any framework, packed as files that any process can open, once per process."""

from __future__ import annotations

import contextlib
import hashlib
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
from farandole.inference.frameworks import FRAMEWORKS, kind_of, kind_of_path, module_of
from farandole.inference.isolate import BatchError
from farandole.inference.stream import Predictor
from farandole.inference.versions import version

# the user's options for a model, in addition to those for columns
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
KEPT = 4  # number of recently used models that a process keeps open
_opened: OrderedDict[tuple[Any, ...], Predictor] = OrderedDict()
_lock = threading.Lock()


class Execution(NamedTuple):
    """The resources of a model. ``threads``: 0 keeps the framework's default. ``device``: "cpu",
    "cuda", "cuda:1".
    """

    threads: int = 0
    device: str = "cpu"


class Model(NamedTuple):
    """A model in a form that can be sent to other processes and opened there.

    ``kind``: the framework, a name in ``FRAMEWORKS``. ``content``: the bytes of the model's file;
    empty if ``path`` names the file. ``options``: options for the framework's module. ``returns``:
    the type of the results, if the model declares it. ``digest``: the digest of the content, or of
    the path and the file's version. ``identity``: the identity of the file at a path, or digests of
    an object's parts by name, compared by ``predict_parquet``. ``load``: a random id of a function
    that loads the model, new each time the function is packed, because the loaded model is unknown.
    """

    kind: str
    path: str = ""
    content: bytes = b""
    suffix: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    returns: str = ""
    digest: str = ""
    identity: str | Mapping[str, str] = ""
    load: str = ""

    @property
    def file_name(self) -> str:
        suffix = self.suffix or os.path.splitext(self.path.rstrip("/"))[1]
        return f"farandole-model-{self.digest}{suffix}"

    @classmethod
    def of_file(cls, kind: str, path: Path, options: Mapping[str, Any], returns: str = "") -> Model:
        """Create a model from a file, which may be removed afterwards."""
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:24]
        return cls(kind, "", content, path.suffix, tuple(sorted(options.items())), returns, digest)


def pack(model: Any, **options: Any) -> Model:
    """Pack a model, to be sent to other processes.

    ``model``: a torch module, a Keras model, an ONNX model, a function on arrays, a function
    without arguments that returns one of these, or the path of a file with one. ``options``:
    options for the module that opens it; ``custom_objects``: classes and functions of a Keras
    model, by name.

    Raises SettingsError for any other object.
    """
    if isinstance(model, Model):
        return model
    if unknown := [name for name in options if name not in MODEL_OPTIONS]:
        raise SettingsError(
            "there is no option"
            f" {unknown[0]!r}{did_you_mean(unknown[0], [*MODEL_OPTIONS, *_OTHER_OPTIONS])}"
        )
    chosen = {name: value for name, value in options.items() if value not in (None, False, {})}
    if "custom_objects" in chosen:
        chosen["custom_objects"] = dumps(chosen["custom_objects"])
    if isinstance(model, (str, os.PathLike)):
        path = paths.normalized(os.fspath(model))
        kind, named = kind_of_path(path), f"{path} {version(path) or uuid.uuid4().hex}"
        digest = hashlib.sha256(named.encode()).hexdigest()[:24]
        return Model(
            kind, path, options=tuple(sorted(chosen.items())), digest=digest, identity=named
        )
    with tempfile.TemporaryDirectory(prefix="farandole-model-") as folder:
        packed: Model = module_of(kind_of(model)).pack(model, Path(folder), chosen)
    return packed


def pack_with(model: Any, options: dict[str, Any]) -> Model:
    """Pack a model with the model options among ``options``, and remove these from ``options``."""
    own = {name: options.pop(name) for name in MODEL_OPTIONS if name in options}
    return pack(model, **own)


def open_model(
    model: Model,
    execution: Execution,
    folder: str | None = None,
    fetch: Callable[[], bytes] | None = None,
) -> Predictor:
    """Return the opened model. A process opens it once, as long as it is among the most recently
    used.

    ``folder``: holds the model's file for all processes of this host, which map it; default: a
    temporary folder, which is removed once the model is open. ``fetch``: returns the content of a
    model that came without it.
    """
    local = paths.local(model.path) if model.path else None
    key = (model.digest, model.load, model.options, execution, version(local) if local else "")
    with _lock:
        predictor = _opened.get(key)
        if predictor is None:
            with _file(model, folder, fetch or (lambda: model.content)) as path, _opening(model):
                predictor = module_of(model.kind).load(path, dict(model.options), execution)
            _opened[key] = predictor
        _opened.move_to_end(key)
        while len(_opened) > KEPT:
            _opened.popitem(last=False)
        return predictor


@contextlib.contextmanager
def computing(predictor: object) -> Iterator[None]:
    """Discard the model after a CUDA error within the context: the device is unusable from then on,
    and the rows are not the cause.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(text in str(error) for text in ("CUDA error", "device-side assert")):
            raise
        with _lock:
            for key in [key for key, cached in _opened.items() if cached is predictor]:
                del _opened[key]
        raise BatchError(error) from error


def wrap_loaded(model: Any, options: Mapping[str, Any], execution: Execution) -> Predictor:
    """Open the model that a loader returned."""
    if isinstance(model, (str, os.PathLike)):
        packed = pack(model)._replace(options=tuple(sorted(options.items())))
        with _file(packed, None, bytes) as path:
            opened: Predictor = module_of(packed.kind).load(path, options, execution)
            return opened
    wrapped: Predictor = module_of(kind_of(model)).wrap(model, options, execution)
    return wrapped


def is_loader(function: Callable[..., Any]) -> bool:
    """Return whether a function takes no argument: it then returns the model rather than being the
    model.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # a function written in C, like numpy's
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]
    return not needed


@contextlib.contextmanager
def _file(model: Model, folder: str | None, fetch: Callable[[], bytes]) -> Iterator[str]:
    """Yield a path of the model on this machine."""
    local = paths.local(model.path) if model.path else None
    if local is not None:
        if not os.path.exists(local):
            raise SettingsError(
                f"model={model.path!r} does not exist on {os.uname().nodename}. Pass a path that"
                " all hosts reach, or the model itself, which is sent to them"
            )
        yield local
    elif folder is not None:
        yield _kept(model, folder, fetch)
    else:
        with tempfile.TemporaryDirectory(prefix="farandole-model-") as temporary:
            yield _kept(model, temporary, fetch)


@contextlib.contextmanager
def _opening(model: Model) -> Iterator[None]:
    """Raise SettingsError, with the framework's message, for a file that the framework cannot open.
    Errors of user functions pass through.
    """
    try:
        yield
    except Exception as error:
        if FRAMEWORKS[model.kind].own_code or isinstance(error, SettingsError):
            raise
        named = f"model={model.path!r}" if model.path else "the model"
        raise SettingsError(
            f"{named} cannot be opened: {type(error).__name__}:"
            f" {_short(error)}{FRAMEWORKS[model.kind].cure}"
        ) from error


def _short(error: Exception) -> str:
    """Shorten an error, because Keras's messages contain the model's whole configuration."""
    text = " ".join(str(error).split())
    return text if len(text) <= 600 else f"{text[:400]} ... {text[-200:]}"


def _kept(model: Model, folder: str, fetch: Callable[[], bytes]) -> str:
    """Return the model's file in ``folder``, which processes of this host share: the first process
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
        system.get(inside, temporary, recursive=bool(FRAMEWORKS[model.kind].folder))
    try:
        os.rename(temporary, path)
    except OSError:  # another process was faster to create the folder
        shutil.rmtree(temporary, ignore_errors=True)
    return path
