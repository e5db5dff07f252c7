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
    "weights that have become different",
    "A checkpoint was loaded late, the optimizer's state was not broadcast, some ranks skipped"
    " steps, or weights or gradients were changed on some ranks only.",
    "Make decisions and changes on all ranks, then broadcast weights and state again.",
)
UNEQUAL_NEW_PARAMETERS = FindingKind(
    "FAR003",
    "different weights in parameters added later",
    "Parameters added in the middle of training were not broadcast.",
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
    "different numbers of frozen parameters (PyTorch)",
    "Gradients of parameters that are frozen on only some ranks are averaged with zeros.",
    "Freeze the same parameters on all ranks.",
)
SAME_DATA = FindingKind(
    "FAR006",
    "the same gradients or arrays on all ranks",
    "All ranks read the same data (in two comparisons in a row), or a tape has already reduced"
    " the gradients.",
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
    "The arrays were already divided, or shuffled with a different seed on each rank.",
    "Remove `shard=True`, or use one seed on all ranks.",
)
CALL_ORDER = FindingKind(
    "FAR009",
    "unnamed collectives in different orders on the ranks",
    "Some ranks reach two calls in the opposite order, which mixes unrelated tensors.",
    "Name the collectives, or call them in the same order.",
)
NO_GRADIENTS = FindingKind(
    "FAR010",
    "no gradient in ten steps, on any rank (PyTorch)",
    "The model was created, copied or loaded with `assign=True` after the optimizer, or"
    " `zero_grad()` follows `backward()`.",
    "Create and wrap the optimizer of the model that computes the loss.",
)
BYPASSED_STEP = FindingKind(
    "FAR011",
    "ten steps that bypass the exchanging optimizer (PyTorch, strategies of weights, Adasum)",
    "The program steps the plain optimizer, or one that the distributed optimizer contains (SAM).",
    "Call `step()` of the distributed optimizer, or wrap the inner one.",
)
UNWRAPPED_OPTIMIZER = FindingKind(
    "FAR012",
    "20 steps that exchange nothing (PyTorch, MXNet, `fit` of Keras), or a shorter training",
    "The optimizer was not wrapped, so each rank trains its own model.",
    "Wrap the optimizer: `hvd.DistributedOptimizer(optimizer)`.",
)
UNWRAPPED_SECOND_OPTIMIZER = FindingKind(
    "FAR013",
    "different weights after 20 steps of a plain optimizer next to a distributed one (PyTorch)",
    "One of two optimizers was not wrapped (in a GAN, for example).",
    "Wrap the other optimizer too.",
)
DISCARDED_RESULTS = FindingKind(
    "FAR014",
    "different weights after 20 steps although gradients went through `hvd.allreduce` (PyTorch)",
    "`hvd.allreduce` returns the mean as a new tensor, which the program discarded.",
    "Write `p.grad = hvd.allreduce(p.grad)`, or use `hvd.allreduce_(p.grad)`.",
)
NONFINITE_STEP = FindingKind(
    "FAR015",
    "a step that made finite weights NaN or infinite (PyTorch)",
    "The gradient of the rank that reports it was not finite.",
    "Inspect the input rows and the loss of that rank in that step.",
)
MISSING_EXCHANGE = FindingKind(
    "FAR016",
    "a job that broadcast parameters but exchanged no gradients",
    "If it trained, each rank trained its own model.",
    "Let gradients pass through `DistributedOptimizer`, `DistributedGradientTape`,"
    " `DistributedTrainer` or `hvd.allreduce`.",
)
UNREAD_FAILURE = FindingKind(
    "FAR017",
    "failed asynchronous collectives whose handles were never synchronized",
    "Their tensors are unchanged.",
    "Call `hvd.synchronize(handle)` for each handle.",
)
STRATEGY_MISMATCH = FindingKind(
    "FAR018",
    "different strategies on the ranks",
    "Ranks wait for each other forever if some reduce gradients and others exchange weights.",
    "Use the same strategy on all ranks.",
    "error",
)
MODEL_MISMATCH = FindingKind(
    "FAR019",
    "parameters, gradients or weights with different names, shapes or types on some ranks",
    "The ranks train different models.",
    "Create the same model on all ranks.",
    "error",
)
UNEVEN_STEPS = FindingKind(
    "FAR020",
    "different numbers of steps in an epoch (Keras)",
    "Ranks with fewer steps waited, and continue with the weights of the ranks with more.",
    "Give all ranks the same amount of data.",
)
UNEVEN_SHUFFLE = FindingKind(
    "FAR021",
    "a dataset shuffled in a different order on each rank before it is divided (Keras)",
    "In each epoch some rows are read twice, and others never.",
    "Give `shuffle()` one seed, or shuffle the result of `hvd.shard(dataset)`.",
)
LOCAL_BATCH_NORM = FindingKind(
    "FAR022",
    "`BatchNormalization(synchronized=True)` of Keras",
    "It works only with `tf.distribute`; here each rank normalizes by its own batch.",
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
    "The loss and all weights become NaN, unless model and loss mask such values.",
    "Drop the rows, or fill in the values.",
)

HELD_STATE = FindingKind(
    "FAR026",
    "different state that is not a variable: a vocabulary, bin edges, constants (Keras),"
    " `get_extra_state` (PyTorch)",
    "Each rank adapted a layer to its own part of the data, so equal inputs have different"
    " meanings on the ranks.",
    "Adapt layers to the same data on all ranks, or to the whole data on rank 0 and broadcast.",
)
EPOCHS_DIVIDED = FindingKind(
    "FAR027",
    "epochs divided by `size()` although all ranks read all data (Keras)",
    "Each rank repeats the same fewer epochs, so the job trains less than a single process.",
    "Give each rank its part of the data and train all epochs.",
)
IDLE_EARLY_STOPPING = FindingKind(
    "FAR028",
    "`EarlyStopping` whose patience is not below the number of epochs (Keras)",
    "It needs one epoch more than its patience to stop, so it never stops this training.",
    "Lower the patience, or do not divide the epochs by `size()`.",
)
UNSUITED_OPTIMIZER = FindingKind(
    "FAR031",
    "a codec or strategy that is incompatible with the optimizer",
    "The codec's or outer optimizer's steps are too long, or the optimizer divides by the size of"
    " numbers that arrive late.",
    "Change the rate, the momentum or the codec as the message says.",
)
DAMAGED_REPLICA = FindingKind(
    "FAR032",
    "a replica whose bits differ from the others (`--check-replicas-every`)",
    "A processor computed, or a memory stored, a wrong bit.",
    "Check the memory and the GPU of a host that is named repeatedly, or replace the host.",
)
DIFFERENT_REPLICAS = FindingKind(
    "FAR033",
    "replicas that the program makes different (`--check-replicas-every`)",
    "The ranks began with different weights, use different settings, or change a value on only"
    " some ranks. The finding says how that was distinguished from a damaged replica.",
    "Begin with rank 0's weights on all ranks (`hvd.broadcast_parameters`), and change weights,"
    " learning rates and all other values of the state in the same way on all ranks.",
)

CATALOGUE: tuple[FindingKind, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, FindingKind)
)
