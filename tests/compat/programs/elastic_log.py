# ruff: noqa -- written as users of Horovod write
"""The arguments and the log of elastic trainings (see ``elastic_torch.py``)."""

import argparse
import json
import os

# there before init()
start_rank, hostname = int(os.environ["HOROVOD_RANK"]), os.environ["HOROVOD_HOSTNAME"]
parser = argparse.ArgumentParser()
parser.add_argument("--logfile", required=True)
# by "epoch,batch": the ranks that fail, counted at their start
parser.add_argument("--exit-schedule", default="{}")
parser.add_argument("--exit-mode", default="exception")
# epochs after which the hosts change
parser.add_argument("--changes", default="[]")
args = parser.parse_args()
exits = json.loads(args.exit_schedule)
changes = json.loads(args.changes)


def check_exit(epoch, batch):
    if start_rank in exits.get(f"{epoch},{batch}", []):
        if args.exit_mode == "kill":
            os.kill(os.getpid(), 9)
        raise RuntimeError(f"rank {start_rank} fails as scheduled")


def write_log(hvd, state):
    with open(args.logfile, "a") as file:
        line = {
            "epoch": state.epoch,
            "hostname": hostname,
            "start_rank": start_rank,
            "rank": hvd.rank(),
            "size": hvd.size(),
            "rendezvous": state.rendezvous,
            "commits": state.commits,
        }
        file.write(json.dumps(line) + "\n")
