"""The driver's run of an elastic job."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from farandole.errors import SettingsError
from farandole.job.elastic.discovery.watch import HostWatch
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.elastic.places import FindingPlaces, LocalPlaces, Places
from farandole.job.launch.elastic.watch import ElasticWatch
from farandole.job.launch.job import Job
from farandole.job.launch.limits import check_open_files
from farandole.job.launch.preparation import (
    describe,
    environment,
    output_streams,
    prepared,
    results,
    served,
    title,
    worker_command,
)
from farandole.job.plugins import registry
from farandole.job.report import keys
from farandole.net import handshake
from farandole.net.interfaces import is_here


def run_elastic(job: Job, plan: ElasticPlan) -> list[Any]:
    """Run ``job`` with the bounds and hosts of ``plan``. Return the function's results in the rank
    order of the last membership; an empty list for a command.

    Raises the errors of ``driver.run``.
    """
    check_open_files(plan.options.max_np or job.np, bool(job.display.output_dir))
    with contextlib.ExitStack() as stack:
        function = stack.enter_context(prepared(job))
        streams = stack.enter_context(output_streams(job))
        listed: deque[dict[str, int]] = deque()
        cluster = cluster_of(job, plan)
        if cluster is not None:
            plan = plan._replace(discovery=cluster.discovery())
        hosts = HostWatch(plan.discovery, lambda found, _: listed.append(found))
        stack.callback(hosts.close)
        first = {} if cluster is not None else hosts.start()
        places = cluster or places_of(job, first)
        secret = handshake.new_secret(tls=job.settings.tls)
        store = places.listen(secret)
        stack.enter_context(served(store, streams, places.close))
        if function is not None:
            store.set(keys.FUNCTION, function)
            function = None
        store.set(keys.JOB, describe(job, (), elsewhere=places.remote))
        if cluster is not None:
            cluster.await_slots()
            first = hosts.start()
        watch = ElasticWatch(job, store, streams, places, listed)
        stack.enter_context(watch)
        env = {**environment(job, store, secret, places.name), **watch.watched_by()}
        watch.run(plan, first, worker_command(), env)
        return [] if job.call is None else results(store, watch.final_slots())


def cluster_of(job: Job, plan: ElasticPlan) -> FindingPlaces | None:
    """Return the places of a cluster that finds its hosts itself; None for all other launchers.

    Raises SettingsError if the cluster has no place for the job.
    """
    launcher = job.launcher
    name = launcher if isinstance(launcher, str) else launcher.name
    if name not in registry.names("places"):
        return None
    if isinstance(launcher, str):
        launcher = registry.make("launcher", launcher)
    request = JobRequest(plan.options.np, title(job), job.hosts, settings=job.settings)
    find = registry.load("places", name)
    found: FindingPlaces = find(launcher, plan.options, request)
    if not job.display.quiet:
        job.display.note(found.describe())
    return found


def places_of(job: Job, hosts: Iterable[str]) -> Places:
    """Return the places where the processes of ``job`` are started: this machine, or hosts reached
    by ssh if one of ``hosts`` is another machine or if the job's launcher is ssh.

    Raises SettingsError for any other launcher.
    """
    launcher = job.launcher if isinstance(job.launcher, str) else job.launcher.name
    if launcher not in ("auto", "local", "ssh"):
        raise SettingsError(
            f"an elastic job cannot use the launcher {launcher!r}. Use --launcher local, ssh or"
            f" {', '.join(registry.names('places'))}, or a job of a fixed size"
        )
    elsewhere = not all(is_here(host.rpartition("@")[2]) for host in hosts)
    if launcher == "ssh" or elsewhere:
        # Imported here because a job on this machine does not need it.
        from farandole.job.launch.elastic.agents import SshPlaces

        return SshPlaces(job.settings)
    return LocalPlaces()
