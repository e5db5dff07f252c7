"""Programs written for ``horovod.tensorflow`` run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.compat.test_migration import ROWS, names
from tests.compat.tools import FARANDOLE, HOROVODRUN, code, program
from tests.kits.messages import mentions

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

PROGRAMS = Path(__file__).parent / "horovod"


@pytest.mark.parametrize(
    ("script", "command"),
    [("tensorflow2_mnist.py", HOROVODRUN), ("tensorflow_mnist.py", FARANDOLE)],
)
def test_a_program_learns_and_keeps_ranks_equal(
    script: str, command: list[str], tmp_path: Path
) -> None:
    output = program(command, "-W", "ignore", PROGRAMS / script, tmp_path)
    found = re.findall(r"rank \d loss ([\d.]+) same (\w+)$", output, re.M)
    assert [same for _, same in found] == ["True", "True"], output
    assert max(float(loss) for loss, _ in found) < 0.5
    if script == "tensorflow2_mnist.py":
        assert [path.name for path in tmp_path.glob("*.index")] == ["checkpoint-1.index"]


def test_an_elastic_program_runs_in_a_job_of_fixed_size() -> None:
    output = program(FARANDOLE, "-W", "ignore", PROGRAMS / "tensorflow2_elastic.py")
    found = re.findall(r"^(\w+) (\d) loss ([\d.]+) same (\w+) batch (\d+)$", output, re.M)
    ends_by_rank = sorted((kind, rank, same, batch) for kind, rank, _, same, batch in found)
    ends = (("keras", "4"), ("loop", "30"))
    assert ends_by_rank == [(kind, rank, "True", end) for kind, end in ends for rank in "01"], (
        output
    )
    assert max(float(loss) for _, _, loss, _, _ in found) < 0.5


def test_names_basics_and_small_things() -> None:
    """One process: all that the migration page lists is there, and all that farandole.tensorflow
    has, under Horovod's names; importing it loads no Keras; variables of a Keras optimizer may be
    called, as in Keras 2.
    """
    known = [(row[0].strip("`"), name, row[2]) for row in ROWS for name in names(row)]
    known = [
        each
        for each in known
        if each[0].startswith("horovod.tensorflow") and ".keras" not in each[0]
    ]
    assert len(known) > 60
    assert code(
        "import sys, importlib, farandole.tensorflow as ours, horovod.tensorflow as hvd,"
        " tensorflow as tf\nprint('farandole.keras' in sys.modules)\nfor module, name, status in"
        f" {known}:\n    value = getattr(importlib.import_module(module), name)\n    if status =="
        " 'later':\n        try:\n            value(print)\n        except NotImplementedError:\n "
        "           continue\n        raise SystemExit(f'{module}.{name} did not"
        " raise')\nprint([name for name in ours.__all__ if getattr(hvd, name) is not getattr(ours,"
        " name)])\nfrom horovod.tensorflow import util\nhvd.init()\nbasics ="
        " hvd.mpi_ops._basics\nprint(basics._get_process_set_ids_and_ranks(), basics.size(),"
        " hvd.is_homogeneous())\nprint(hvd.handle_average_backwards_compatibility(None, None),"
        " hvd.check_num_rank_power_of_2(6))\nv ="
        " tf.Variable(1.0)\nprint(util.refs_to_vars(util.vars_to_refs([[v]]))[0][0] is v,"
        " util._executing_eagerly())\nprint(util._make_subgraph(lambda x: x + 1)(1).numpy(),"
        " hvd.Average, int(hvd.nccl_built()))\nprint({each.__name__.partition('.')[0] for each in"
        " (hvd.elastic, hvd.mpi_ops, hvd.compression)})\nimport keras, horovod.keras,"
        " horovod.tensorflow.keras\nprint(horovod.keras.elastic.run is"
        " horovod.tensorflow.keras.elastic.run is hvd.elastic.run)\nprint(hvd.util is util,"
        " hvd._executing_eagerly(), hvd.functions.broadcast_object is hvd.broadcast_object)\nv ="
        " keras.Variable([1.0, 2.0])\nfor optimizer in (keras.optimizers.Adam(),"
        " hvd.DistributedOptimizer(keras.optimizers.SGD(momentum=0.9)),\n                 "
        " keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())):\n   "
        " optimizer.build([v])\n    print(len(optimizer.variables) > 1, optimizer.variables() =="
        " optimizer.variables)\n"
    ).splitlines() == [
        "False",
        "['elastic', 'mpi_ops']",
        "{0: [0]} 1 True",
        "0 False",
        "True True",
        "2 0 0",
        "{'horovod'}",
        "True",
        "True True True",
        *["True True"] * 3,
    ]


PRIVATE = """
import horovod.tensorflow as hvd, tensorflow as tf
from horovod.tensorflow import _allreduce, _make_allreduce_grads_fn, _make_broadcast_group_fn
hvd.init()
mine = float(hvd.rank() + 1)
assert hvd.mpi_ops._allreduce is _allreduce
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.constant([mine])
    total = hvd.mpi_ops._allreduce(x)
    (slope,) = tf.gradients(mine * total, [x])
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    assert isinstance(optimizer, hvd._DistributedOptimizer) and isinstance(optimizer, hvd._LegacyOptimizer)
    print(session.run([total, slope]))
print(hvd._grouped_allreduce([tf.constant(mine), tf.constant([mine])])[1].numpy())
print(hvd.mpi_ops._reducescatter(tf.constant([mine, mine])).numpy())
for factor in (1.0, 2.0):
    reduce = _make_allreduce_grads_fn("Own", "", "", hvd.Compression.none, True, hvd.Average, factor, None)
    slices = tf.IndexedSlices(tf.constant([mine]), tf.constant([hvd.rank()]), tf.constant([2]))
    print([None if each is None else each.numpy().tolist() for each in reduce([tf.constant(mine), None, slices])])
variable = tf.Variable(mine)
_make_broadcast_group_fn()([variable], root_rank=1)
print(variable.numpy())
"""


def test_functions_that_are_private_by_their_names(tmp_path: Path) -> None:
    """Glow's copies call the first, optimizers of other libraries the others."""
    script = tmp_path / "private.py"
    script.write_text(PRIVATE)
    lines = program(HOROVODRUN, "-W", "ignore", script).splitlines()
    assert sorted(lines) == sorted(
        2
        * [
            "[array([3.], dtype=float32), array([3.], dtype=float32)]",
            "[3.]",
            "[3.]",
            "[1.5, None, [0.5, 1.0]]",
            "[1.5, None, [0.5, 1.0]]",
            "2.0",
        ]
    )


def test_programs_for_keras_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program as for Keras 3, and all names of the migration page, when ``tf.keras`` is
    ``tf_keras``.
    """
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    script = PROGRAMS.parent.parent / "keras" / "horovod" / "tensorflow2_keras_mnist.py"
    output = program(HOROVODRUN, "-W", "ignore", script, tmp_path)
    found = re.findall(r"^rank \d accuracy ([\d.]+) same (\w+)$", output, re.M)
    assert [same for _, same in found] == ["True", "True"], output
    assert found[0] == found[1]
    assert float(found[0][0]) > 0.8
    assert output.count("finished gradual learning rate warmup to 0.004.") == 1
    assert len(list(tmp_path.iterdir())) == 4
    known = [(row[0].strip("`"), name) for row in ROWS for name in names(row)]
    known = [each for each in known if "keras" in each[0] and each[0].startswith("horovod.")]
    assert len(known) > 60
    said = code(
        f"import sys, importlib, tensorflow as tf\nfor module, name in {known}:\n   "
        " getattr(importlib.import_module(module), name)\nimport farandole.tensorflow.keras as"
        " ours, farandole.tensorflow as hvd\nfrom farandole.spark.keras import"
        " LogCallback\nprint(all(hasattr(ours, each) for each in ours.__all__), 'keras' in"
        " sys.modules)\nfound = [ours.callbacks.MetricAverageCallback,"
        " ours.callbacks.BestModelCheckpoint, LogCallback]\nprint([issubclass(each,"
        " tf.keras.callbacks.Callback) for each in"
        " found])\nprint(issubclass(hvd.SyncBatchNormalization,"
        " tf.keras.layers.BatchNormalization))\nhvd.init()\ntry:\n   "
        " ours.DistributedOptimizer(type('Adam', (), {'__module__':"
        " 'keras.optimizers'})())\nexcept ValueError as error:\n    print(error)"
    ).splitlines()
    assert said[:3] == ["True False", "[True, True, True]", "True"]
    assert mentions(said[3], "keras.optimizers.Adam", "tf_keras", "TF_USE_LEGACY_KERAS")
