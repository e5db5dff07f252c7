"""Placement of a process in its job, and its connection to it: set by launchers, not by users."""

from __future__ import annotations

from farandole.job.config.fields import Variables, setting


class Placement(Variables):
    """The ranks and sizes of this process in its job. They change with the job's membership."""

    rank: int = setting(0, "rank of this process", horovod="HOROVOD_RANK")
    size: int = setting(1, "number of processes", horovod="HOROVOD_SIZE")
    local_rank: int = setting(
        0, "rank among the processes of this host", horovod="HOROVOD_LOCAL_RANK"
    )
    local_size: int = setting(1, "number of processes on this host", horovod="HOROVOD_LOCAL_SIZE")
    cross_rank: int = setting(
        0, "index of this host among those with this local rank", horovod="HOROVOD_CROSS_RANK"
    )
    cross_size: int = setting(
        1, "number of hosts with this local rank", horovod="HOROVOD_CROSS_SIZE"
    )
    hostname: str = setting("", "this host's name in the job", horovod="HOROVOD_HOSTNAME")
    homogeneous: bool = setting(True, "every host runs the same number of processes")
    generation: int = setting(0, "version of the job's membership; increases when it changes")


class Connection(Variables):
    """The connection of this process to its job."""

    store: str = setting("", "host:port of the job's store; empty: no job, one rank")
    secret: str = setting(
        "", "the job's secret, in hex; with the prefix tls:, connections are encrypted"
    )
    launcher: str = setting("", "name of the launcher that started this process")
    member: int = setting(
        -1, "number of this process in an elastic job; -1: the job has a fixed size", least=-1
    )
    shares: int = setting(
        0, "number of shares of the job's fixed global batch; 0: the batch grows with the ranks"
    )

    def number(self, rank: int) -> int:
        """Return the driver's number for this process, whose rank is ``rank``."""
        return self.member if self.member >= 0 else rank
