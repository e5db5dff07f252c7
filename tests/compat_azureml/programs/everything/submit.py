"""Submits the program that also runs by itself, and reads what it recorded."""

from azureml.core import Experiment, ScriptRunConfig, Workspace

ws = Workspace.from_config()
experiment = Experiment(ws, "everything")
run = experiment.submit(
    ScriptRunConfig(source_directory=".", script="train.py", arguments=["--rate", 0.1]),
    tags={"kind": "all"},
)
run.wait_for_completion()
metrics = run.get_metrics()
print("accuracy", metrics["accuracy"])
print("loss", [round(each, 3) for each in metrics["loss"]])
print("thresholds", metrics["thresholds"])
print("confusion", metrics["confusion"])
print("curve", metrics["curve"])
print("names", sorted(metrics))
print("tags", dict(sorted(run.get_tags().items())))
print("files", sorted(n for n in run.get_file_names() if not n.startswith(("logs", "user_logs"))))
run.download_file("outputs/model.txt", "copy.txt")
with open("copy.txt") as file:
    print(file.read())
