"""Records with every method of a run; it runs by itself and as a submitted run."""

import os
import sys

from azureml.core import Run
from azureml.core.run import _OfflineRun

run = Run.get_context()
print("offline:", isinstance(run, _OfflineRun))
run.log("accuracy", 0.98)
for step in range(3):
    run.log("loss", 1.0 / (step + 1), description="of training", step=step)
run.log_list("thresholds", [0.1, 0.5, 0.9])
run.log_row("confusion", actual=1, predicted=0)
run.log_row("confusion", actual=1, predicted=1)
run.log_table("curve", {"x": [1, 2], "y": [0.5, 0.7]})
run.log_confusion_matrix(
    "matrix",
    {
        "schema_type": "confusion_matrix",
        "schema_version": "1.0.0",
        "data": {"class_labels": ["a", "b"], "matrix": [[1, 0], [0, 1]]},
    },
)
run.log_accuracy_table(
    "roc",
    {
        "schema_type": "accuracy_table",
        "schema_version": "1.0.1",
        "data": {"probability_tables": [], "percentile_tables": [], "class_labels": []},
    },
)
run.log_residuals(
    "residuals", {"schema_type": "residuals", "schema_version": "1.0.0", "data": {"bin_edges": [0]}}
)
run.log_predictions(
    "predictions", {"schema_type": "predictions", "schema_version": "1.0.0", "data": {}}
)
with open("picture.png", "wb") as file:
    file.write(b"\x89PNG\r\n\x1a\n")
run.log_image("picture", path="picture.png")
run.tag("purpose", "test")
os.makedirs("outputs", exist_ok=True)
with open("outputs/model.txt", "w") as file:
    file.write("weights")
with open("notes.txt", "w") as file:
    file.write("notes")
run.upload_file("notes/notes.txt", "notes.txt")
run.flush()
print("rate:", sys.argv[sys.argv.index("--rate") + 1])
run.complete()
