"""The symbolic API of MXNet 1.9 with horovod.mxnet: Module.fit and DistributedOptimizer."""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

hvd.init()
generator = np.random.RandomState(0)
labels = generator.randint(0, 3, 600)
rows = generator.rand(600, 9).astype("float32")
rows[np.arange(600), labels] += 1.0
part = slice(hvd.rank(), None, hvd.size())
train = mx.io.NDArrayIter(rows[part], labels[part], 30)

data = mx.sym.var("data")
hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=16), act_type="relu")
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3), name="softmax")
model = mx.mod.Module(symbol=net, context=mx.cpu())
model.bind(data_shapes=train.provide_data, label_shapes=train.provide_label)
mx.random.seed(hvd.rank())
model.init_params(mx.init.Xavier())
(arg_params, aux_params) = model.get_params()
if arg_params is not None:
    hvd.broadcast_parameters(arg_params, root_rank=0, prefix="arg.")
if aux_params is not None:
    hvd.broadcast_parameters(aux_params, root_rank=0, prefix="aux.")
model.set_params(arg_params=arg_params, aux_params=aux_params)

opt = mx.optimizer.create("sgd", learning_rate=0.2, momentum=0.9, rescale_grad=1.0 / 30)
opt = hvd.DistributedOptimizer(opt, num_groups=0)
model.fit(train, kvstore=None, optimizer=opt, num_epoch=8, eval_metric="acc")
score = dict(model.score(train, "acc"))["accuracy"]
weights = hvd.allgather(
    mx.nd.concat(*[each.reshape(-1) for _, each in sorted(model.get_params()[0].items())], dim=0)
)
same = bool(
    (weights.reshape((hvd.size(), -1)) == weights[: len(weights) // hvd.size()]).min().asscalar()
)
print(f"rank {hvd.rank()} accuracy {score:.4f} same {same}")
