"""``farandole bench``: its arithmetic, its refusals, and one quick run from end to end. No time is
asserted.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks import cores, crew, hosts, report
from benchmarks.__main__ import ALL, checked, main
from benchmarks.samples import (
    ALONE,
    DDP,
    DDP_NCCL,
    GLOO,
    GLOO_FLAT,
    INTEL,
    MPI,
    MPICH,
    NCCL,
    OURS,
    PARTS,
    TIMELINE,
    TOGETHER,
    TORCHRUN,
    TUNED,
    UNWATCHED,
    Case,
    Learned,
    Run,
    from_record,
    interleave,
)
from benchmarks.steps import FRAMEWORKS
from farandole.cli.machine import visible_gpus
from tests.kits.hosts import needed, obstacle
from tests.kits.messages import mentioning, mentions

ROOT = Path(__file__).parent.parent


def case(**samples: list[float]) -> Case:
    return Case("allreduce", "4 KiB", {OURS: [1.0, 2.0, 3.0], **samples}, 5, 4096)


def test_every_contender_has_its_colour() -> None:
    plot = pytest.importorskip("benchmarks.plot", reason="matplotlib is not installed")
    assert set(report.COLUMNS) == plot.COLOURS.keys()


def test_contenders_take_turns() -> None:
    order: list[str] = []
    turns = {name: lambda name=name: order.append(name) for name in "ab"}
    samples = interleave(turns, repetitions=2, per_sample=2, before=lambda: order.append("|"))
    assert "".join(order) == "|a|b" + "|aa|bb" * 2
    assert {name: len(values) for name, values in samples.items()} == {"a": 2, "b": 2}


def test_a_sample_is_the_mean_of_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 18.0])
    monkeypatch.setattr("benchmarks.samples.time.perf_counter", lambda: next(clock))
    assert interleave({"a": lambda: None}, repetitions=1, per_sample=4) == {"a": [2.0]}


def test_median_spread_and_ratio() -> None:
    found = case(Gloo=[8.0, 9.0, 7.0])
    assert (found.median(OURS), found.ratio(GLOO)) == (2.0, 4.0)
    assert found.spread(GLOO) == pytest.approx((7.2, 8.8))
    assert case(Gloo=[5.0]).spread(GLOO) == (5.0, 5.0)


def test_the_added_time_is_counted_from_one_process() -> None:
    step = Case("step", "m", {ALONE: [0.010], TOGETHER: [0.012], OURS: [0.014], DDP: [0.022]}, 5)
    assert (step.added(OURS), step.added(DDP)) == pytest.approx((0.004, 0.012))
    rows = [table for table in report.tables([step]) if "added" in str(table.title)]
    assert [list(column.cells) for column in rows[0].columns] == [
        ["m"],
        ["4 ms"],
        ["12 ms"],
        ["3.0x"],
    ]


def test_a_framework_without_its_own_way_has_no_comparison() -> None:
    step = Case("step", "m", {ALONE: [0.010], TOGETHER: [0.012], OURS: [0.014]}, 5)
    table = report.tables([step])[-1]
    assert [str(column.header) for column in table.columns] == ["case", "added by Farandole"]
    assert [list(column.cells) for column in table.columns] == [["m"], ["4 ms"]]


def test_the_step_of_each_framework_has_its_file() -> None:
    files = {path.stem for path in (ROOT / "benchmarks" / "steps").glob("*.py")} - {"__init__"}
    assert files == FRAMEWORKS.keys()


def test_the_table_has_a_row_per_case_and_dashes() -> None:
    other = Case("allreduce", "many", {OURS: [1e-6], GLOO: [2e-6], GLOO_FLAT: [3e-6]})
    (table,) = report.tables([case(Gloo=[4.0, 4.0, 4.0]), other])
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["case"] == ["4 KiB", "many"]
    assert cells[GLOO] == ["4 s (4 s - 4 s) 2.0x", "2 µs (2 µs - 2 µs) 2.0x"]
    assert cells[GLOO_FLAT][0] == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.2e-6, "4.2 µs"),
        (0.00099951, "1 ms"),
        (0.0123456, "12.3 ms"),
        (2.0, "2 s"),
        (-0.002, "-2 ms"),
    ],
)
def test_seconds_are_written_with_three_digits(value: float, text: str) -> None:
    assert report.seconds(value) == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["alreduce"],
            (
                "unknown benchmark 'alreduce'; choose from allreduce, step, start, observers,"
                " c10d, gpu, strategies"
            ),
        ),
        (["--np", "1"], "--np=1 must be at least 2"),
        (["--json", "/no/such/folder/x.json"], "--json=/no/such/folder/x.json cannot be written"),
        (["--json", "x" * 300], "xxx cannot be written: name a file"),
        (["--np=--"], "argument -np/--num-proc/--np: "),
        (["--plot", "picture.pdf"], "--plot=picture.pdf must end in .png"),
        (["--framework", "theano"], "invalid choice: 'theano'"),
        (["--hosts", "2"], "--hosts applies to transports: farandole bench allreduce --hosts 2"),
        (["allreduce", "--rate", "1gbit"], "--hosts=1 must be at least 2"),
        (["allreduce", "--tls"], "--hosts=1 must be at least 2"),
        (
            ["allreduce", "--hosts", "3", "-np", "2"],
            "--np=2 leaves some of the 3 hosts without a rank",
        ),
        (
            ["strategies", "learning"],
            "strategies must be measured alone: farandole bench strategies",
        ),
        (
            ["learning", "--hosts", "2"],
            "--hosts applies to transports: farandole bench allreduce --hosts 2",
        ),
        (["step", "--only", "ps"], "--only applies to"),
        (["strategies", "--only", "nonsense"], "--only=nonsense: unknown codec 'nonsense'"),
        (
            ["learning", "--data", "/no/such/folder"],
            "--data=/no/such/folder applies to learning",
        ),
        (["learning", "--plot", "x.png"], "--plot needs strategies"),
        (["learning", "--seeds", "0"], "--seeds=0 applies to strategies and learning"),
        (["step", "--seeds", "5"], "--seeds=5 applies to strategies and learning"),
        (
            ["strategies", "--model", "batchnorm"],
            "--model=batchnorm applies to learning: farandole bench learning --model batchnorm",
        ),
        (["gpu"], "gpu: this process sees no CUDA GPU"),
        (
            ["start", "--framework", "jax"],
            "--framework=jax applies to step; start is measured with torch",
        ),
    ],
)
def test_impossible_arguments_are_refused_immediately(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_everything_is_measured_when_nothing_is_named() -> None:
    assert checked([]).what == list(ALL)
    assert checked(["start", "allreduce", "-np", "4"]).what == ["allreduce", "start"]
    assert checked(["start", "-np", "4"]).size == 4
    assert [checked(words).size for words in (["learning"], ["strategies", "--hosts", "2"])] == [
        4,
        2,
    ]


def bench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole.cli", "bench", *arguments],
        cwd=folder,
        text=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


@pytest.mark.slow
def test_a_quick_run_gives_table_json_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = bench(
        "allreduce", "step", "--quick", "--json", "out.json", "--plot", "out.png", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    names = [
        "4 KiB",
        "64 KiB",
        "1 MiB",
        "5 x 10,000 floats",
        "MLP, 4.2 M parameters",
        "conv net, 1.2 M parameters",
    ]
    for name in names:
        assert f"| {name} " in done.stdout
        assert f"{name} done" in done.stderr

    cases, found = report.read_json(tmp_path / "out.json")
    assert report.text(cases) == done.stdout.rstrip()
    assert found["np"] == 2
    assert found["unit"] == "seconds"
    assert found["machine"]["versions"]["torch"]
    between = found["bytes_per_second_between_cores"]
    assert len(between) == 2
    if len(os.sched_getaffinity(0)) > 1:
        assert min(between) > 0
        assert cores.comparison(*between) in done.stderr
    assert [each["name"] for each in found["cases"]] == names
    for each in found["cases"]:
        expected = {ALONE, TOGETHER, OURS, DDP} if each["benchmark"] == "step" else {OURS, GLOO}
        assert expected <= each["contenders"].keys()
        if each["benchmark"] == "allreduce":
            assert (MPI in each["contenders"]) == (crew.mpirun(2) is not None)
        for contender in each["contenders"].values():
            assert len(contender["samples"]) == 3
            assert 0 < contender["p10"] <= contender["median"] <= contender["p90"]
    assert GLOO_FLAT in found["cases"][3]["contenders"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_measurements_of_a_changing_machine_are_reported() -> None:
    assert cores.comparison(36e9, 35e9).endswith("at 36 GB/s before, 35 GB/s after")
    assert "Run it again" in cores.comparison(36e9, 11e9)
    assert cores.comparison(None, None) == ""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_latency_between_cores_leaves_affinity_alone() -> None:
    allowed, threads = os.sched_getaffinity(0), threading.active_count()
    assert (cores.between() or 0) > 1e8
    assert os.sched_getaffinity(0) == allowed
    assert threading.active_count() == threads
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_the_cost_of_observers_is_shown_in_percent(tmp_path: Path) -> None:
    done = bench("observers", "--quick", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for case in report.read_json(tmp_path / "out.json")[0]:
        assert case.samples.keys() == {OURS, UNWATCHED, TIMELINE, TUNED}
        assert f"{case.ratio(TIMELINE) - 1:+.1%}" in done.stdout


@pytest.mark.slow
def test_torch_distributed_is_measured_next_to_gloo(tmp_path: Path) -> None:
    done = bench("c10d", "--quick", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    cases = report.read_json(tmp_path / "out.json")[0]
    assert len(cases) == 10
    assert all(case.samples.keys() == {OURS, GLOO} for case in cases)
    assert "| send and receive, 4 KiB " in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not visible_gpus(os.environ), reason="no CUDA GPU")
def test_gpus_are_measured_against_torch(tmp_path: Path) -> None:
    done = bench("gpu", "--quick", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for case in report.read_json(tmp_path / "out.json")[0]:
        theirs = {TOGETHER, DDP, DDP_NCCL} if case.name.startswith("step") else {NCCL, GLOO}
        assert {OURS} < case.samples.keys() <= {OURS, *theirs}


def run(name: str, strategy: str, rate: float, right: list[float], **more: float) -> Run:
    curve = [(float(second), percent) for second, percent in enumerate(right)]
    staleness, dropped = more.get("staleness", 0.0), more.get("dropped", 0.0)
    return Run("strategies", name, strategy, "SGD 0.1", rate, staleness, dropped, curve)


def test_strategies_are_compared_with_all_reduce(tmp_path: Path) -> None:
    runs = [
        run("slow", "allreduce", 100.0, [10.0, 50.0, 96.0]),
        run("slow", "ps_async", 250.0, [10.0, 95.0, 94.0]),
        run("link", "allreduce", 10.0, [9.0, 10.0]),
        run("link", "ps:1,backup=1", 25.0, [9.0, 10.0], staleness=1.5, dropped=0.2),
    ]
    tables = report.tables(runs)
    assert [table.title for table in tables] == ["slow", "link"]
    shown = [
        {str(column.header): list(column.cells) for column in table.columns} for table in tables
    ]
    assert shown[0]["vs. all-reduce"] == ["1.00x", "2.50x"]
    assert (shown[0]["accuracy (%)"], shown[0]["time to 95 %"]) == (
        ["96.0", "94.0"],
        ["2.0 s", "1.0 s"],
    )
    assert shown[1]["time to 95 %"] == ["-", "-"]
    assert (shown[1]["staleness"], shown[1]["dropped"]) == (["", "1.5"], ["", "20%"])

    report.write_json(tmp_path / "runs.json", report.document(runs, 4, ["strategies"]))
    found, _ = report.read_json(tmp_path / "runs.json")
    assert report.text(found) == report.text(runs)
    plot = pytest.importorskip("benchmarks.plot", reason="matplotlib is not installed")
    plot.draw(tmp_path / "runs.png", runs, 4)
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_of_a_strategy_become_their_median() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from benchmarks.strategies import median

    seeds = [
        run("slow", "ps", 100.0, [10.0, 50.0, 96.0], dropped=0.1),
        run("slow", "ps", 300.0, [20.0, 40.0, 90.0], dropped=0.4),
        run("slow", "ps", 200.0, [0.0, 60.0, 98.0], dropped=0.3),
    ]
    found = median(seeds)
    assert (found.rate, found.dropped) == (200.0, 0.3)
    assert list(found.curve) == [(0.0, 10.0), (1.0, 50.0), (2.0, 96.0)]
    assert list(found.curves) == [each.curve for each in seeds]
    assert from_record(found.record()) == found
    assert median(seeds[:1]) == seeds[0]


def test_final_losses_are_compared_with_all_reduce() -> None:
    rows = [
        Learned("learning", "digits", "allreduce", "SGD 0.1", 98.0, 98.0, 269.4, 3.0, 0.0, 0.0),
        Learned(
            "learning", "digits", "local_sgd:8+int8", "SGD 0.1", 97.5, 98.0, 8.51, 2.0, 0.5, 3.14
        ),
        Learned(
            "learning", "digits", "sign:0.9", "SGD 0.1", 98.3, 98.0, 8.51, 2.0, 0.0, 3.14, 5, 0.12
        ),
    ]
    (table,) = report.tables(rows)
    assert [list(column.cells)[2] for column in table.columns][2:4] == ["98.3", "+0.3 ± 0.1"]
    assert [list(column.cells)[1] for column in table.columns] == [
        "`local_sgd:8`, `int8`",
        "SGD 0.1",
        "97.5",
        "-0.5",
        "8.51",
        "2.0",
        "0.5",
        "3.1",
    ]
    assert [from_record(row.record()) for row in rows] == rows


def test_strategies_with_a_slow_rank_and_a_slow_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: list[tuple[object, ...]] = []

    def measure(
        what: list[str], size: int, quick: bool, among: object = (), **facts: object
    ) -> Iterator[Run | str]:
        jobs.append((what, size, quick, among, facts.get("rate"), facts["only"]))
        yield "half of it"
        yield run("over a link" if among else "beside a rank", "allreduce", 1.0, [10.0])

    @contextmanager
    def made(number: int, rate: str) -> Iterator[str]:
        yield f"{number} hosts, {rate}"

    monkeypatch.setattr(crew, "measure", measure)
    monkeypatch.setattr(hosts, "made", made)
    monkeypatch.setattr(hosts, "obstacle", lambda ssh=False: "")
    assert main(["strategies", "--quick", "--only", "ps"]) == 0
    what = ["strategies"], ["ps"]
    assert jobs == [
        (what[0], 4, True, (), None, what[1]),
        (what[0], 2, True, "2 hosts, 100mbit", "100mbit", what[1]),
    ]
    shown = capsys.readouterr()
    assert ("half of it" in shown.err, "over a link, allreduce done" in shown.err) == (True, True)
    assert ("beside a rank" in shown.out, "over a link" in shown.out) == (True, True)

    def interrupted(*_: object, **__: object) -> Iterator[Run]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(crew, "measure", interrupted)
    assert main(["strategies", "--quick"]) == 130
    assert "farandole bench: interrupted" in capsys.readouterr().err

    monkeypatch.setattr(crew, "measure", measure)
    monkeypatch.setattr(hosts, "obstacle", lambda ssh=False: "no root")
    jobs.clear()
    assert main(["strategies", "--quick", "--only", "ps"]) == 0
    assert len(jobs) == 1
    assert mentions(capsys.readouterr().err, "slow links", "root")


@pytest.mark.slow
def test_ranks_that_a_driver_starts_have_parameter_servers() -> None:
    from benchmarks.strategies import MOVES, STAYS

    found = list(
        crew.measure(["strategies", "learning"], 2, quick=True, driver=True, only=["ps:1,backup=1"])
    )
    runs = [each for each in found if isinstance(each, Run)]
    both = ("allreduce", "ps:1,backup=1")  # ranks left out of a step delay no other rank
    assert [(each.name, each.strategy) for each in runs] == [
        (name, spec) for name in (STAYS, MOVES) for spec in both
    ]
    assert min(each.rate for each in runs) > 0
    assert min(len(each.curve) for each in runs) >= 2
    (learned,) = (each for each in found if isinstance(each, Learned))
    assert learned.strategy == "ps:1,backup=1"
    assert learned.accuracy > 20
    assert learned.mebibytes > 1


def test_hosts_need_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.kits.hosts.os.geteuid", lambda: 1000)
    obstacle.cache_clear()
    try:
        with pytest.raises(SystemExit):
            main(["allreduce", "--hosts", "2"])
    finally:
        obstacle.cache_clear()
    assert mentions(capsys.readouterr().err, "--hosts=2")


@pytest.mark.slow
def test_ranks_on_hosts_of_namespaces() -> None:
    needed(ssh=False)
    with hosts.made(2, "1gbit") as among:
        what = ["allreduce", "strategies"]
        found = list(
            crew.measure(what, 3, quick=True, among=among, rate="1gbit", only=["topk:0.05"])
        )
    cases = [each for each in found if isinstance(each, Case)]
    assert {name for each in cases for name in each.samples} == {OURS, GLOO, GLOO_FLAT, *PARTS}
    runs = [(each.name, each.strategy) for each in found if isinstance(each, Run)]
    assert runs == [("2 hosts, links of 1gbit", spec) for spec in ("allreduce", "topk:0.05")]


@pytest.mark.slow
def test_hosts_end_with_the_benchmark_that_was_killed() -> None:
    needed(ssh=False)
    command = [sys.executable, "-m", "benchmarks", "allreduce", "--quick", "--hosts", "2"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as benchmark:
        assert benchmark.stderr is not None
        assert any("done" in line for line in benchmark.stderr)
        left = psutil.Process(benchmark.pid).children(recursive=True)
        spaces = {os.readlink(f"/proc/{each.pid}/ns/net") for each in left}
        benchmark.kill()
    assert len(spaces) >= 3  # two hosts and what joins them
    assert psutil.wait_procs(left, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("version", "named", "options"),
    [
        ("mpirun (Open MPI) 5.0.8", MPI, True),
        ("HYDRA build details:\n    Version:    4.3.1", MPICH, False),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.16", INTEL, False),
        ("mpirun of somebody else", None, False),
    ],
)
def test_mpirun_of_any_mpi(
    version: str, named: str | None, options: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{version}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(crew.importlib.util, "find_spec", lambda name: name)
    command = crew.mpirun(2)
    assert crew.implementation(version) == named
    assert (command is None) == (named is None)
    assert command is None or (command[0] == str(program) and ("--mca" in command) == options)


def test_contenders_are_prepared_before_all_ranks_line_up() -> None:
    order: list[str] = []
    interleave(
        {"a": lambda: order.append("a")},
        repetitions=1,
        before=lambda: order.append("|"),
        prepare={"a": lambda: order.append("p")},
        after={"a": lambda: order.append("s")},
    )
    assert "".join(order) == "p|as" * 2


@pytest.mark.slow
def test_the_start_is_measured_next_to_torchrun(tmp_path: Path) -> None:
    done = bench("start", "--quick", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert {OURS, TORCHRUN, "import torch"} == found["contenders"].keys()


@pytest.mark.slow
def test_the_start_by_ssh_is_measured_next_to_one_host(tmp_path: Path) -> None:
    needed()
    done = bench("start", "--launcher", "ssh", "--quick", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert {OURS, "on one host", "ssh alone"} == found["contenders"].keys()


@pytest.mark.slow
def test_a_rank_that_fails_is_reported_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(crew.BenchmarkError, match=mentioning("'benchmarks.nonsense'", "module")):
        list(crew.measure(["nonsense"], 2, quick=True))
    assert children() == []


@pytest.mark.slow
def test_without_mpi_ranks_are_plain_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "mpirun", lambda size: None)
    cases = crew.measure(["allreduce"], 3, quick=True)
    first = next(cases)
    assert (first.name, first.samples.keys()) == ("4 KiB", {OURS, GLOO})
    ranks = children()
    assert len(ranks) == 3
    cases.close()
    assert psutil.wait_procs(ranks, timeout=60)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_nothing_is_left_when_the_benchmark_is_ended(
    number: int, code: int, tmp_path: Path
) -> None:
    benchmark = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "allreduce", "step", "--quick"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with benchmark:
        assert benchmark.stderr is not None
        for line in benchmark.stderr:
            if "done" in line:
                break
        ranks = psutil.Process(benchmark.pid).children(recursive=True)
        benchmark.send_signal(number)
        benchmark.stderr.read()
    assert benchmark.returncode == code
    assert ranks != []
    assert psutil.wait_procs(ranks, timeout=60)[1] == []
    assert list(tmp_path.iterdir()) == []


def children() -> list[psutil.Process]:
    """The ranks (and mpirun) that this process has started."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if "benchmarks.worker" in " ".join(each.cmdline())]
