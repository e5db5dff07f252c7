"""The submission of a configuration as a run of Farandole."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from azureml._farandole import environments
from azureml._farandole.arguments import Arguments, translated
from azureml._farandole.definition import FILE, definition_of
from azureml._farandole.errors import raised_as
from azureml._farandole.layout import Layout, layout_of
from azureml._farandole.texts import notice
from azureml.exceptions import SnapshotException, UserErrorException
from farandole.base.host import cores
from farandole.job.runs.home import RunsHome
from farandole.jobs import snapshot
from farandole.jobs import submission as jobs
from farandole.jobs.experiment import ScriptRun

if TYPE_CHECKING:
    from azureml.core.experiment import Experiment
    from azureml.core.run import Run
    from azureml.core.script_run_config import ScriptRunConfig

SCRIPT_RUN = "azureml.scriptrun"


class Request(NamedTuple):
    """The translation of a configuration: a request to Farandole, and facts for ``get_details``."""

    request: ScriptRun
    facts: dict[str, Any]


def submit(
    config: ScriptRunConfig, experiment: Experiment, tags: Mapping[str, str], parent: str
) -> Run:
    """Submit the run of a script, and return the run.

    Raises UserErrorException or SnapshotException, before anything is created, for a request that
    cannot succeed.
    """
    home = RunsHome()
    run_id = home.new_id(experiment.name)
    made = request_of(config, experiment, run_id, tags)
    with raised_as(UserErrorException):
        submission = made.request.submission(experiment.name)
    return send(submission, experiment, made.facts, run_id=run_id, parent=parent)


def send(
    submission: jobs.Submission,
    experiment: Experiment,
    facts: Mapping[str, Any],
    *,
    run_id: str = "",
    parent: str = "",
) -> Run:
    """Submit a run of Farandole with the facts for ``get_details()``, and return the run.

    Raises SnapshotException if the source is too large, and UserErrorException for a request that
    cannot succeed.
    """
    from azureml._farandole.run_types import run_of

    home = RunsHome()
    if submission.source:
        with raised_as(SnapshotException):
            snapshot.select(submission.source, home)
    if parent:
        submission = submission._replace(spec=dataclasses.replace(submission.spec, parent=parent))
    submission = submission._replace(files={**submission.files, FILE: facts}, run_id=run_id)
    with raised_as(UserErrorException):
        folder = jobs.submit(submission, home)
    return run_of(experiment, folder)


def request_of(
    config: ScriptRunConfig, experiment: Experiment, run_id: str, tags: Mapping[str, str]
) -> Request:
    """Return the translation of a configuration, and print notices about it.

    Raises UserErrorException for a configuration that cannot run.
    """
    run_config = config.run_config
    layout = layout_of(run_config)
    if config.resume_from is not None:
        notice("resume_from has no effect: pass the outputs of the earlier run as a dataset")
    _check_target(run_config.target)
    further = [*run_config.data.values(), *run_config.output_data.values()]
    further = [
        each for each in further if hasattr(each, "_run_input") or hasattr(each, "_run_output")
    ]
    further += [each for each in run_config.data_references.values() if hasattr(each, "_run_input")]
    given, is_text = _words(config)
    arguments = translated(given, further, run_id)
    elsewhere = _kind(run_config.target) == "ssh"
    if arguments.outputs and elsewhere:
        raise UserErrorException(
            f"the output {next(iter(arguments.outputs))!r} is a folder of this host, and the target"
            f" {run_config.target!r} runs on other hosts; let the script write to ./outputs, whose"
            " files are copied back"
        )
    environment = environments.spec_of(run_config.environment)
    environments.report(run_config.environment, environment)
    _report_few_cores(layout, run_config.target)
    request = ScriptRun(
        os.fspath(config.source_directory or "."),
        config.script or "",
        [] if is_text else arguments.words,
        " ".join(arguments.words) if is_text else (),
        nodes=layout.nodes,
        ranks_per_node=layout.ranks_per_node,
        tf_workers=layout.tf_workers,
        target=run_config.target,
        environment=environment,
        inputs=arguments.input_specs(elsewhere=elsewhere),
        variables={
            **run_config.environment.environment_variables,
            **run_config.environment_variables,
            **arguments.variables(),
            **workspace_variables(experiment),
        },
        tags=tags,
        time_limit=float(run_config.max_run_duration_seconds or 0),
        priority=run_config.priority or 0,
    )
    return Request(request, _facts(config, arguments, layout))


def workspace_variables(experiment: Experiment) -> dict[str, str]:
    """Return the environment variables that name the workspace and the experiment."""
    workspace = experiment.workspace
    return {
        "AZUREML_ARM_SUBSCRIPTION": workspace.subscription_id,
        "AZUREML_ARM_RESOURCEGROUP": workspace.resource_group,
        "AZUREML_ARM_WORKSPACE_NAME": workspace.name,
        "AZUREML_ARM_PROJECT_NAME": experiment.name,
        "AZUREML_EXPERIMENT_ID": experiment.id,
        "AZUREML_EXPERIMENT_SCOPE": (
            f"{workspace.get_details()['id']}/experiments/{experiment.name}"
        ),
    }


def _words(config: ScriptRunConfig) -> tuple[list[Any], bool]:
    """Return the words of the arguments or of the command, and whether a shell runs them."""
    if config.script:
        return config.arguments, False
    command = config.command
    words = [command] if isinstance(command, str) else [*(command or ())]
    return [*words, *config.arguments], True


def _facts(config: ScriptRunConfig, arguments: Arguments, layout: Layout) -> dict[str, Any]:
    return {
        "type": SCRIPT_RUN,
        "runDefinition": definition_of(config, arguments, layout),
        "inputDatasets": [
            {
                "dataset": {"id": each.dataset.get("id")},
                "consumptionDetails": {
                    "type": "RunInput",
                    "inputName": name,
                    "mechanism": each.mode.capitalize(),
                },
            }
            for name, each in arguments.inputs.items()
        ],
        "inputs": {name: dict(each.dataset) for name, each in arguments.inputs.items()},
        "modes": {name: each.mode for name, each in arguments.inputs.items()},
        "outputDatasets": [dict(each.details) for each in arguments.outputs.values()],
        "outputs": {name: each.path for name, each in arguments.outputs.items()},
    }


def _check_target(name: str) -> None:
    from azureml.core.compute_target import exists

    if not exists(RunsHome(), name):
        raise UserErrorException(
            f"ComputeTargetNotFound: Compute Target with name {name} not found in provided"
            " workspace; create it with ComputeTarget.create, or with farandole targets add"
        )


def _report_few_cores(layout: Layout, target: str) -> None:
    if layout.ranks > cores() and _kind(target) == "local":
        notice(
            f"{layout.ranks} ranks share the {cores()} cores of this host: no other run shares it,"
            " and the run is slower than on as many machines"
        )


def _kind(target: str) -> str:
    from farandole.jobs.targets import target_spec

    return target_spec(RunsHome(), target).kind
