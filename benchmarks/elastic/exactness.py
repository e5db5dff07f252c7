"""Randomly disturbed trainings, compared with undisturbed ones: ``python -m
benchmarks.elastic.exactness --histories 200``.

A history is a short training of a convolutional network with BatchNorm, dropout, momentum,
augmentation and shuffled data, in a job of up to 4 ranks with ``--fixed-global-batch``. In each, a
random rank is killed (SIGKILL) at a random point of a random step, and new ranks join when they are
ready. Weights, statistics and momentum at the end of each history must be bit-identical to the
results of one rank.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

RANKS = 4
_PROGRAM = '''
import hashlib, os, random, signal, sys, time
import torch
import farandole.torch as hvd

folder, seed, wanted, most = sys.argv[1], *map(int, sys.argv[2:5])
hvd.init()
torch.manual_seed(seed)
BATCH, EPOCHS, STEPS = 3, 2, 6

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 34
    def __getitem__(self, index):
        picture = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
        if random.random() < 0.5:
            picture = picture.flip(2)
        return picture + 0.1 * torch.randn(1, 8, 8), index % 3

nn = torch.nn
def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
                         nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

model = network()
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
data = Pictures()
sampler = hvd.elastic.ElasticSampler(data, batch_size=BATCH, seed=seed)
loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)

def say(text):
    with open(folder + "/log", "a") as log:
        log.write(text + "\\n")

def plan(history):
    """The kill of a history: its step, the place within it, and a number that chooses the rank."""
    chance = random.Random(f"{seed}.{history}")
    return chance.randrange(STEPS), chance.choice(["forward", "backward", "step"]), chance.random()

def kill(state, place, step):
    when, where, rank = plan(state.history)
    if hvd.size() == 1 or (when, where) != (step, place) or hvd.rank() != int(rank * hvd.size()):
        return
    try:
        os.close(os.open(f"{folder}/killed.{state.history}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def digest():
    found = hashlib.sha256()
    momenta = [optimizer.state[each]["momentum_buffer"] for each in model.parameters()]
    for tensor in (*model.state_dict().values(), *momenta):
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]

def begin_again(history):
    own = torch.Generator().manual_seed(seed + history)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=own))
        model[1].reset_running_stats()
        for each in model.parameters():
            optimizer.state[each]["momentum_buffer"].zero_()

@hvd.elastic.run
def train(state):
    disturbing = wanted > 0
    while state.history < most and not (disturbing and state.disturbed >= wanted):
        while state.epoch < EPOCHS:
            for inputs, targets in loader:
                step = state.epoch * (STEPS // EPOCHS) + sampler.processed_num // (4 * BATCH)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                disturbing and kill(state, "forward", step)
                loss.backward()
                disturbing and kill(state, "backward", step)
                optimizer.step()
                disturbing and kill(state, "step", step)
                sampler.record_batch(0, BATCH)
                state.commit()
                if disturbing and hvd.size() == 1:
                    time.sleep(0.2)  # leaves the processor to processes that are starting
            state.epoch += 1
            sampler.set_epoch(state.epoch)
        if hvd.rank() == 0:
            say(f"{state.history} {digest()} {int(state.changed)} {hvd.size()}")
        state.disturbed += state.changed
        state.changed, state.epoch = False, 0
        state.history += 1
        sampler.set_epoch(0)
        begin_again(state.history)
        state.commit()

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, history=0,
                               epoch=0, disturbed=0, changed=False)
state.register_reset_callbacks([lambda: setattr(state, "changed", True)])
train(state)
'''


class Trial(NamedTuple):
    """The result of a trial.

    - ``histories``: The number of completed trainings, the first of the job included.
    - ``disturbed``: The number of trainings during which ranks were lost or joined.
    - ``kills``: The number of killed ranks.
    - ``sizes``: The numbers of ranks with which trainings ended.
    - ``faults``: A sentence for each training with other weights, and each failure.
    """

    histories: int
    disturbed: int
    kills: int
    sizes: list[int]
    faults: list[str]


def trial(histories: int, seed: int = 0) -> Trial:
    """Run trainings until ``histories`` of them were disturbed, repeat them undisturbed, and
    compare the results.

    ``seed``: for data, weights and kills.
    """
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / name for name in ("disturbed", "alone")]
        faults = list[str]()
        most = 50 * histories + 50
        for folder in folders:
            folder.mkdir()
            (folder / "log").touch()
            disturbing = folder is folders[0]
            faults += _run(folder, RANKS if disturbing else 1, seed, histories * disturbing, most)
            most = len(_ends(folder))
        found, expected = map(_ends, folders)
        for history, (digest, _, size) in found.items():
            alone = expected.get(history, ("missing", False, 0))[0]
            if digest != alone:
                faults.append(f"history {history} ended with {digest} on {size} ranks, not {alone}")
        return Trial(
            len(found),
            sum(changed for _, changed, _ in found.values()),
            len(list(folders[0].glob("killed.*"))),
            sorted({size for _, _, size in found.values()}),
            faults,
        )


def _run(folder: Path, ranks: int, seed: int, histories: int, most: int) -> list[str]:
    """Run one job, and return a sentence if it has failed."""
    (folder / "train.py").write_text(_PROGRAM)
    words = [str(folder), str(seed), str(histories), str(most)]
    command = [sys.executable, "-m", "farandole", "run", "-np", str(ranks), "--min-np", "1"]
    limits = ["--max-np", str(RANKS), "--fixed-global-batch", "--grace-seconds", "5"]
    hosts = [] if ranks == RANKS else ["-H", f"localhost:{ranks}"]
    done = subprocess.run(
        [*command, *limits, *hosts, sys.executable, str(folder / "train.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode:
        return [f"a job failed with exit code {done.returncode}: {output[-2000:]}"]
    return [] if "the same in all bits" in output else [f"no guarantee: {output[-2000:]}"]


def _ends(folder: Path) -> dict[int, tuple[str, bool, int]]:
    """Return, for each history, its digest, whether it was disturbed, and its final number of
    ranks.
    """
    found = {}
    for line in (folder / "log").read_text().splitlines():
        history, digest, changed, size = line.split()
        found[int(history)] = (digest, changed == "1", int(size))
    return found


def main() -> int:
    """Run one trial and print its outcome. Return 1 if it has faults, 0 otherwise."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.elastic.exactness")
    options.add_argument("--histories", type=int, default=10)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    began = time.monotonic()
    found = trial(given.histories, given.seed)
    sizes = ", ".join(map(str, found.sizes))
    sys.stdout.write(
        f"{found.disturbed} disturbed histories of {found.histories}, {found.kills} kills, ended"
        f" with {sizes} ranks, {time.monotonic() - began:.0f} s\n{len(found.faults)} with different"
        " weights than the undisturbed run\n"
    )
    for fault in found.faults:
        sys.stdout.write(f"FAULT: {fault}\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
