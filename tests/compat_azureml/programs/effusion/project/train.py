"""Trains a classifier of two kinds of images on all ranks; the data is a ZIP file."""

import argparse
import zipfile

import horovod.torch as hvd
import numpy as np
import torch
from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--data-folder", type=str, dest="data_folder")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
run = Run.get_context()

images, labels = [], []
with zipfile.ZipFile(args.data_folder) as archive:
    for name in sorted(archive.namelist()):
        images.append(np.frombuffer(archive.read(name), dtype=np.uint8) / 255.0)
        labels.append(float(name.startswith("effusion/")))
x = torch.tensor(np.stack(images)[hvd.rank() :: hvd.size()], dtype=torch.float32)
y = torch.tensor(labels[hvd.rank() :: hvd.size()]).unsqueeze(1)

model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
loss_of = torch.nn.BCEWithLogitsLoss()
for epoch in range(args.epochs):
    for start in range(0, len(x), args.batch_size):
        optimizer.zero_grad()
        loss = loss_of(
            model(x[start : start + args.batch_size]), y[start : start + args.batch_size]
        )
        loss.backward()
        optimizer.step()
    loss = hvd.allreduce(loss_of(model(x), y).detach(), name="loss")
    if hvd.rank() == 0:
        run.log("loss", float(loss))
        print(f"epoch {epoch + 1}: loss {float(loss):.4f} on {hvd.size()} ranks")
if hvd.rank() == 0:
    torch.save(model.state_dict(), "outputs/effusion.pt")
