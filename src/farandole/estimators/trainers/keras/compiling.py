"""The arguments of ``compile`` on a rank: the optimizer, and losses and metrics for each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farandole.errors import DataError
from farandole.estimators.loaders.keras import output_list
from farandole.estimators.loaders.keras_arguments import open_arguments
from farandole.estimators.spec import OutputKind, Spec


def compile_options(keras: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``compile``: the estimator's, completed with the model's own."""
    options = open_arguments(keras, payload["compiled"])
    heads = payload.get("heads") or ()
    for name, value in open_arguments(keras, payload["options"]).items():
        # a list with one item per label
        if heads and isinstance(value, list | tuple) and len(value) == len(heads):
            value = dict(zip(heads, value, strict=True))
        options[name] = value
    options["optimizer"] = keras.optimizers.get(options["optimizer"])
    return options


def heads_of(outputs: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of outputs in a dict, in the order of the labels; an empty tuple for other
    outputs.

    Raises DataError if the names are not the labels': frameworks sort the keys of a dict, so the
    order of the outputs carries no information.
    """
    if not isinstance(outputs, Mapping) or len(outputs) == 1:
        return ()
    if set(outputs) != set(labels):
        raise DataError(
            f"the model's outputs are a dict of {', '.join(outputs)}, but the label columns are"
            f" {', '.join(labels)}. Give the outputs the names of their labels, or return a list"
            " in the order of label_cols"
        )
    return tuple(labels)


_ENTROPIES = {  # Keras's losses, in lower case without underscores: whether binary
    "sparsecategoricalcrossentropy": False,
    "categoricalcrossentropy": False,
    "categoricalfocalcrossentropy": False,
    "binarycrossentropy": True,
    "binaryfocalcrossentropy": True,
    "bce": True,
}


def output_kind(loss: Any) -> OutputKind | None:
    """Return the kind of classifier output that a Keras loss expects; None for other losses, and
    for losses of several outputs.
    """
    while isinstance(loss, list | tuple | dict) and len(loss) == 1:
        loss = next(iter(loss.values() if isinstance(loss, dict) else loss))
    if isinstance(loss, str):
        name, module = loss, "keras."
    else:
        named = loss if hasattr(loss, "__name__") else type(loss)
        name, module = named.__name__, f"{named.__module__}."
    binary = _ENTROPIES.get(name.lower().replace("_", ""))
    if binary is None or not module.startswith(("keras.", "tf_keras.")):
        return None
    config = loss.get_config() if hasattr(loss, "get_config") else {}
    return OutputKind("logits" if config.get("from_logits") else "probabilities", binary)


def losses_of(losses_given: Any, outputs: Any, model: Any, spec: Spec) -> list[Any]:
    """Return the loss of each label, paired with the outputs as in Keras. Raises ValueError for a
    loss of an unknown output.
    """
    heads, count = spec.payload["heads"], len(spec.columns.labels)
    # a list passed to compile(), which sorts the outputs by name
    if heads and isinstance(losses_given, list | tuple) and len(losses_given) == count:
        losses_given = dict(zip(sorted(heads), losses_given, strict=True))
    if isinstance(losses_given, Mapping):
        own = (
            list(outputs) if isinstance(outputs, Mapping) else getattr(model, "output_names", None)
        )
        names = list(heads or own or losses_given)
        if not set(losses_given) <= set(names):
            raise ValueError(f"the outputs are {', '.join(names)}")
        return [losses_given.get(name) for name in names]
    losses = output_list(losses_given)
    return losses if len(losses) == count else losses * count
