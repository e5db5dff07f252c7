"""The programs for random kills, one for each framework.

Each takes steps with a known sum: after n steps, the state holds n, regardless of the ranks. A
program writes a line to the log when it begins, commits and ends.
"""

from __future__ import annotations

_COMMON = """
import os, sys, time
folder, pause = sys.argv[1], float(sys.argv[2])
log = os.open(folder + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def say(what, step):
    place = f"{hvd.rank()} {hvd.size()} {os.environ['FARANDOLE_MEMBER']}"
    os.write(log, f"{what} {time.monotonic()} {step} {place}\\n".encode())
def started():
    with open(f"{folder}/pid.{os.environ['FARANDOLE_MEMBER']}", "w") as pid:
        pid.write(str(os.getpid()))
"""
# the loop of programs that define ``state``, ``advance`` and ``total``
_LOOP = """
started()
@elastic.run
def train(state):
    say("begin", state.step)
    while True:
        stop = advance(state, float(os.path.exists(folder + "/stop")))
        time.sleep(pause)
        state.step += 1
        state.commit()
        say("commit", state.step)
        if stop:
            return
train(state)
say(f"end:{total(state)}", state.step)
"""
# with parameter servers: each push adds 1, and is logged once acknowledged
_SERVERS = """
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.strategies.options import gradient_options
from farandole.strategies.weights import StatefulExchange
hvd.init()
options = gradient_options()
exchange = StatefulExchange("chaos", options, options.strategy)
state = ObjectState(step=0, weights=np.zeros(1000))
def advance(state, stop):
    exchange.begin([state.weights], lambda array: array, stepping=True)
    state.weights += 1
    dropped = options.strategy.staleness.dropped
    exchange([state.weights], state.step + 1)
    if dropped == options.strategy.staleness.dropped:
        say("push", state.step + 1)
    if options.strategy.sync:
        return hvd.allreduce(np.full(1, stop), op=hvd.Average, name="stop")[0] > 0
    if stop:
        exchange.average([state.weights])
    return stop > 0
def total(state):
    return state.weights[0]
"""
_LOOPS = {
    "numpy": """
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
hvd.init()
state = ObjectState(step=0, weights=np.zeros(1000))
def advance(state, stop):
    mean = hvd.allreduce(np.append(np.ones(1000), stop), op=hvd.Average, name="gradient")
    state.weights = state.weights + mean[:-1]
    return mean[-1] > 0
def total(state):
    return state.weights[0]
""",
    "torch": """
import torch
import farandole.torch as hvd
from farandole.torch import elastic
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(100, 10, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, step=0)
def advance(state, stop):
    optimizer.zero_grad()
    (-model(torch.ones(1, 100))).sum().backward()
    optimizer.step()
    return hvd.allreduce(torch.tensor([stop]), name="stop").item() > 0
def total(state):
    return model.weight[0, 0].item()
""",
    "tensorflow": """
import tensorflow as tf
import farandole.tensorflow as hvd
from farandole.tensorflow import elastic
hvd.init()
weights = tf.Variable(tf.zeros(1000))
state = elastic.TensorFlowState([weights], step=0)
@tf.function
def advanced(stop):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(weights)
    weights.assign_add(tape.gradient(loss, weights))
    return hvd.allreduce(stop, op=hvd.Sum, name="stop") > 0
def advance(state, stop):
    return bool(advanced(tf.constant(stop)))
def total(state):
    return float(weights[0])
""",
    "jax": """
import jax
import jax.numpy as jnp
import farandole.jax as hvd
from farandole.jax import elastic
hvd.init()
state = elastic.JaxState(weights=jnp.zeros(1000), step=0)
@jax.jit
def advanced(weights, stop):
    mean = hvd.allreduce(jnp.append(jnp.ones(1000), stop), name="gradient")
    return weights + mean[:-1], mean[-1] > 0
def advance(state, stop):
    state.weights, stop = advanced(state.weights, stop)
    return bool(stop)
def total(state):
    return float(state.weights[0])
""",
}
# ``fit`` keeps its state; the callbacks only observe
_FIT = """
import numpy as np
import keras
import farandole.keras as hvd
from farandole.core.api.state import State
hvd.init()
class Sum(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -y_pred
model = keras.Sequential([keras.Input([10]), keras.layers.Dense(1, use_bias=False)])
model.layers[0].kernel.assign(np.zeros((10, 1)))
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), Sum())
class Look(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        say("begin", int(self.model.optimizer.iterations))
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause)
        stop = float(os.path.exists(folder + "/stop"))
        self.model.stop_training = bool(hvd.allreduce(np.array([stop]), name="stop")[0] > 0)
committing = State.commit
def commit(state):
    committing(state)
    say("commit", int(state.model.optimizer.iterations))
State.commit = commit
started()
look = Look()
x = np.ones((100, 10), "float32")
model.fit(x, x[:, :1], batch_size=1, epochs=100000, callbacks=[look], verbose=0)
say(f"end:{float(model.get_weights()[0][0, 0])}", int(model.optimizer.iterations))
"""
_BACKENDS = ("tensorflow", "jax", "torch")
FRAMEWORKS = (*_LOOPS, *(f"keras-{backend}" for backend in _BACKENDS))


def program(framework: str) -> str:
    """Return the text of the program for a name in ``FRAMEWORKS``, or for ``servers``: numpy with
    parameter servers.
    """
    if framework == "servers":
        return _COMMON + _SERVERS + _LOOP
    if framework in _LOOPS:
        return _COMMON + _LOOPS[framework] + _LOOP
    return _COMMON + _FIT


def environment_of(framework: str) -> dict[str, str]:
    """Return the environment variables of the program's processes."""
    kind, _, backend = framework.partition("-")
    few = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**few, "KERAS_BACKEND": backend} if kind == "keras" else few
