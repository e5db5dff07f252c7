# ruff: noqa -- written as users of Horovod write
import argparse
import timeit

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--fp16-allreduce", action="store_true")
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(100)
)
data, target = torch.randn(8, 3, 16, 16), torch.LongTensor(8).random_() % 100
model(data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    op=hvd.Average,
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def benchmark_step():
    optimizer.zero_grad()
    output = model(data)
    loss = F.cross_entropy(output, target)
    loss.backward()
    optimizer.step()


def log(s, nl=True):
    if hvd.rank() != 0:
        return
    print(s, end="\n" if nl else "")


log("Number of %ss: %d" % ("CPU", hvd.size()))
timeit.timeit(benchmark_step, number=2)
img_secs = []
for x in range(args.num_iters):
    time = timeit.timeit(benchmark_step, number=3)
    img_sec = 8 * 3 / time
    log("Iter #%d: %.1f img/sec per %s" % (x, img_sec, "CPU"))
    img_secs.append(img_sec)
img_sec_mean, img_sec_conf = np.mean(img_secs), 1.96 * np.std(img_secs)
log("Img/sec per %s: %.1f +-%.1f" % ("CPU", img_sec_mean, img_sec_conf))
log(
    "Total img/sec on %d %s(s): %.1f +-%.1f"
    % (hvd.size(), "CPU", hvd.size() * img_sec_mean, hvd.size() * img_sec_conf)
)
