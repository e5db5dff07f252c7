"""``Pipeline``: a model whose layers are on several ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from farandole.checks.replicas import numbers
from farandole.core.api.objects import allgather_object
from farandole.core.groups.messages import Messages
from farandole.errors import HorovodInternalError
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras.callbacks import BroadcastGlobalVariablesCallback
from farandole.keras.files import ORBAX, path_of, written_once
from farandole.keras.fit import around, flat
from farandole.keras.optimizer import confined
from farandole.keras.pipeline import chain
from farandole.keras.pipeline.callbacks import PipelineCallback, ShareLogs, StopTogether
from farandole.keras.pipeline.computation import on_backend
from farandole.keras.pipeline.messages import Kind, Stages, Topic
from farandole.keras.pipeline.steps import Steps, Whole
from farandole.keras.pipeline.weights import Weights, set_weights


class Pipeline(keras.Model):  # type: ignore[misc]
    """A model divided into stages on different ranks. Each rank holds weights, gradients and
    optimizer state of its layers only. ``compile``, ``fit``, ``evaluate`` and ``predict`` work as
    in one process.

    All ranks create the pipeline with the same arguments, and call its methods together, with the
    same data (or the same number of batches). Rank r has stage r % stages; the ranks of one stage
    are its replicas, and train together on different data. The pipeline trains copies of the
    model's layers, which begin with rank 0's weights; the model itself is neither changed nor held.

    ``model``: a keras.Sequential, or a keras.Model(inputs, outputs) whose layers form a chain.
    ``stages``: their number; the number of ranks is stages x replicas. ``micro_batches``: the
    number of parts into which a batch is cut, by rows, so that stages work at the same time.
    ``cuts``: the names of the first layers of the second and later stages. By default stages have
    about equal costs, estimated from the weights of their layers and how often a row uses them.

    Attributes to read: ``stage`` (of this rank), ``replicas`` (the number of ranks with this stage)
    and ``layers_of_stage`` (a Sequential of its layers). ``plain_model()`` and ``save(path)``
    assemble the whole model.

    Raises ValueError on all ranks for a layer outside of a chain (the error names the layer), more
    stages than ranks or layers allow, a backend other than PyTorch and TensorFlow, and ranks with
    different models or arguments.

    Example:
        pipeline = hvd.Pipeline(make_model(), stages=2, micro_batches=4)
        pipeline.compile(keras.optimizers.Adam(0.001), "mse")
        pipeline.fit(x, y, batch_size=64)
        pipeline.save("model.keras")  # the plain model
    """

    def __init__(
        self,
        model: Any,
        stages: int = 2,
        micro_batches: int = 4,
        *,
        cuts: Sequence[str] | None = None,
    ) -> None:
        plan = chain.plan_of(model, stages, micro_batches, cuts)
        super().__init__(name=f"{model.name}_pipeline")
        self._own = _Own(plan)
        self.stage, self.replicas = self._own.wire.number, self._own.replicas.size()
        # stages are compiled; a step is not, because it waits for other ranks
        self.run_eagerly, self.jit_compile = True, False
        self.layers_of_stage = plan.layers
        self.built = True
        with self._together():
            self._own.weights.deal([place.layer for place in plan.cut.places])

    # Methods of keras.Model.

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        **options: Any,
    ) -> None:
        """Compile as ``keras.Model.compile`` does. Gradients are averaged over replicas.

        ``optimizer``: a plain one, or a ``DistributedOptimizer`` with options for the averaging.
        Raises ValueError for options that need more than one stage: loss scaling of mixed_float16,
        global_clipnorm.
        """
        for name, known in (("jit_compile", (False, "auto", None)), ("steps_per_execution", (1,))):
            if (value := options.pop(name, known[0])) not in known:
                raise ValueError(
                    f"Pipeline: {name}={value} is not supported, because each stage is compiled"
                    f" separately. Remove {name}"
                )
        optimizer = keras.optimizers.get(optimizer)
        self._check(
            optimizer,
            scales=self.dtype_policy.name == "mixed_float16"
            and options.get("auto_scale_loss", True),
        )
        super().compile(
            confined(optimizer, self._own.replicas),
            loss,
            loss_weights,
            metrics,
            weighted_metrics,
            run_eagerly=True,
            jit_compile=False,
            **options,
        )
        self._own.reset(eager=run_eagerly)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train as ``keras.Model.fit`` does. All callbacks of all ranks see the same epoch logs,
        and all ranks stop together.
        """
        bound = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        users = flat(callbacks)
        self._own.meet()
        self._agree(bound.arguments, users)
        first, last = [ShareLogs(self._own.wire, self._end)], [StopTogether()]
        around(bound, callbacks, first, last, PipelineCallback)
        paths = allgather_object([path_of(callback) for callback in users])
        with written_once(users, paths, context.rank()), self._together():
            return super().fit(*bound.args[1:], **bound.kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as ``keras.Model.evaluate``, with the same result on all ranks of a
        pipeline.
        """
        self._own.meet(apart=True)
        with self._together():
            result = super().evaluate(*args, **kwargs)
            self._own.steps.end()
        return result

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict as ``keras.Model.predict``, with the same result on all ranks of a pipeline."""
        self._own.meet(apart=True)
        with self._together():
            result = super().predict(*args, **kwargs)
            self._own.steps.end()
        return result

    def save(self, filepath: Any, overwrite: bool = True, **options: Any) -> None:
        """Write the plain, uncompiled model with its weights on rank 0: see ``plain_model``.

        All ranks call this; ranks of the first pipeline wait for the file.
        """
        self._have_written(lambda model: model.save(filepath, overwrite=overwrite, **options))

    def save_weights(self, filepath: Any, overwrite: bool = True, **options: Any) -> None:
        """Write the weights of the plain model on rank 0, as ``save`` does."""
        self._have_written(
            lambda model: model.save_weights(filepath, overwrite=overwrite, **options)
        )

    def load_weights(self, filepath: Any, **options: Any) -> None:
        """Broadcast the weights of a file that rank 0 reads, written from the plain model or from a
        pipeline. All ranks call this.
        """
        self._own.meet()
        with self._together():
            layers: list[Any] | None = None
            if context.rank() == 0:
                model, layers = self._own.recipe.model()
                model.load_weights(filepath, **options)
            self._own.weights.deal(layers)

    def plain_model(self) -> Any:
        """Return a plain, uncompiled model with the weights of all stages on rank 0, and None on
        the others. All ranks call this.
        """
        values = None
        self._own.meet()
        if not self._own.replica:
            with self._together():
                values = self._own.weights.gather()
        if values is None:
            return None
        model, layers = self._own.recipe.model()
        for layer, value in zip(layers, values, strict=True):
            set_weights(layer, value)
        return model

    # Methods that Keras calls.

    def train_step(self, data: Any) -> dict[str, Any]:
        with self._together():
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
            x, y, sample_weight = self._stage_batch(data)
            whole = self._own.steps.train(
                x,
                lambda whole: self._loss(whole, y, sample_weight),
                self.optimizer,
                steps=bool(self.trainable_variables),
            )
            return self._logs(whole, y, sample_weight)

    def test_step(self, data: Any) -> dict[str, Any]:
        with self._together():
            x, y, sample_weight = self._stage_batch(data)
            whole = self._own.steps.forward(Kind.TEST, x)
            if whole is not None:
                whole = whole._replace(loss=self._loss(whole, y, sample_weight))
            return self._logs(whole, y, sample_weight)

    def predict_step(self, data: Any) -> Any:
        with self._together():
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            whole = self._own.steps.forward(Kind.PREDICT, self._tensor_of(x))
            outputs = None if whole is None else keras.ops.convert_to_numpy(whole.outputs)
            return keras.ops.convert_to_tensor(self._own.wire.from_last(outputs))

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the metrics of the last stage, which alone sees outputs."""
        return super().get_metrics_result() if self._own.wire.last else dict(self._own.logs)

    def reset_metrics(self) -> None:
        super().reset_metrics()
        self._own.logs = {}

    @property
    def losses(self) -> list[Any]:
        """Losses added by the layers of all stages, while the loss of a batch is computed."""
        return self._own.losses

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Skip the build: a pipeline does not inspect data in advance."""

    # One batch.

    def _stage_batch(self, data: Any) -> tuple[Any, Any, Any]:
        """Return this stage's part of a batch: the inputs on the first stage, and the first stage's
        targets on the last. Other stages only use their own targets, to build metrics.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        wire = self._own.wire
        if wire.first and not wire.last:
            wire.send_object(
                wire.count - 1,
                Topic.TARGETS,
                _mapped(keras.ops.convert_to_numpy, (y, sample_weight)),
            )
        elif wire.last and not wire.first:
            y, sample_weight = _mapped(
                keras.ops.convert_to_tensor, wire.receive_object(0, Topic.TARGETS)
            )
        return self._tensor_of(x), y, sample_weight

    def _tensor_of(self, x: Any) -> Any:
        tensors = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
        if len(tensors) != 1:
            raise ValueError(f"{self.name} takes one tensor, not {len(tensors)}")
        return tensors[0]

    def _loss(self, whole: Whole, y: Any, sample_weight: Any) -> Any:
        self._own.losses = (
            [keras.ops.convert_to_tensor(whole.losses, keras.config.floatx())]
            if whole.losses
            else []
        )
        try:
            return self.compute_loss(x=None, y=y, y_pred=whole.outputs, sample_weight=sample_weight)
        finally:
            self._own.losses = []

    def _logs(self, whole: Whole | None, y: Any, sample_weight: Any) -> dict[str, Any]:
        """Return the metrics so far, on all stages."""
        if whole is not None:
            self._loss_tracker.update_state(whole.loss, sample_weight=whole.rows)
            logs: dict[str, Any] = self.compute_metrics(None, y, whole.outputs, sample_weight)
            self._own.wire.from_last(
                (_mapped(keras.ops.convert_to_numpy, logs), tuple(whole.outputs.shape))
            )
            return logs
        received, shape = self._own.wire.from_last(None)
        self._own.logs = _mapped(keras.ops.convert_to_tensor, received)
        # callbacks ask the metrics whether more is better
        if not self._own.metrics_built and y is not None:
            self._own.metrics_built = True
            self.compute_metrics(None, y, keras.ops.zeros(shape), sample_weight)
        return dict(self._own.logs)

    # All ranks together.

    @contextmanager
    def _together(self) -> Iterator[None]:
        """End the waits of the other stages if an error occurs within the context."""
        self._own.depth += 1
        try:
            yield
        except BaseException as error:
            why = (
                f"rank {context.rank()}, stage {self._own.wire.number} of its pipeline:"
                f" {type(error).__name__}: {error}"
            )
            self._own.wire.abort(why)
            raise
        finally:
            self._own.depth -= 1

    def _end(self) -> None:
        """Notify other stages that this rank has no more batches."""
        with self._together():
            self._own.steps.end()

    def _check(self, optimizer: Any, *, scales: bool) -> None:
        if scales or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "Pipeline: mixed_float16 skips steps if the gradient of any layer is not finite,"
                " which a single stage cannot know. Use mixed_bfloat16"
            )
        if getattr(optimizer, "global_clipnorm", None) and self._own.wire.count > 1:
            raise ValueError(
                f"Pipeline: global_clipnorm={optimizer.global_clipnorm} needs the gradients of all"
                " layers, which no stage has. Use clipnorm (per weight) or clipvalue"
            )

    def _agree(self, arguments: dict[str, Any], users: Sequence[Any]) -> None:
        """Raise ValueError on all ranks if they cannot train together."""
        for callback in users:
            if isinstance(
                callback,
                (BroadcastGlobalVariablesCallback, keras.callbacks.BackupAndRestore, *ORBAX),
            ):
                raise ValueError(
                    f"Pipeline: {type(callback).__name__} is not supported. Remove it, because all"
                    " ranks begin with rank 0's weights; to resume training, use"
                    " keras.callbacks.ModelCheckpoint and pipeline.load_weights(path)"
                )
        mine = {
            name: str(arguments.get(name, default))
            for name, default in (("epochs", 1), ("initial_epoch", 0))
        }
        if getattr(self, "optimizer", None) is not None:
            mine |= {
                "optimizer": type(self.optimizer).__name__,
                **numbers(self.optimizer.get_config()),
            }
        for rank, theirs in enumerate(everybody := allgather_object(mine)):
            for name, value in everybody[0].items():
                if theirs.get(name) != value:
                    raise ValueError(
                        f"Pipeline.fit: {name} must be the same on all ranks, but rank 0 has"
                        f" {value}, and rank {rank} has {theirs.get(name)}"
                    )

    def _have_written(self, write: Callable[[Any], None]) -> None:
        model, trouble = self.plain_model(), None
        if self._own.replica:
            return
        if model is not None:
            try:
                write(model)
            except Exception as error:
                trouble = error
        received = self._own.wire.broadcast(
            0, None if trouble is None else f"{type(trouble).__name__}: {trouble}"
        )
        if trouble is not None:
            raise trouble
        if received is not None:
            raise HorovodInternalError(f"rank 0 could not write the model: {received}")


class _Own:
    """A rank's part of a pipeline, hidden from Keras's tracking."""

    def __init__(self, plan: chain.Plan) -> None:
        count, size = len(plan.cut.begins), context.size()
        self.replica, stage = divmod(context.rank(), count)
        sets = [context.process_set_among(range(each, size, count)) for each in range(count)]
        self.replicas: ProcessSet = sets[stage]
        self._pipelines = [range(first, first + count) for first in range(0, size, count)]
        self.wire = Stages(self._messages(), stage, count)
        self.weights = Weights(plan.layers.layers, plan.cut.counts, self.wire, self.replicas)
        self.recipe, self.layers, self._micro_batches = plan.recipe, plan.layers, plan.micro_batches
        self.losses: list[Any] = []
        self.logs: dict[str, Any] = {}  # the last stage's
        self.depth = 0  # nesting depth of the calls of users and Keras that this rank is in
        self.reset(eager=False)

    def _messages(self) -> Messages | None:
        """Return the messages among the ranks of this pipeline."""
        if len(self._pipelines[0]) == 1:
            return None
        return [context.messages_among(ranks) for ranks in self._pipelines][self.replica]

    def meet(self, *, apart: bool = False) -> None:
        """Wait for all ranks, unless they are already within a call.

        A pipeline that an error ended gets a new wire, and drops the rest of its batch. ``apart``:
        the call is made by one pipeline alone, so skip this if there are others.
        """
        if (
            self.depth
            or (apart and len(self._pipelines) > 1)
            or self.wire.switch_to(self._messages())
        ):
            return
        self.steps.forget()
        self.logs = {}

    def reset(self, *, eager: bool) -> None:
        """Reset the state, because the model was compiled."""
        into, out = (str(tensors[0].dtype) for tensors in (self.layers.inputs, self.layers.outputs))
        self.steps = Steps(
            self.wire, on_backend(self.layers, eager=eager), self._micro_batches, into, out
        )
        self.logs = {}
        self.metrics_built = self.wire.last


def _mapped(convert: Callable[[Any], Any], values: Any) -> Any:
    """Apply ``convert`` to each value of a structure; None stays None."""
    return keras.tree.map_structure(lambda value: None if value is None else convert(value), values)
