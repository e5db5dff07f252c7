"""The arguments of a script, and the data that they represent.

An argument is text, a number, or an object with one of two methods:

- ``_run_input() -> RunInput`` for data that the run reads;
- ``_run_output(run_id) -> RunOutput`` for a folder that the run writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from farandole.job.runs.spec import InputSpec


class RunInput(NamedTuple):
    """Data that a run reads.

    - ``name``: The name in ``Run.input_datasets``, and of the variable with the path.
    - ``source``: A path, or a URL that fsspec reads.
    - ``mode``: ``mount``, ``download``, or ``direct``, where the script gets the dataset's id.
    - ``dataset``: The ``id``, ``name`` and ``version`` of the dataset.
    - ``path_on_compute``: The requested path, for information.
    """

    name: str
    source: str
    mode: str
    dataset: Mapping[str, Any] = {}
    path_on_compute: str | None = None


class RunOutput(NamedTuple):
    """A folder that a run writes.

    - ``name``: The name in ``Run.output_datasets``, and of the variable with the path.
    - ``path``: The existing folder that the script writes to.
    - ``details``: The entry of ``outputDatasets`` in ``get_details()``.
    """

    name: str
    path: str
    details: Mapping[str, Any] = {}


class Arguments(NamedTuple):
    """The arguments of a run.

    - ``words``: The arguments for Farandole, with ``{name}`` for the path of an input.
    - ``shown``: The arguments as ``get_details()`` lists them.
    - ``inputs``, ``outputs``: The data of the run by name.
    """

    words: list[str]
    shown: list[str]
    inputs: dict[str, RunInput]
    outputs: dict[str, RunOutput]

    def input_specs(self, *, elsewhere: bool = False) -> dict[str, InputSpec]:
        """Return the inputs that Farandole prepares.

        ``elsewhere``: the ranks are on other hosts, which get copies of this host's files.
        """
        return {
            name: InputSpec(name, _copied(each.source) if elsewhere else each.source, each.mode)
            for name, each in self.inputs.items()
            if each.mode != "direct"
        }

    def variables(self) -> dict[str, str]:
        """Return the environment variables for the inputs and outputs."""
        found = {
            name: str(each.dataset.get("id", ""))
            for name, each in self.inputs.items()
            if each.mode == "direct"
        }
        found |= {name: each.path for name, each in self.outputs.items()}
        if self.inputs:
            listed = (f"{name}:{each.mode}" for name, each in self.inputs.items())
            found["AZUREML_DATASET_ENVIRONMENT_VARS"] = ",".join(listed)
        if self.outputs:
            found["AZUREML_DATASET_FILE_OUTPUTS"] = ";".join(self.outputs)
        return found


def _copied(source: str) -> str:
    """Return a local path as a ``file://`` URL, which other hosts get as a copy; URLs stay."""
    return source if "://" in source else f"file://{source}"


def translated(given: Iterable[Any], further: Iterable[Any], run_id: str) -> Arguments:
    """Return the arguments of a run.

    Arguments:
        given: The script's arguments.
        further: Inputs and outputs that are not arguments.
        run_id: The id of the run.
    """
    found = Arguments([], [], {}, {})
    for each in given:
        word, shown = _word(each, found, run_id)
        found.words.append(word)
        found.shown.append(shown)
    for each in further:
        _word(each, found, run_id)
    # str() of a DataReference is the name of its variable.
    words = [
        f"{{{word[1:]}}}" if word[:1] == "$" and word[1:] in found.inputs else word
        for word in found.words
    ]
    return found._replace(words=words)


def _word(given: Any, found: Arguments, run_id: str) -> tuple[str, str]:
    """Return an argument for Farandole and for ``get_details()``; add its data to ``found``."""
    if hasattr(given, "_run_input"):
        data: RunInput = given._run_input()
        found.inputs[data.name] = data
        word = str(data.dataset.get("id", "")) if data.mode == "direct" else f"{{{data.name}}}"
        return word, f"{type(given).__name__}:{data.name}"
    if hasattr(given, "_run_output"):
        output: RunOutput = given._run_output(run_id)
        found.outputs[output.name] = output
        return output.path, f"{type(given).__name__}:{output.name}"
    return str(given), str(given)
