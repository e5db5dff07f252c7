"""One field is one setting: reading, writing and refusing values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.doubts import doubts
from farandole.job.config.fields import Variables, settings_of, variables
from farandole.job.config.horovod import built_for
from farandole.job.config.settings import LOG_LEVELS

KINDS: tuple[type[Variables], ...] = (Placement, Connection, Settings)
SETTINGS = {each.name: each for kind in KINDS for each in settings_of(kind)}

# A new flag is a promise to users: it is added here on purpose.
FLAGS = [
    "--transport",
    "--fusion-threshold-mb",
    "--bucket-mb",
    "--strategy",
    "--codec",
    "--servers",
    "--replicas",
    "--overlap",
    "--nccl",
    "--cycle-time-ms",
    "--cache-capacity",
    "--network-interfaces",
    "--tcp-streams",
    "--tls",
    "--ssh-port",
    "--ssh-identity-file",
    "--ssh-options",
    "--min-np",
    "--max-np",
    "--host-discovery-script",
    "--slots-per-host",
    "--elastic-timeout",
    "--reset-limit",
    "--cooldown-range",
    "--preemption-notice",
    "--slurm-requeue",
    "--check-replicas-every",
    "--leave-out-stragglers",
    "--fixed-global-batch",
    "--max-restarts",
    "--commit-copies",
    "--commit-dir",
    "--commit-dir-seconds",
    "--no-stall-check",
    "--stall-check-warning-time-seconds",
    "--stall-check-shutdown-time-seconds",
    "--check",
    "--timeline-filename",
    "--timeline-mark-cycles",
    "--timeline-all-ranks",
    "--autotune",
    "--autotune-log-file",
    "--autotune-warmup-samples",
    "--autotune-steps-per-sample",
    "--autotune-bayes-opt-max-samples",
    "--autotune-gaussian-process-noise",
    "--track",
    "--mirror",
    "--dynamic-process-sets",
    "--join-mean-of-present",
    "--start-timeout",
    "--grace-seconds",
    "--log-level",
    "--log-without-timestamp",
]

# Names that users of Horovod set in their scripts; they must keep working.
HOROVOD = {
    "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold", "1024", 1024),
    "HOROVOD_CYCLE_TIME": ("cycle_time", "3.5", 3.5),
    "HOROVOD_CACHE_CAPACITY": ("cache_capacity", "0", 0),
    "HOROVOD_STALL_CHECK_DISABLE": ("stall_check_disable", "1", True),
    "HOROVOD_DYNAMIC_PROCESS_SETS": ("dynamic_process_sets", "1", True),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("stall_warning_seconds", "5", 5.0),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("stall_shutdown_seconds", "9", 9.0),
    "HOROVOD_TIMELINE": ("timeline", "DYNAMIC", "DYNAMIC"),
    "HOROVOD_TIMELINE_MARK_CYCLES": ("timeline_mark_cycles", "1", True),
    "HOROVOD_AUTOTUNE": ("autotune", "1", True),
    "HOROVOD_AUTOTUNE_LOG": ("autotune_log", "log.csv", "log.csv"),
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": ("autotune_warmup_samples", "1", 1),
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": ("autotune_steps_per_sample", "5", 5),
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": ("autotune_bayes_opt_max_samples", "7", 7),
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": ("autotune_gaussian_process_noise", "0.5", 0.5),
    "HOROVOD_START_TIMEOUT": ("start_timeout", "77", 77.0),
    "HOROVOD_ELASTIC_TIMEOUT": ("elastic_timeout", "60", 60.0),
    "HOROVOD_LOG_LEVEL": ("log_level", "INFO", "info"),
    "HOROVOD_LOG_HIDE_TIME": ("log_hide_time", "true", True),
    "HOROVOD_RANK": ("rank", "3", 3),
    "HOROVOD_SIZE": ("size", "4", 4),
    "HOROVOD_LOCAL_RANK": ("local_rank", "1", 1),
    "HOROVOD_LOCAL_SIZE": ("local_size", "2", 2),
    "HOROVOD_CROSS_RANK": ("cross_rank", "1", 1),
    "HOROVOD_CROSS_SIZE": ("cross_size", "2", 2),
    "HOROVOD_HOSTNAME": ("hostname", "h1", "h1"),
}


def value_of(name: str, env: dict[str, str]) -> object:
    """The value of the field ``name``, of whichever of the three has it."""
    (kind,) = (kind for kind in KINDS if name in {each.name for each in settings_of(kind)})
    return getattr(kind.from_env(env), name)


def test_without_variables_there_is_one_rank_and_no_job() -> None:
    placement = Placement.from_env({})
    assert (Settings.from_env({}), placement) == (Settings(), Placement())
    assert (
        placement.rank,
        placement.size,
        placement.generation,
        Connection.from_env({}).store,
    ) == (0, 1, 0, "")


def test_placement_and_connection_are_no_settings() -> None:
    found = {each.name for each in settings_of(Connection)}
    assert found == {"store", "secret", "launcher", "member", "shares"}
    assert all(each.flag for each in settings_of(Settings))
    assert not any(each.flag for kind in (Placement, Connection) for each in settings_of(kind))
    apart = [variables(kind) for kind in KINDS]
    assert sum(map(len, apart)) == len(variables(*KINDS))
    assert {"FARANDOLE_RANK", "HOROVOD_RANK", "FARANDOLE_GENERATION"} <= apart[0]


@pytest.mark.parametrize("variable", HOROVOD)
def test_a_variable_of_horovod_is_read(variable: str) -> None:
    name, text, value = HOROVOD[variable]
    assert value_of(name, {variable: text}) == value


def test_every_variable_of_horovod_is_in_the_list_above() -> None:
    assert {each.horovod for each in SETTINGS.values() if each.horovod} == HOROVOD.keys()


def test_our_variable_wins_over_horovods() -> None:
    env = {"HOROVOD_CACHE_CAPACITY": "7", "FARANDOLE_CACHE_CAPACITY": "8"}
    assert Settings.from_env(env).cache_capacity == 8


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Placement.from_env({"FARANDOLE_RANK": "", "HOROVOD_RANK": "2"}).rank == 2


def test_the_list_of_flags() -> None:
    assert [each.flag for each in SETTINGS.values() if each.flag] == FLAGS


@pytest.mark.parametrize("each", SETTINGS.values(), ids=SETTINGS)
def test_every_knob_is_documented_and_of_its_type(each) -> None:
    assert each.doc
    assert type(each.default) is each.kind
    named_for_its_unit = each.scale != 1.0
    own = each.flag.removeprefix("--").replace("-", "_") if named_for_its_unit else each.name
    assert each.variable == f"FARANDOLE_{own.upper()}"
    assert set(each.choices) >= ({each.default} if each.choices else set())


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            {"HOROVOD_RANK": "one"},
            "HOROVOD_RANK='one' must be a whole number (rank",
        ),
        (
            {"FARANDOLE_CYCLE_TIME": "(None,)"},
            "FARANDOLE_CYCLE_TIME='(None,)' must be a number",
        ),
        (
            {"FARANDOLE_LOG_HIDE_TIME": "maybe"},
            "FARANDOLE_LOG_HIDE_TIME='maybe' must be 0 or 1",
        ),
        ({"HOROVOD_SIZE": "-1"}, "HOROVOD_SIZE=-1 must be >= 0"),
        ({"HOROVOD_START_TIMEOUT": "-3"}, "HOROVOD_START_TIMEOUT=-3.0 must be in [0.001, 1e+09]"),
        ({"HOROVOD_START_TIMEOUT": "0"}, "HOROVOD_START_TIMEOUT=0.0 must be in [0.001, 1e+09]"),
        ({"HOROVOD_START_TIMEOUT": "1e10"}, "must be in [0.001, 1e+09]"),
        (
            {"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "1.5"},
            "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE=1.5 must be in [0, 1]",
        ),
        (
            {"HOROVOD_START_TIMEOUT": "nan"},
            "HOROVOD_START_TIMEOUT='nan' must be a number",
        ),
        (
            {"FARANDOLE_BUCKET_MB": "inf"},
            "FARANDOLE_BUCKET_MB='inf' must be a number",
        ),
        (
            {"FARANDOLE_TRANSPORT": "tpc"},
            (
                "FARANDOLE_TRANSPORT='tpc' is not a valid choice; choose one of auto, shm, tcp; did you mean"
                " 'tcp'?"
            ),
        ),
        (
            {"FARANDOLE_CODEC": "topq:0.1"},
            "FARANDOLE_CODEC='topq:0.1': unknown codec 'topq' (known: fp16, bf16, int8,",
        ),
        (
            {"FARANDOLE_NCCL": "yes"},
            "FARANDOLE_NCCL='yes' is not a valid choice; choose one of auto, on, off",
        ),
        (
            {"HOROVOD_LOG_LEVEL": "loud"},
            "HOROVOD_LOG_LEVEL='loud' is not a valid choice; choose one of trace, debug, info",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_rule(env: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        [kind.from_env(env) for kind in KINDS]
    assert says in str(caught.value)


class TestUnits:
    def test_units_of_our_variables_and_of_horovods(self) -> None:
        assert (
            Settings.from_env({"FARANDOLE_FUSION_THRESHOLD_MB": "0.5"}).fusion_threshold == 1 << 19
        )
        assert (
            Settings.from_env({"HOROVOD_FUSION_THRESHOLD": "134217728"}).fusion_threshold
            == 128 << 20
        )
        assert Settings(bucket_bytes=3 << 19).to_env() == {"FARANDOLE_BUCKET_MB": "1.5"}
        assert Settings(fusion_threshold=1 << 20).to_env() == {
            "FARANDOLE_FUSION_THRESHOLD_MB": "1",
            "HOROVOD_FUSION_THRESHOLD": "1048576",
        }

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            (
                Settings(fusion_threshold=128),
                "fusion_threshold is 128 bytes (0.0001220703125 MiB)",
            ),
            (
                Settings(fusion_threshold=64),
                "fusion_threshold is 64 bytes (0.0000610 MiB)",
            ),
            (Settings(fusion_threshold=64 << 40), "(67108864 MiB)"),
            (
                Settings(bucket_bytes=8),
                "--bucket-mb and FARANDOLE_BUCKET_MB are in MiB (default: 8 MiB)",
            ),
            (
                Settings(cycle_time=5000.0),
                "cycle_time is 5000 ms",
            ),
            (Settings(cycle_time=123456789.0), "cycle_time is 123456789 ms, "),
            (Settings(leave_out_stragglers=500.0), "(default: 0)"),
        ],
    )
    def test_values_in_an_implausible_unit_are_doubted(self, settings: Settings, says: str) -> None:
        (doubt,) = doubts(settings, {})
        assert says in doubt

    def test_plausible_settings_are_not_doubted(self) -> None:
        assert (
            doubts(
                Settings(),
                {"FARANDOLE_TEST": "1", "FARANDOLE_DATA": "x", "FARANDOLE_BUCKET_MB": "8"},
            )
            == []
        )
        assert doubts(Settings(fusion_threshold=0, cycle_time=0.0, bucket_bytes=1024), {}) == []

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("FARANDOLE_FUSION_THRESHOLD", "FARANDOLE_FUSION_THRESHOLD_MB"),
            ("FARANDOLE_TRANPSORT", "FARANDOLE_TRANSPORT"),
            ("FARANDOLE_TIMELINE_FILENAME", "FARANDOLE_TIMELINE"),
            ("HOROVOD_FUSION_TRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
            ("HOROVOD_LOGLEVEL", "HOROVOD_LOG_LEVEL"),
        ],
    )
    def test_a_misspelt_variable_is_doubted(self, name: str, meant: str) -> None:
        assert doubts(Settings(), {name: "1"}) == [
            f"the environment has {name}, which is not a setting; did you mean {meant}?"
        ]

    def test_variables_of_horovod_without_an_effect_are_not(self) -> None:
        others = (
            "GLOO_TIMEOUT_SECONDS",
            "ELASTIC_TIMEOUT",
            "HIERARCHICAL_ALLGATHER",
            "THREAD_AFFINITY",
            "CONTROLLER",
        )
        assert doubts(Settings(), {f"HOROVOD_{name}": "1" for name in others}) == []


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_yes(text: str) -> None:
    assert Settings.from_env({"FARANDOLE_STALL_CHECK_DISABLE": text}).stall_check_disable is True


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_no(text: str) -> None:
    assert Placement.from_env({"FARANDOLE_HOMOGENEOUS": text}).homogeneous is False


WORDS = st.text("az09:-", min_size=1)
VALUES = {int: st.integers(0, 1 << 40), float: st.floats(0, 1e9), bool: st.booleans(), str: WORDS}
CHOICES = {
    "transport": st.sampled_from(["auto", "shm", "tcp"]),
    "log_level": st.sampled_from(LOG_LEVELS),
    "autotune_gaussian_process_noise": st.floats(0, 1),
    "overlap": st.sampled_from(["auto", "on", "off"]),
    "ssh_port": st.integers(0, 65535),
    "codec": st.sampled_from(["", "int8", "topk:0.01"]),
    "nccl": st.sampled_from(["auto", "on", "off"]),
    "check": st.sampled_from(["warn", "raise", "off"]),
    "servers": st.integers(1, 1024),
    "replicas": st.integers(1, 16),
    "commit_copies": st.integers(0, 16),
    "tcp_streams": st.integers(1, 64),
    "start_timeout": st.floats(0.001, 1e9),
    "elastic_timeout": st.floats(0.001, 1e9),
}


def any_value(kind: type[Variables]) -> st.SearchStrategy[Variables]:
    fields = {each.name: CHOICES.get(each.name, VALUES[each.kind]) for each in settings_of(kind)}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


@given(st.tuples(*map(any_value, KINDS)))
def test_all_three_survive_the_environment(all_three: tuple[Variables, ...]) -> None:
    env = {name: text for each in all_three for name, text in each.to_env().items()}
    assert tuple(kind.from_env(env) for kind in KINDS) == all_three


def test_variables_of_a_placement_omit_defaults() -> None:
    assert Placement(rank=1, size=2).to_env() == {
        "FARANDOLE_RANK": "1",
        "HOROVOD_RANK": "1",
        "FARANDOLE_SIZE": "2",
        "HOROVOD_SIZE": "2",
    }


def test_settings_given_explicitly_reach_ranks_even_if_default() -> None:
    settings = Settings(stall_warning_seconds=10.0, cycle_time=0.5)
    found = settings.to_env({"HOROVOD_CACHE_CAPACITY", "FARANDOLE_TRANSPORT", "PATH"})
    assert found == {
        "FARANDOLE_CACHE_CAPACITY": "1024",
        "HOROVOD_CACHE_CAPACITY": "1024",
        "FARANDOLE_TRANSPORT": "auto",
        "FARANDOLE_STALL_WARNING_SECONDS": "10",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "10",
        "FARANDOLE_CYCLE_TIME": "0.5",
        "HOROVOD_CYCLE_TIME": "0.5",
    }


@pytest.mark.parametrize(
    "name",
    [
        "HOROVOD_WITH_PYTORCH",
        "HOROVOD_WITHOUT_MPI",
        "HOROVOD_GPU",
        "HOROVOD_GPU_OPERATIONS",
        "HOROVOD_GPU_ALLREDUCE",
        "HOROVOD_CUDA_HOME",
        "HOROVOD_NCCL_LINK",
        "HOROVOD_CPU_OPERATIONS",
        "HOROVOD_BUILD_CUDA_CC_LIST",
    ],
)
def test_build_variables_of_horovod_are_known(name: str) -> None:
    assert built_for(
        {"PATH": "/bin", "HOROVOD_TIMELINE": "x", "HOROVOD_WITH_EVERYTHING": "1", name: "1"}
    ) == [name]


def test_variables_set_by_the_worker_are_not_the_users() -> None:
    assert built_for({"HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_CONTROLLER": "gloo"}) == []


def test_settings_cannot_be_changed_or_misspelt() -> None:
    with pytest.raises(AttributeError, match="use replace"):
        Settings().cycle_time = 1.0
    with pytest.raises(TypeError, match="fusion_treshold"):
        Settings(fusion_treshold=1)
