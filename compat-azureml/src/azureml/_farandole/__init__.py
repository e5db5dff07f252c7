"""The translation between Azure ML's names and Farandole's jobs. Programs do not import it.

Other modules connect to it as follows:

- A config that ``Experiment.submit`` accepts has the method ``_submit(experiment, tags, parent)``,
  which returns a run.
- An argument of a script that represents data has the method ``_run_input()`` or
  ``_run_output(run_id)``; see ``azureml._farandole.arguments``.
- ``Workspace._storage(kind)`` is the folder for the workspace's objects of a kind.
- A subclass of ``Run`` is registered by its type in ``azureml._farandole.run_types``.
"""
