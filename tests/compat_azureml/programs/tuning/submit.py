"""A sweep over two hyperparameters, with a policy."""

import json

from azureml.core import Dataset, Experiment, ScriptRunConfig, Workspace
from azureml.train.hyperdrive import (
    BanditPolicy,
    HyperDriveConfig,
    PrimaryMetricGoal,
    RandomParameterSampling,
    choice,
    loguniform,
)
from azureml.widgets import RunDetails

ws = Workspace.from_config()
experiment = Experiment(ws, "tuning")
rows = Dataset.File.from_files("source/train.py").as_named_input("rows").as_mount()
param_sampling = RandomParameterSampling(
    {"--lr": loguniform(-6, -1), "--batch-size": choice(32, 64)}
)
config = HyperDriveConfig(
    run_config=ScriptRunConfig("./source", "train.py", arguments=["--epochs", 3, "--data", rows]),
    hyperparameter_sampling=param_sampling,
    policy=BanditPolicy(slack_factor=0.1, evaluation_interval=1, delay_evaluation=5),
    primary_metric_name="accuracy",
    primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
    max_total_runs=4,
    max_concurrent_runs=2,
)
run = experiment.submit(config)
RunDetails(run).show()
run.wait_for_completion(show_output=True)
assert run.get_status() == "Completed"
print(run.type, run.get_details()["runDefinition"]["script"])

best = run.get_best_run_by_primary_metric()
ordered = run.get_children_sorted_by_primary_metric()
print("children:", len(list(run.get_children())), [each["status"] for each in ordered])
print("sorted:", ordered == sorted(ordered, key=lambda each: -each["best_primary_metric"]))
print("best is first:", best.id == ordered[0]["run_id"])
values = json.loads(run.get_hyperparameters()[best.id])
arguments = best.get_details()["runDefinition"]["arguments"]
print("input:", best.input_datasets["rows"].to_path())
print("arguments:", arguments[:4], float(arguments[arguments.index("--lr") + 1]) == values["--lr"])
metrics = best.get_metrics()
print("metrics:", sorted(metrics), max(metrics["accuracy"]) == ordered[0]["best_primary_metric"])
print("of all:", sorted(run.get_metrics()) == sorted(each["run_id"] for each in ordered))
