"""The driver's side of an elastic job.

::

    job.launch.elastic  driver: starts and watches processes one by one
          |   events: hosts listed, process ended, process waits
          |   decisions: start, stop, publish, notify, give up
          v
    job.elastic         coordinator (pure): members, hosts left out, limits
          |
          |   store: "membership/N"  <---- "ready/<process>": last membership, commits
          v
    job.context         init(): placement in membership N, wires as in any job
          v
    core.api.elastic    run(): restore, form the job again, agree on one synchronization, continue

``job.launch.watch`` handles output, ends and signals. Ranks that stay keep their process,
optimizers and compiled functions. Whatever must be equal on them and on new ranks, such as the
names of optimizers (``context.object_names``), does not depend on the session.
"""
