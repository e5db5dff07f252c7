"""A program of Horovod's users for MXNet 1.9: only gluon and horovod.mxnet."""

import argparse
import logging

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
args = parser.parse_args()
logging.basicConfig(level=logging.INFO)

hvd.init()
context = mx.cpu(hvd.local_rank())
num_workers = hvd.size()

generator = np.random.RandomState(0)
labels = generator.randint(0, 4, 512)
images = generator.rand(512, 1, 12, 12).astype("float32") * 0.5
for image, label in zip(images, labels, strict=True):
    image[0, 3 * label : 3 * label + 3] += 0.5
part = slice(hvd.rank(), None, num_workers)
train_data = mx.io.NDArrayIter(images[part], labels[part], args.batch_size)

net = gluon.nn.HybridSequential()
with net.name_scope():
    net.add(gluon.nn.Conv2D(channels=8, kernel_size=3, activation="relu"))
    net.add(gluon.nn.MaxPool2D(pool_size=2, strides=2))
    net.add(gluon.nn.Flatten())
    net.add(gluon.nn.Dense(32, activation="relu"))
    net.add(gluon.nn.Dense(4))
net.cast("float32")
net.hybridize()

optimizer_params = {"momentum": args.momentum, "learning_rate": args.lr * hvd.size()}
opt = mx.optimizer.create("sgd", **optimizer_params)
net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), ctx=context)
params = net.collect_params()
if params is not None:
    hvd.broadcast_parameters(params, root_rank=0)
trainer = hvd.DistributedTrainer(
    params, opt, gradient_predivide_factor=args.gradient_predivide_factor
)

loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
metric = mx.metric.Accuracy()
for epoch in range(args.epochs):
    train_data.reset()
    metric.reset()
    for batch in train_data:
        data = batch.data[0].as_in_context(context)
        label = batch.label[0].as_in_context(context)
        with autograd.record():
            output = net(data.astype("float32", copy=False))
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(args.batch_size)
        metric.update([label], [output])
    name, acc = metric.get()
    if hvd.rank() == 0:
        logging.info("epoch %d", epoch)

accuracy = hvd.allreduce(mx.nd.array([acc], ctx=context), name="accuracy").asscalar()
total = hvd.allgather(
    mx.nd.array([sum(float(each.data().norm().asscalar()) for each in params.values())])
)
print(
    f"rank {hvd.rank()} accuracy {accuracy:.4f} same {bool((total == total[0]).min().asscalar())}"
)
hvd.shutdown()
