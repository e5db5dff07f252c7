"""The command ``horovodrun``: Horovod's flags, Farandole's launching."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from farandole.compat import HOROVOD, check_alone, config_file, elastic, flags, horovod_message
from farandole.errors import JobFailedError, RendezvousError, SettingsError
from farandole.job.config import Settings
from farandole.job.config.fields import parse, settings_of
from farandole.job.launch import driver
from farandole.job.launch.config_file import naming
from farandole.job.launch.display import Display
from farandole.job.launch.elastic_plan import plan_of
from farandole.job.launch.job import Job, settings_for
from farandole.job.launch.launchers import mpi
from farandole.job.launch.plan import check_np, read_hostfile

_NO_LSF = (
    "Horovod did not detect an LSF job.  The jsrun launcher can only be used in that environment. "
    "Please, pick a different launcher for other environments."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: the first failed rank's, 128 + a signal,
    or 2.
    """
    try:
        check_alone("horovod")
        options = parse_args(argv)
        if options.version:
            return _say(HOROVOD)
        if options.check_build:
            return _say(check_build())
        with naming(options.from_file.values()):
            driver.run(job(options))
        return 0
    except (SettingsError, NotImplementedError, ImportError) as error:
        sys.stderr.write(f"horovodrun: {error}\n")
        return 2
    except JobFailedError as error:
        # The reader of the output is gone, as with `horovodrun ... | head`.
        if error.exit_code == 128 + signal.SIGPIPE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        else:
            sys.stderr.write(f"horovodrun: {error}{horovod_message(error)}\n")
        return error.exit_code
    except RendezvousError as error:  # not all hosts reported in time
        sys.stderr.write(f"horovodrun: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the flags, with missing ones taken from the configuration file.

    Raises SettingsError for impossible values.
    """
    options = flags.parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    options.from_file, path = {}, options.config_file
    lines = config_file.apply(options, path, config_file.read(path)) if path else []
    with naming(options.from_file.values()):
        flags.check(options)
    hide = options.log_without_timestamp
    options.log_with_timestamp = None if hide is None else not hide  # the option's name in Horovod
    for line in (*lines, *flags.notes(options)):
        sys.stderr.write(f"horovodrun: {line}\n")
    return options


def job(options: argparse.Namespace) -> Job:
    """Return the job for the flags."""
    if options.use_jsrun:
        where = "" if "LSB_JOBID" in os.environ else f"{_NO_LSF} "
        cure = (
            "Farandole does not start ranks with jsrun: leave out --jsrun, and name the"
            " hosts with -H"
        )
        raise SettingsError(f"--jsrun: {where}{cure}")
    if options.num_proc is None:
        raise SettingsError(f"-np (the number of processes) is missing. Usage: {flags.USAGE}")
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise SettingsError(f"the command to run is missing. Usage: {flags.USAGE}")
    env = flags.environment(options)
    settings = settings_for({}, {**_overrides(env), **_remote(options), **_elastic(options)})
    hosts = read_hostfile(options.hostfile) if options.hostfile else options.hosts
    np = check_np(options.num_proc)
    return Job(
        np=np,
        command=command,
        settings=settings,
        env=env,
        hosts=hosts,
        launcher=_launcher(bool(options.use_mpi)),
        display=Display(
            output_dir=options.output_filename,
            prefix_timestamp=bool(options.prefix_output_with_timestamp),
            verbose=bool(options.verbose),
        ),
        elastic=plan_of(np, settings, hosts),
    )


def _launcher(use_mpi: bool) -> str:
    """Return the launcher's name. ``--mpi`` in a script has no effect if there is no mpirun."""
    if use_mpi and mpi.found() is None:
        sys.stderr.write(
            "horovodrun: --mpi has no effect: mpirun is not on the PATH; ranks are started"
            " directly\n"
        )
        return "auto"
    return "mpi" if use_mpi else "auto"


def _overrides(env: dict[str, str]) -> dict[str, Any]:
    """Return the settings among the variables, by name; flags take precedence over the
    environment.
    """
    known = {setting.horovod: setting for setting in settings_of(Settings) if setting.horovod}
    return {
        known[name].name: parse(known[name], name, text)
        for name, text in env.items()
        if name in known
    }


def _elastic(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of an elastic job; none for a job of a fixed size."""
    if not flags.is_elastic(options):
        return {}
    return elastic.settings(
        options.min_num_proc,
        options.max_num_proc,
        options.host_discovery_script,
        options.slots,
        options.elastic_timeout,
        options.reset_limit,
        options.cooldown_range,
    )


def _remote(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings for other hosts from the flags that were given."""
    given = {
        "ssh_port": options.ssh_port,
        "ssh_identity_file": options.ssh_identity_file,
        "network_interfaces": options.nics,
    }
    return {name: value for name, value in given.items() if value is not None}


def check_build() -> str:
    """Return the table of ``horovodrun --check-build``."""
    from farandole.compat import util

    frameworks = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": "mxnet"}
    operations = {"NCCL": util.nccl_built, "DDL": util.ddl_built, "CCL": util.ccl_built}
    sections: dict[str, dict[str, bool]] = {
        "Available Frameworks": {
            name: util.extension_available(module) for name, module in frameworks.items()
        },
        "Available Controllers": {"MPI": util.mpi_built(), "Gloo": util.gloo_built()},
        "Available Tensor Operations": {
            **{name: bool(built()) for name, built in operations.items()},
            "MPI": util.mpi_built(),
            "Gloo": util.gloo_built(),
        },
    }
    lines = [f"Horovod v{HOROVOD}:"]
    for title, rows in sections.items():
        lines += [
            "",
            f"{title}:",
            *(f"    [{'X' if there else ' '}] {name}" for name, there in rows.items()),
        ]
    from farandole import __version__

    lines += [
        "",
        f"(Farandole {__version__}: nothing is compiled; Gloo represents its own transports",
    ]
    lines[-1] += ")" if find_spec("torch") else "; torch is not installed)"
    return "\n".join(lines)


def _say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


def run_commandline() -> None:
    """Run the command line and exit, as ``horovod.runner.launch.run_commandline`` does."""
    sys.exit(main())


if __name__ == "__main__":
    run_commandline()
