"""The command line of ``farandole bench``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.samples import Found
from benchmarks.steps import FRAMEWORKS
from farandole.cli.machine import visible_gpus
from farandole.job.launch.arguments import check_values

ALL = ("allreduce", "step", "start")  # the default benchmarks
ALONE = ("strategies", "learning")  # each is measured alone
MODELS = ("plain", "batchnorm", "layernorm")  # keys of problems.NORMS
MNIST = "t10k-images-idx3-ubyte.gz"
ON_SPARK = ("inference", "tuning")
MORE = ("observers", "c10d", "gpu", *ALONE, "data", *ON_SPARK, "jobs")
LINK = 2, "100mbit"  # hosts, and the speed of their links, for strategies over a slow network


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="farandole bench",
        description="Measure Farandole and other installed libraries, alternating within one run.",
        epilog="example: farandole bench allreduce -np 2 --quick",
    )
    found.add_argument(
        "what",
        nargs="*",
        metavar=(
            "allreduce|step|start|observers|c10d|gpu|data|inference|tuning|jobs|strategies|learning"
        ),
        help="benchmarks to run (default: the first three)",
    )
    found.add_argument(
        "-np",
        "--num-proc",
        "--np",
        dest="size",
        type=int,
        help="ranks (default: 2; strategies and learning: 4; with --hosts: one on each)",
    )
    found.add_argument(
        "--hosts",
        type=int,
        default=1,
        metavar="N",
        help=(
            "place the ranks on N hosts, network namespaces (needs root); for allreduce and"
            " strategies"
        ),
    )
    found.add_argument(
        "--rate",
        default="",
        help=(
            "speed of each host's link, in tc's notation (1gbit; default: no limit; strategies:"
            " 100mbit)"
        ),
    )
    found.add_argument(
        "--tls", action="store_true", help="encrypt traffic between hosts; with --hosts only"
    )
    found.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        default="torch",
        help="framework of the training step (default: torch); step only",
    )
    found.add_argument(
        "--launcher",
        choices=("local", "spark", "ssh"),
        default="local",
        help="launcher of the jobs (default: local); start only",
    )
    found.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SPEC",
        help=(
            "strategies and learning: only this strategy, codec, or both, as local_sgd:8+int8;"
            " repeatable"
        ),
    )
    found.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="learning: folder of MNIST's test images (default: digits)",
    )
    found.add_argument(
        "--model",
        choices=MODELS,
        default="plain",
        help="learning: normalization of the network (default: plain, none)",
    )
    found.add_argument(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="strategies and learning: number of seeds to train with (default: 3)",
    )
    found.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every sample and facts about the machine to this file",
    )
    found.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw a chart (needs matplotlib)"
    )
    found.add_argument(
        "--quick", action="store_true", help="few repetitions and small sizes, for a quick trial"
    )
    return found


def _writable(path: Path) -> bool:
    try:
        return not path.is_dir() and os.access(path.resolve().parent, os.W_OK)
    except OSError:  # its name is too long
        return False


def checked(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the validated arguments: a benchmark must not run for minutes and then fail to write
    its file.
    """
    found = parser()
    chosen = found.parse_args(arguments)
    check_values(found, chosen)
    known = (*ALL, *MORE)
    unknown = [benchmark for benchmark in chosen.what if benchmark not in known]
    if unknown:
        found.error(f"unknown benchmark {unknown[0]!r}; choose from {', '.join(known)}")
    alone = [benchmark for benchmark in chosen.what if benchmark in ALONE]
    if alone and chosen.what != alone[:1]:
        found.error(f"{alone[0]} must be measured alone: farandole bench {alone[0]}")
    if chosen.size is None:
        chosen.size = 4 if alone and chosen.hosts == 1 else max(2, chosen.hosts)
    if chosen.size < 2:
        found.error(f"--np={chosen.size} must be at least 2")
    for flag in ("json", "plot"):
        path: Path | None = getattr(chosen, flag)
        if path is not None and not _writable(path):
            found.error(
                f"--{flag}={path} cannot be written: name a file in an existing, writable folder"
            )
    if chosen.plot is not None and chosen.plot.suffix != ".png":
        found.error(f"--plot={chosen.plot} must end in .png")
    chosen.what = [benchmark for benchmark in known if benchmark in chosen.what] or list(
        ALL if chosen.framework == "torch" else ("step",)
    )
    odd = [
        benchmark
        for benchmark in chosen.what
        if chosen.framework != "torch" and benchmark != "step"
    ]
    if odd:
        found.error(
            f"--framework={chosen.framework} applies to step; {odd[0]} is measured with torch"
        )
    if chosen.launcher != "local" and chosen.what != ["start"]:
        found.error(
            f"--launcher={chosen.launcher} applies to start: farandole bench start --launcher"
            f" {chosen.launcher}"
        )
    if "gpu" in chosen.what and not visible_gpus(os.environ):
        found.error("gpu: this process sees no CUDA GPU")
    check_hosts(found, chosen)
    check_specs(found, chosen)
    # TorchDistributor needs the others
    spark = ["pyspark", "pandas", "pyarrow"] if chosen.launcher == "spark" else []
    digits = ["sklearn"] if alone and not chosen.data else []
    data = ["pyarrow"] if {"data", *ON_SPARK} & set(chosen.what) else []
    spark += ["pyspark", "pandas"] if {*ON_SPARK} & set(chosen.what) else []
    packages = [*FRAMEWORKS[chosen.framework].packages, *spark, *digits, *data]
    for package in (*packages, *["matplotlib"] * (chosen.plot is not None)):
        if find_spec(package) is None:
            extra = (
                "bench"
                if package in ("torch", "matplotlib")
                else "data"
                if package in data
                else chosen.framework
            )
            wanted = (
                package if package in spark else f".[{'demo' if digits == [package] else extra}]"
            )
            found.error(f"{package} is not installed; pip install '{wanted}'")
    return chosen


def check_hosts(found: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    from benchmarks import hosts

    if chosen.launcher == "ssh" and (why := hosts.obstacle(ssh=True)):
        found.error(f"--launcher=ssh: {why}")
    if chosen.hosts == 1 and not (chosen.rate or chosen.tls):
        return
    if chosen.hosts < 2:
        found.error(
            f"--hosts={chosen.hosts} must be at least 2 (--rate and --tls apply to links between"
            " hosts)"
        )
    if chosen.size < chosen.hosts:
        found.error(f"--np={chosen.size} leaves some of the {chosen.hosts} hosts without a rank")
    if chosen.what not in (["allreduce"], ["strategies"]) or chosen.framework != "torch":
        found.error("--hosts applies to transports: farandole bench allreduce --hosts 2")
    why = hosts.obstacle()
    if why:
        found.error(f"--hosts={chosen.hosts}: {why}")


def check_specs(found: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    alone = chosen.what[0] in ALONE
    if chosen.only and not alone:
        found.error(
            "--only applies to strategies and learning: farandole bench strategies --only ps_async"
        )
    if chosen.data is not None and (
        chosen.what != ["learning"] or not (chosen.data / MNIST).is_file()
    ):
        found.error(
            f"--data={chosen.data} applies to learning, and must be a folder that contains"
            f" MNIST's {MNIST}"
        )
    if chosen.model != "plain" and chosen.what != ["learning"]:
        found.error(
            f"--model={chosen.model} applies to learning: farandole bench learning --model"
            f" {chosen.model}"
        )
    if chosen.seeds < 1 or (chosen.seeds != 3 and not alone):
        found.error(
            f"--seeds={chosen.seeds} applies to {' and '.join(ALONE)}, and must be at least 1"
        )
    if chosen.plot is not None and chosen.what == ["learning"]:
        found.error("--plot needs strategies: farandole bench strategies --plot FILE.png")
    if chosen.only:
        from benchmarks.samples import parts
        from farandole.errors import SettingsError
        from farandole.strategies.codecs import codec
        from farandole.strategies.specs import strategy_of
    for spec in chosen.only:
        try:
            strategy_of(parts(spec)[0])
            codec(parts(spec)[1])
        except (ValueError, SettingsError) as error:
            found.error(f"--only={spec}: {error}")


def run(chosen: argparse.Namespace) -> Iterator[Found | str]:
    from benchmarks import crew, start, start_spark, start_ssh

    if chosen.what[0] in ALONE:
        yield from trained(chosen)
        return
    if chosen.hosts > 1:
        from benchmarks import hosts

        with hosts.made(chosen.hosts, chosen.rate) as among:
            yield from crew.measure(
                chosen.what, chosen.size, chosen.quick, among=among, tls=chosen.tls
            )
        return
    if "c10d" in chosen.what:
        from benchmarks import c10d

        yield from c10d.cases(chosen.size, chosen.quick)
    inside = [
        benchmark
        for benchmark in chosen.what
        if benchmark not in ("start", "c10d", "data", "jobs", *ON_SPARK)
    ]
    if inside:
        if chosen.framework == "torch" and crew.mpirun(chosen.size) is None:
            say("mpi4py or mpirun is not installed: MPI is left out (pip install '.[bench]')")
        yield from crew.measure(inside, chosen.size, chosen.quick, chosen.framework)
    if "data" in chosen.what:
        from benchmarks import data

        yield from data.cases(chosen.quick)
    if "inference" in chosen.what:
        from benchmarks import inference

        yield from inference.cases(chosen.quick)
    if "tuning" in chosen.what:
        from benchmarks import tuning

        yield from tuning.cases(chosen.quick)
    if "jobs" in chosen.what:
        from benchmarks import jobs

        yield from jobs.cases(chosen.quick)
    if "start" in chosen.what:
        by = {"local": start, "spark": start_spark, "ssh": start_ssh}[chosen.launcher]
        yield from by.cases(chosen.size, chosen.quick)


def trained(chosen: argparse.Namespace) -> Iterator[Found | str]:
    """Measure strategies with a slow rank and over a slow link, or how well they learn."""
    from benchmarks import crew, hosts

    facts = {
        "only": chosen.only,
        "data": str(chosen.data or ""),
        "seeds": chosen.seeds,
        "model": chosen.model,
    }
    if chosen.hosts == 1:
        yield from crew.measure(chosen.what, chosen.size, chosen.quick, driver=True, **facts)
    if chosen.what == ["learning"]:
        return
    if chosen.hosts == 1 and (why := hosts.obstacle()):
        say(f"slow links are left out: {why}")
        return
    number, size = (LINK[0], LINK[0]) if chosen.hosts == 1 else (chosen.hosts, chosen.size)
    rate = chosen.rate or LINK[1]
    say(f"making {number} hosts")
    with hosts.made(number, rate) as among:
        yield from crew.measure(
            chosen.what, size, chosen.quick, among=among, tls=chosen.tls, rate=rate, **facts
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    chosen = checked(arguments)
    from benchmarks import cores, report
    from benchmarks.crew import BenchmarkError

    # runs every ``finally``
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cases: list[Found] = []
    begin = time.monotonic()
    where = f" on {chosen.hosts} hosts" if chosen.hosts > 1 else ""
    say(
        f"measuring {', '.join(chosen.what)} with {chosen.size} ranks{where}; keep the machine"
        " quiet"
    )
    load, count = os.getloadavg()[0], os.cpu_count() or 1
    if load > count / 2:
        say(
            f"other programs are running (load {load:.1f} on {count} cores), which distorts the"
            " results"
        )
    try:
        before = cores.between()
        # Lines, no animation: a spinner would compete for the measured cores.
        for case in run(chosen):
            if not isinstance(case, str):
                cases.append(case)
            line = case if isinstance(case, str) else f"{case.title} done"
            say(f"{time.monotonic() - begin:5.0f} s  {line}")
        after = cores.between()
    except BenchmarkError as error:
        say(f"farandole bench: {error}")
        return 1
    except KeyboardInterrupt:
        say("farandole bench: interrupted")
        return 128 + signal.SIGINT
    report.show(cases)
    if line := cores.comparison(before, after):
        say(line)
    if chosen.json:
        report.write_json(
            chosen.json,
            report.document(
                cases, chosen.size, arguments, chosen.framework, between=(before, after)
            ),
        )
    if chosen.plot:
        from benchmarks import plot

        plot.draw(chosen.plot, cases, chosen.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
