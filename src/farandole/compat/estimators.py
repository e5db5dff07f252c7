"""The estimators of ``horovod.spark``."""

from __future__ import annotations

from typing import Any


def by_row(kind: Any, model: Any, name: str, module: str) -> Any:
    """Return Farandole's estimator ``kind``, which returns a ``model``, as the class ``name`` of
    ``module``.

    Its ``transformation_fn`` takes a row, as in Horovod, and subclasses may override the same
    methods as in Horovod.
    """
    body = {"_by_row": True, "_gives": model, "__module__": module, "__doc__": kind.__doc__}
    return type(kind)(name, (Overridable, kind), body)


class Overridable:
    """The methods of Horovod's estimators that subclasses override (such as SynapseML's).

    These are the backend, and the class and arguments of the model that ``fit`` returns.
    """

    _gives: Any

    def _get_or_create_backend(self) -> Any:
        return super()._backend(spark=True)  # type: ignore[misc]

    def _backend(self, spark: bool = False) -> Any:
        if _same(self, "_get_or_create_backend"):
            return super()._backend(spark)  # type: ignore[misc]
        return self._get_or_create_backend()

    def get_model_class(self) -> Any:
        return self._gives

    def _get_model_kwargs(self, model: Any, history: Any, *others: Any) -> dict[str, Any]:
        value, names = self.getOrDefault, self._others()  # type: ignore[attr-defined]
        own = (
            ("custom_objects",)
            if "_floatx" in names
            else ("input_shapes", "loss", "loss_constructors")
        )
        return {
            "model": model,
            "history": history,
            "feature_columns": value("feature_cols"),
            "label_columns": value("label_cols"),
            **dict(zip(names, others, strict=True)),
            **{name: value(name) for name in own},
        }

    def model_of(self, *arguments: Any) -> Any:
        made = super().model_of(*arguments)  # type: ignore[misc]
        if _same(self, "get_model_class") and _same(self, "_get_model_kwargs"):
            return made
        given = [made.getOrDefault(name) for name in ("model", "history", *self._others())]
        return self.get_model_class()(**self._get_model_kwargs(*given))

    def _others(self) -> tuple[str, ...]:
        """Return the arguments of Horovod's models that follow the model and its history, in
        order.
        """
        if self.hasParam("custom_objects"):  # type: ignore[attr-defined]  # of Keras
            return ("run_id", "_metadata", "_floatx")
        return ("optimizer", "run_id", "_metadata")


def _same(found: Any, name: str) -> bool:
    """Return whether the method is not overridden."""
    return getattr(type(found), name) is vars(Overridable)[name]
