"""``farandole predict``: computes a model's predictions for Parquet files, with several
processes.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from farandole.base.optional import require
from farandole.cli.parsing import Parser, one_of, say
from farandole.errors import DataError, SettingsError

EXAMPLE = "farandole predict --model m.pt --input in.parquet --output out.parquet -np 4"


def parser() -> Parser:
    result = Parser(
        prog="farandole predict",
        example=EXAMPLE,
        description=(
            "Write a model's predictions for all rows of Parquet files. An interrupted run resumes"
            " with the missing files when started again."
        ),
    )
    _add_files(result)
    _add_columns(result)
    _add_conversions(result)
    _add_running(result)
    return result


def _add_files(parser: Parser) -> None:
    """Add the options for model, input, output and number of processes."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="FILE",
        help=(
            "a torch file (.pt), a .keras or .onnx file, a SavedModel folder, or FILE.py:FUNCTION"
            " or MODULE:FUNCTION, a function of arrays or a function without arguments that"
            " returns a model"
        ),
    )
    parser.add_argument(
        "--input",
        required=True,
        action="append",
        metavar="PATH",
        help="a file, folder or URL; repeatable",
    )
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="folder for the files of predictions"
    )
    parser.add_argument(
        "-np",
        "--num-proc",
        "--np",
        dest="np",
        type=int,
        default=1,
        metavar="N",
        help="processes (1)",
    )


def _add_columns(parser: Parser) -> None:
    """Add the options for columns of the input and the output."""
    parser.add_argument(
        "--inputs",
        metavar="A,B",
        help=(
            "input columns of the model (default: the only column, or the only column of arrays)"
        ),
    )
    parser.add_argument(
        "--keep", metavar="A,B", help="input columns to copy to the output (default: all)"
    )
    parser.add_argument(
        "--output-columns",
        metavar="A,B",
        help="names of the new column, or of the fields of a struct (default: prediction)",
    )
    parser.add_argument(
        "--returns",
        metavar="TYPE",
        help="Spark type of the predictions: float, array<float>, ...",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="ROWS", help="rows per call of the model (default: 256)"
    )


def _add_conversions(parser: Parser) -> None:
    """Add the options that convert columns to the model's arrays."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="A=28,28",
        help="shape of a column's rows; repeatable",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        default=[],
        metavar="A=float32",
        help="type of a column; repeatable",
    )
    parser.add_argument(
        "--fill",
        action="append",
        default=[],
        metavar="A=0",
        help="value that replaces null in a column; repeatable",
    )
    parser.add_argument(
        "--decode",
        action="append",
        default=[],
        metavar="A=FILE.py:FUNCTION",
        help="decode the bytes of a column's rows as arrays; repeatable",
    )
    parser.add_argument(
        "--stack",
        action="store_true",
        help="columns are numbers; stack them as one array for the model",
    )


def _add_running(parser: Parser) -> None:
    """Add the options for errors, resources and model files."""
    parser.add_argument(
        "--errors",
        type=one_of(("raise", "column")),
        choices=("raise", "column"),
        help=(
            "when a row fails: raise an error, or write null and the error in one more column"
            " (default: raise)"
        ),
    )
    parser.add_argument("--key", metavar="A", help="column that identifies a row in errors")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads per process (default: an equal share of the cores)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda (one GPU per process) or cuda:1 (default: cpu)"
    )
    parser.add_argument(
        "--rows-per-file",
        type=int,
        metavar="N",
        help="maximum number of rows per output file (default: 131072)",
    )
    parser.add_argument(
        "--signature", metavar="NAME", help="signature of the SavedModel (default: serving_default)"
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="allow model files that contain code, and run that code",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--model-version",
        metavar="NAME",
        help=(
            "name that identifies the model when the command resumes (default: the model's file"
            " and its time)"
        ),
    )


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    given = {
        "inputs": _listed(options.inputs),
        "keep": _listed(options.keep),
        "returns": options.returns,
        "output_columns": _output(options.output_columns),
        "batch_size": options.batch_size,
        "errors": options.errors,
        "key": options.key,
        "threads": options.threads,
        "device": options.device,
        "signature": options.signature,
        "rows_per_file": options.rows_per_file,
        "model_version": options.model_version,
        "trust_pickle": options.trust_pickle,
        "shapes": {name: _sizes(name, text) for name, text in _pairs("--shape", options.shape)},
        "dtypes": dict(_pairs("--dtype", options.dtype)),
        "fill": {name: _value(text) for name, text in _pairs("--fill", options.fill)},
        "decode": {name: _function(text) for name, text in _pairs("--decode", options.decode)},
    }
    if options.np < 1:
        raise SettingsError(f"-np {options.np} must be at least 1")
    try:
        require("pyarrow", "farandole predict")
    except ImportError as error:
        raise SettingsError(str(error)) from error
    from farandole.inference import predict_parquet

    model = _model(options.model, {name: given.pop(name) for name in ("signature", "trust_pickle")})
    try:
        with _end_on_signals():
            done = predict_parquet(
                model,
                options.input,
                options.output,
                np=options.np,
                stack=options.stack,
                overwrite=options.overwrite,
                **{name: value for name, value in given.items() if value not in (None, {})},
            )
    except DataError as error:
        raise SettingsError(str(error)) from error
    return say(f"{done}: {options.output}")


@contextlib.contextmanager
def _end_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, which removes temporary and incomplete files."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    # Custom handlers were set on purpose.
    ours = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _model(text: str, options: dict[str, Any]) -> Any:
    """Return the packed model: a path, or the function named by FILE.py:FUNCTION or
    MODULE:FUNCTION, identified by its file and name.
    """
    from farandole.inference.models import pack

    if os.path.exists(text) or "://" in text or ":" not in text:
        return pack(text, **options)
    function = _function(text)
    source = text.rpartition(":")[0]
    path = source if source.endswith(".py") else getattr(sys.modules[source], "__file__", None)
    packed = pack(function, **options)
    if path is None or not os.path.isfile(path):  # a module written in C
        return packed
    with open(path, "rb") as file:
        return packed._replace(identity=f"{text} {hashlib.sha256(file.read()).hexdigest()}")


def _function(text: str) -> Any:
    source, _, name = text.rpartition(":")
    if not name.isidentifier() or not (
        source.endswith(".py") or all(map(str.isidentifier, source.split(".")))
    ):
        raise SettingsError(
            f"{text!r} does not name a function: write FILE.py:FUNCTION or MODULE:FUNCTION"
        )
    try:
        if source.endswith(".py"):
            space = runpy.run_path(source)
        else:
            sys.path.insert(0, os.getcwd())
            space = vars(importlib.import_module(source))
    except (ImportError, OSError) as error:
        raise SettingsError(f"{source} of {text!r} cannot be imported: {error}") from error
    if not callable(space.get(name)):
        raise SettingsError(f"{source} has no function {name!r}")
    return space[name]


def _listed(text: str | None) -> list[str] | None:
    return text.split(",") if text else None


def _output(text: str | None) -> str | list[str] | None:
    return text.split(",") if text and "," in text else text


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    found = [text.partition("=")[::2] for text in texts]
    for text, (name, value) in zip(texts, found, strict=True):
        if not name or not value:
            raise SettingsError(f"{flag} {text} must be COLUMN=VALUE")
    return found


def _sizes(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise SettingsError(
            f"--shape {name}={text} must be COLUMN=SIZE,SIZE,..., in whole numbers"
        ) from None


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
