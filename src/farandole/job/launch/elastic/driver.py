"""The driver's run of an elastic job."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from farandole.base.log import logger
from farandole.job.config.doubts import doubts
from farandole.job.elastic.discovery.watch import HostWatch
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch.elastic.places import LocalPlaces
from farandole.job.launch.elastic.watch import ElasticWatch
from farandole.job.launch.job import Job
from farandole.job.launch.limits import check_open_files
from farandole.job.launch.preparation import (
    describe,
    environment,
    output_streams,
    pack,
    results,
    visible_log,
    worker_command,
)
from farandole.job.report import keys
from farandole.net import handshake


def run_elastic(job: Job, plan: ElasticPlan) -> list[Any]:
    """Run the job and return the function's results in rank order of the last membership (none for
    a command). Raises like ``driver.run``.
    """
    check_open_files(plan.options.max_np or job.np, bool(job.display.output_dir))
    with contextlib.ExitStack() as stack:
        stack.enter_context(visible_log())
        for doubt in doubts(job.settings, {**os.environ, **job.env}):
            logger.warning("%s", doubt)
        function = None if job.call is None else pack(job)
        streams = stack.enter_context(output_streams(job))
        places = LocalPlaces()
        secret = handshake.new_secret(tls=job.settings.tls)
        store = places.listen(secret)
        stack.callback(store.close)
        stack.callback(places.close)
        stack.callback(streams.close)
        if function is not None:
            store.set(keys.FUNCTION, function)
            function = None
        store.set(keys.JOB, describe(job, (), elsewhere=places.remote))
        watch = ElasticWatch(job, store, streams, places)
        stack.enter_context(watch)
        hosts = HostWatch(plan.discovery, watch.on_hosts)
        stack.callback(hosts.close)
        env = {**environment(job, store, secret, "local"), **watch.watched_by()}
        watch.run(plan, hosts.start(), worker_command(), env)
        return [] if job.call is None else results(store, watch.final_slots())
