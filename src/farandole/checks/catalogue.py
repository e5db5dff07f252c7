"""All kinds of findings. A code is never reused; docs/checks.md shows this table."""

from __future__ import annotations

from farandole.checks.finding import FindingKind

UNEQUAL_START = FindingKind(
    "FAR001",
    "different weights at the first step",
    "Nothing was broadcast, or rank 0 loaded a checkpoint after the broadcast.",
    "Broadcast the parameters before the first step.",
)
DRIFT = FindingKind(
    "FAR002",
    "different weights that were equal before",
    "A checkpoint was loaded late, the optimizer's state was not broadcast, some ranks skipped"
    " steps, or weights or gradients were changed on some ranks only.",
    "Take decisions and make changes on all ranks, then broadcast weights and state again.",
)
UNEQUAL_NEW_PARAMETERS = FindingKind(
    "FAR003",
    "different weights in parameters added later",
    "Parameters that were added in the middle of training were not broadcast.",
    "Broadcast new parameters before the next step.",
)
DIFFERENT_SETTINGS = FindingKind(
    "FAR004",
    "different settings of the optimizer",
    "Learning rate, momentum, weight decay or another number differs between ranks, so weights"
    " drift apart.",
    "Give all ranks the same settings.",
)
DIFFERENT_FROZEN = FindingKind(
    "FAR005",
    "another number of frozen parameters (PyTorch)",
    "Gradients of parameters that only some ranks have frozen are averaged with zeros.",
    "Freeze the same parameters on all ranks.",
)
SAME_DATA = FindingKind(
    "FAR006",
    "the same gradients or arrays on all ranks",
    "All ranks read the same data, at two comparisons in a row; or a tape has reduced the"
    " gradients before.",
    "Give each rank its part of the data, by `rank()` and `size()`.",
)
SHARED_DATA = FindingKind(
    "FAR007",
    "the same gradients on some ranks",
    "Data was divided by `local_rank()`, which repeats on every host.",
    "Divide the data by `rank()` and `size()`.",
)
DIVIDED_TWICE = FindingKind(
    "FAR008",
    "different arrays for `fit`, which divides them (Keras)",
    "The arrays were divided before, or shuffled by a seed of each rank.",
    "Leave out `shard=True`, or use one seed on all ranks.",
)
CALL_ORDER = FindingKind(
    "FAR009",
    "unnamed collectives in another order on some ranks",
    "Some ranks reach two lines in the opposite order, and unrelated tensors are mixed.",
    "Name the collectives, or call them in the same order.",
)
NO_GRADIENTS = FindingKind(
    "FAR010",
    "no gradient in ten steps, on any rank (PyTorch)",
    "The model was made, copied or loaded with `assign=True` after the optimizer, or"
    " `zero_grad()` follows `backward()`.",
    "Make and wrap the optimizer of the model that computes the loss.",
)
BYPASSED_STEP = FindingKind(
    "FAR011",
    "ten steps past the one that exchanges (PyTorch, strategies of weights, Adasum)",
    "The plain optimizer is stepped, or one inside of it (SAM).",
    "Call `step()` of the distributed optimizer, or wrap the inner one.",
)
UNWRAPPED_OPTIMIZER = FindingKind(
    "FAR012",
    "training that exchanges nothing (PyTorch: 100 steps; Keras: an epoch of `fit`)",
    "The optimizer was not wrapped, so each rank trains a model of its own.",
    "Wrap the optimizer: `hvd.DistributedOptimizer(optimizer)`.",
)
UNWRAPPED_SECOND_OPTIMIZER = FindingKind(
    "FAR013",
    "100 steps of a plain optimizer next to a distributed one made ranks differ (PyTorch)",
    "One of two optimizers was not wrapped (in a GAN, for example).",
    "Wrap the other optimizer too.",
)
DISCARDED_RESULTS = FindingKind(
    "FAR014",
    "100 steps made ranks differ although gradients went through `hvd.allreduce` (PyTorch)",
    "The mean is a new tensor, and the program dropped it.",
    "Write `p.grad = hvd.allreduce(p.grad)`, or use `hvd.allreduce_(p.grad)`.",
)
NONFINITE_STEP = FindingKind(
    "FAR015",
    "a step that made finite weights NaN or infinite (PyTorch)",
    "The gradient of the rank that reports it was not finite.",
    "Look at the rows and the loss of that rank in that step.",
)
MISSING_EXCHANGE = FindingKind(
    "FAR016",
    "a job that broadcast parameters and exchanged no gradients",
    "If it trained, each rank trained a model of its own.",
    "Let gradients pass through `DistributedOptimizer`, `DistributedGradientTape`,"
    " `DistributedTrainer` or `hvd.allreduce`.",
)
UNREAD_FAILURE = FindingKind(
    "FAR017",
    "asynchronous collectives that failed, and were never waited for",
    "Their tensors are unchanged.",
    "Call `hvd.synchronize(handle)` for each handle.",
)
STRATEGY_MISMATCH = FindingKind(
    "FAR018",
    "different strategies on the ranks",
    "Ranks would wait for each other forever where some reduce gradients and others exchange"
    " weights.",
    "Give all ranks the same strategy.",
    "error",
)
MODEL_MISMATCH = FindingKind(
    "FAR019",
    "parameters, gradients or weights of another name, shape or type on some ranks",
    "The ranks train different models.",
    "Make the same model on all ranks.",
    "error",
)
UNEVEN_STEPS = FindingKind(
    "FAR020",
    "different numbers of steps in an epoch (Keras)",
    "Ranks with fewer steps waited, and continue from the weights of those with more.",
    "Give all ranks the same amount of data.",
)
UNEVEN_SHUFFLE = FindingKind(
    "FAR021",
    "a dataset shuffled in another order on each rank before it is divided (Keras)",
    "In an epoch some rows come twice, and others never.",
    "Give `shuffle()` one seed, or shuffle the result of `hvd.shard(dataset)`.",
)
LOCAL_BATCH_NORM = FindingKind(
    "FAR022",
    "`BatchNormalization(synchronized=True)` of Keras",
    "It is for `tf.distribute`, and normalizes by each rank's own batch here.",
    "Use `farandole.tensorflow.SyncBatchNormalization`.",
)
XLA_SKIPPED = FindingKind(
    "FAR023",
    "`jit_compile=True` for a training step that exchanges gradients (Keras)",
    "XLA compiles `evaluate()` and `predict()`, but not the training step.",
    "Leave it, or compile with `jit_compile=False`.",
)
OPTIMIZER_STATE_MISSING = FindingKind(
    "FAR024",
    "a `.keras` file without the optimizer's state (tf_keras)",
    "Keras 2 writes the state of an old optimizer only into `.h5` files and SavedModels.",
    "Save to `.h5`, or use a new optimizer.",
)
NONFINITE_DATA = FindingKind(
    "FAR025",
    "a column with NaN or infinite numbers (estimators)",
    "The loss becomes NaN, and so do all weights, unless model and loss leave them out.",
    "Drop the rows, or fill the values.",
)

CATALOGUE: tuple[FindingKind, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, FindingKind)
)
