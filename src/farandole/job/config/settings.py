"""User settings. Flags, variables and the table in the docs are derived from the fields."""

from __future__ import annotations

from farandole.base.host import cores
from farandole.job.config.fields import Variables, setting
from farandole.job.plugins import registry

MIB = 1 << 20
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
SWITCH = ("auto", "on", "off")
SIZES = (1 << 10, 1 << 40)  # plausible message sizes, in bytes
EXCHANGE, HOSTS, STALLS = "exchange of tensors", "other hosts", "stalled ranks"
TIMELINE, AUTOTUNE, TRACKING, OTHER = "timeline", "autotune", "tracking", "other"
ELASTIC = "elastic jobs"


class Settings(Variables):
    """The settings of a user."""

    transport: str = setting(
        "auto",
        "transport between ranks: auto, shm (shared memory), tcp, or one from another distribution",
        flag="--transport",
        group=EXCHANGE,
        choices=("auto", *registry.BUILT_IN["wire"]),
        plugins="wire",
    )
    fusion_threshold: int = setting(
        64 * MIB,
        "fuse tensors into exchanges of up to this size; 0 = no fusion",
        flag="--fusion-threshold-mb",
        horovod="HOROVOD_FUSION_THRESHOLD",
        group=EXCHANGE,
        unit="MiB",
        scale=MIB,
        plausible=SIZES,
    )
    bucket_bytes: int = setting(
        8 * MIB,
        "exchange gradients in buckets of this size",
        flag="--bucket-mb",
        group=EXCHANGE,
        unit="MiB",
        scale=MIB,
        plausible=SIZES,
    )
    strategy: str = setting(
        "allreduce",
        "what ranks exchange: gradients (allreduce, adasum), or weights periodically (local_sgd:8,"
        " ...)",
        flag="--strategy",
        group=EXCHANGE,
    )
    codec: str = setting(
        "",
        "compress gradients before they are summed: a name like int8, or name:argument, like"
        " topk:0.01 (see docs/strategies.md)",
        flag="--codec",
        group=EXCHANGE,
        plugins="codec",
    )
    servers: int = setting(
        1,
        "number of parameter servers, for strategies like ps and ssp: one runs next to the"
        " driver, several on the ranks' hosts",
        flag="--servers",
        group=EXCHANGE,
        least=1,
        most=1024,
    )
    replicas: int = setting(
        1,
        "number of processes per parameter server; all but one may be lost (at least 2 in elastic"
        " jobs)",
        flag="--replicas",
        group=EXCHANGE,
        least=1,
        most=16,
    )
    overlap: str = setting(
        "auto",
        "exchange gradients during backward: on, off, or auto (if there are cores to spare)",
        flag="--overlap",
        group=EXCHANGE,
        choices=SWITCH,
    )
    nccl: str = setting(
        "auto",
        "exchange tensors between GPUs directly, with NCCL: on, off (through host memory), or"
        " auto (if every rank has a GPU)",
        flag="--nccl",
        group=EXCHANGE,
        choices=SWITCH,
    )
    cycle_time: float = setting(
        1.0,
        "time for which asynchronous collectives are collected before the background thread runs"
        " them",
        flag="--cycle-time-ms",
        horovod="HOROVOD_CYCLE_TIME",
        group=EXCHANGE,
        unit="ms",
        plausible=(0.0, 1000.0),
    )
    cache_capacity: int = setting(
        1024,
        "number of signatures in the response cache; 0 = off",
        flag="--cache-capacity",
        horovod="HOROVOD_CACHE_CAPACITY",
        group=EXCHANGE,
    )
    network_interfaces: str = setting(
        "",
        "interfaces for the job's traffic, like eth0,ib0; default: all that answer, the fastest"
        " first",
        flag="--network-interfaces",
        group=HOSTS,
    )
    tcp_streams: int = setting(
        1,
        "number of TCP connections between two ranks; use several on long links, and on networks"
        " that limit each connection",
        flag="--tcp-streams",
        group=HOSTS,
        least=1,
        most=64,
    )
    tls: bool = setting(
        False,
        "encrypt traffic between hosts (TLS 1.3), with the job's own certificate at each end",
        flag="--tls",
        group=HOSTS,
    )
    ssh_port: int = setting(
        0,
        "ssh port on all hosts; 0 = the port in ssh's configuration",
        flag="--ssh-port",
        group=HOSTS,
        most=65535,
    )
    ssh_identity_file: str = setting(
        "", "private key file for ssh", flag="--ssh-identity-file", group=HOSTS
    )
    ssh_options: str = setting(
        "", "additional options for ssh, like '-J gateway -l me'", flag="--ssh-options", group=HOSTS
    )
    min_np: int = setting(
        0,
        "minimum number of processes of an elastic job; 0 = the job has a fixed size",
        flag="--min-np",
        group=ELASTIC,
    )
    max_np: int = setting(
        0,
        "maximum number of processes of an elastic job; 0 = one per slot",
        flag="--max-np",
        group=ELASTIC,
    )
    host_discovery_script: str = setting(
        "",
        "program that prints the hosts of an elastic job, as host or host:slots per line, and is"
        " run every second; or file:PATH for a file with such lines, or slurm for the nodes of the"
        " Slurm job",
        flag="--host-discovery-script",
        group=ELASTIC,
    )
    slots_per_host: int = setting(
        0,
        "number of slots of discovered hosts that are listed without one; 0 = each host must be"
        " listed with its number",
        flag="--slots-per-host",
        group=ELASTIC,
    )
    elastic_timeout: float = setting(
        600.0,
        "maximum wait for enough slots, at the start and after a loss",
        flag="--elastic-timeout",
        horovod="HOROVOD_ELASTIC_TIMEOUT",
        group=ELASTIC,
        unit="s",
        least=0.001,
        most=1e9,
    )
    reset_limit: int = setting(
        0,
        "maximum number of membership changes of an elastic job; 0 = unlimited",
        flag="--reset-limit",
        group=ELASTIC,
    )
    cooldown_range: str = setting(
        "",
        "how long a host is excluded after a process failed there, as MIN:MAX (10:100): MIN"
        " seconds at first, doubled after each failure up to MAX; default: forever",
        flag="--cooldown-range",
        group=ELASTIC,
        unit="s",
    )
    preemption_notice: str = setting(
        "",
        "comma-separated sources of preemption notices for the hosts of an elastic job:"
        " signal:USR1, file:PATH, an http:// address, or a cloud (aws, gcp, azure)",
        flag="--preemption-notice",
        group=ELASTIC,
    )
    slurm_requeue: bool = setting(
        False,
        "requeue the Slurm job (scontrol requeue) when all its hosts are being preempted",
        flag="--slurm-requeue",
        group=ELASTIC,
    )
    check_replicas_every: int = setting(
        0,
        "compare all weights and optimizer states between ranks at every N-th commit, and repair a"
        " replica that differs; 0 = never",
        flag="--check-replicas-every",
        group=ELASTIC,
    )
    leave_out_stragglers: float = setting(
        0.0,
        "exclude a host if a rank there computes for more than X times the median of the other"
        " ranks, in three consecutive windows of about ten steps or more; 0 = never",
        flag="--leave-out-stragglers",
        group=ELASTIC,
        plausible=(1.1, 100.0),
    )
    fixed_global_batch: bool = setting(
        False,
        "keep the global batch, and thus the final weights, the same when ranks are lost or added:"
        " --max-np (or -np) shares of the program's batch size",
        flag="--fixed-global-batch",
        group=ELASTIC,
    )
    max_restarts: int = setting(
        0,
        "maximum number of restarts of all processes after failures, for programs that resume from"
        " their last checkpoint",
        flag="--max-restarts",
        group=ELASTIC,
    )
    commit_copies: int = setting(
        1,
        "number of other ranks that keep a copy of each rank's own values in a commit, on other"
        " hosts if possible; 0 = none",
        flag="--commit-copies",
        group=ELASTIC,
        most=16,
    )
    commit_dir: str = setting(
        "",
        "folder or fsspec URL to which rank 0 writes commits, and from which a restarted job"
        " continues",
        flag="--commit-dir",
        group=ELASTIC,
    )
    commit_dir_seconds: float = setting(
        60.0,
        "time between commits that are written to --commit-dir",
        flag="--commit-dir-seconds",
        group=ELASTIC,
        unit="s",
        least=0.0,
        most=1e9,
    )
    stall_check_disable: bool = setting(
        False,
        "do not warn about stalled ranks",
        flag="--no-stall-check",
        horovod="HOROVOD_STALL_CHECK_DISABLE",
        group=STALLS,
    )
    stall_warning_seconds: float = setting(
        60.0,
        "time before a waiting tensor is reported",
        flag="--stall-check-warning-time-seconds",
        horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
        group=STALLS,
        unit="s",
    )
    stall_shutdown_seconds: float = setting(
        0.0,
        "time before a stalled job is ended; 0 = never",
        flag="--stall-check-shutdown-time-seconds",
        horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        group=STALLS,
        unit="s",
    )
    check: str = setting(
        "warn",
        "reaction to ranks that hold different weights, step differently or read the same data:"
        " warn, raise, or off",
        flag="--check",
        group=OTHER,
        choices=("warn", "raise", "off"),
    )
    timeline: str = setting(
        "",
        "file for a Chrome trace of all collectives, written by rank 0; DYNAMIC: start_timeline()"
        " sets the file",
        flag="--timeline-filename",
        horovod="HOROVOD_TIMELINE",
        group=TIMELINE,
    )
    timeline_mark_cycles: bool = setting(
        False,
        "mark each negotiation cycle in the timeline",
        flag="--timeline-mark-cycles",
        horovod="HOROVOD_TIMELINE_MARK_CYCLES",
        group=TIMELINE,
    )
    timeline_all_ranks: bool = setting(
        False,
        "write a timeline on every rank, to <file>.rank<N>; see farandole timeline merge",
        flag="--timeline-all-ranks",
        group=TIMELINE,
    )
    autotune: bool = setting(
        False,
        "try exchange sizes during training, and keep the fastest",
        flag="--autotune",
        horovod="HOROVOD_AUTOTUNE",
        group=AUTOTUNE,
    )
    autotune_log: str = setting(
        "",
        "CSV file for the sizes that autotune tries, with the best one in the last row",
        flag="--autotune-log-file",
        horovod="HOROVOD_AUTOTUNE_LOG",
        group=AUTOTUNE,
    )
    autotune_warmup_samples: int = setting(
        3,
        "number of initial samples that autotune discards",
        flag="--autotune-warmup-samples",
        horovod="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        group=AUTOTUNE,
    )
    autotune_steps_per_sample: int = setting(
        10,
        "number of training steps per sample of autotune",
        flag="--autotune-steps-per-sample",
        horovod="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        group=AUTOTUNE,
    )
    autotune_bayes_opt_max_samples: int = setting(
        20,
        "maximum number of sizes that autotune tries",
        flag="--autotune-bayes-opt-max-samples",
        horovod="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        group=AUTOTUNE,
    )
    autotune_gaussian_process_noise: float = setting(
        0.8,
        "no effect: autotune searches a grid; from 0 to 1",
        flag="--autotune-gaussian-process-noise",
        horovod="HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        group=AUTOTUNE,
        most=1.0,
    )
    track: bool = setting(
        False,
        "keep the job as a run, with logs, metrics and the cause of its end, for farandole runs"
        " and show",
        flag="--track",
        group=TRACKING,
    )
    mirror: str = setting(
        "",
        "copy the metrics of a run to other trackers as well: mlflow, tensorboard, trackio",
        flag="--mirror",
        group=TRACKING,
    )
    dynamic_process_sets: bool = setting(
        False,
        "allow process sets to be added and removed after init()",
        flag="--dynamic-process-sets",
        horovod="HOROVOD_DYNAMIC_PROCESS_SETS",
        group=OTHER,
    )
    join_mean_of_present: bool = setting(
        False,
        "after join(), average over the ranks that still have data, not over all ranks",
        flag="--join-mean-of-present",
        group=OTHER,
    )
    start_timeout: float = setting(
        30.0,
        "time for all ranks to reach init()",
        flag="--start-timeout",
        horovod="HOROVOD_START_TIMEOUT",
        group=OTHER,
        unit="s",
        least=0.001,
        most=1e9,
    )
    grace_seconds: float = setting(
        30.0,
        "time for ranks to save their state when the job is ended (between SIGTERM and SIGKILL)",
        flag="--grace-seconds",
        group=OTHER,
        unit="s",
        least=0.0,
        most=1e9,
    )
    log_level: str = setting(
        "warning",
        "lowest level to log: trace, debug, info, warning, error or fatal",
        flag="--log-level",
        horovod="HOROVOD_LOG_LEVEL",
        group=OTHER,
        choices=LOG_LEVELS,
    )
    log_hide_time: bool = setting(
        False,
        "log lines without a time stamp",
        flag="--log-without-timestamp",
        horovod="HOROVOD_LOG_HIDE_TIME",
        group=OTHER,
    )


def spare_cores(settings: Settings, local_size: int) -> bool:
    """Return whether each of ``local_size`` ranks has a core to spare for exchanges during
    computation.

    With one core per rank, an exchange would only take turns with the computation.
    """
    if settings.overlap != "auto":
        return settings.overlap == "on"
    return cores() >= 2 * local_size
