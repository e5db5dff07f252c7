"""The estimators of ``horovod.spark``."""

from __future__ import annotations

from typing import Any


def by_row(kind: Any, model: Any, name: str, module: str) -> Any:
    """Farandole's estimator ``kind``, which gives a ``model``, as the class ``name`` of ``module``.
    Its ``transformation_fn`` takes a row, as Horovod's does, and subclasses may override what
    Horovod's override.
    """
    body = {"_by_row": True, "_gives": model, "__module__": module, "__doc__": kind.__doc__}
    return type(kind)(name, (Overridable, kind), body)


class Overridable:
    """What subclasses of Horovod's estimators override (those of SynapseML do), by its names: the
    backend, and the class and arguments of the model that ``fit`` gives.
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
        """What Horovod's estimators tell of a model beside itself and its history, in their
        order.
        """
        if self.hasParam("custom_objects"):  # type: ignore[attr-defined]  # of Keras
            return ("run_id", "_metadata", "_floatx")
        return ("optimizer", "run_id", "_metadata")


def _same(found: Any, name: str) -> bool:
    """Whether nobody has overridden the method."""
    return getattr(type(found), name) is vars(Overridable)[name]
