"""A notebook's cells in order: workspace, data, environment, cluster, run."""

import os
import sys

from azureml.core import Dataset, Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.core.runconfig import MpiConfiguration
from azureml.widgets import RunDetails

url = sys.argv[1]

ws = Workspace(
    subscription_id="12345678-0000-0000-0000-000000000000",
    resource_group="imaging",
    workspace_name="chest-xray",
)
ws.write_config()
ws = Workspace.from_config()
print(ws.name, ws.resource_group, ws.location, ws.subscription_id, sep="\n")

try:
    dataset = Dataset.get_by_name(ws, name="effusion")
except Exception:
    dataset = Dataset.File.from_files(path=[url])
    dataset = dataset.register(
        workspace=ws, name="effusion", description="chest X-rays", create_new_version=True
    )
print(dataset.to_path())
os.makedirs("data", exist_ok=True)
print(dataset.download(target_path="data/", overwrite=True))

try:
    compute_target = ComputeTarget(workspace=ws, name="gpus")
    print("Found existing compute target.")
except ComputeTargetException:
    print("Creating a new compute target...")
    config = AmlCompute.provisioning_configuration(vm_size="Standard_NC12", max_nodes=4)
    compute_target = ComputeTarget.create(ws, "gpus", config)
    compute_target.wait_for_completion(show_output=True, min_node_count=None, timeout_in_minutes=20)
print(compute_target.get_status().serialize())

ws = Workspace.from_config()
experiment = Experiment(ws, name="tf-distributed-effusion-detector")
env = Environment.from_conda_specification(
    name="imageclassification", file_path="conda_dependencies.yml"
)
env.docker.enabled = True
env.docker.base_image = "mcr.microsoft.com/azureml/openmpi3.1.2-cuda10.1-cudnn7-ubuntu18.04"
src = ScriptRunConfig(
    source_directory="./project",
    script="train.py",
    arguments=["--data-folder", dataset.as_mount(), "--epochs", 20],
    compute_target=ComputeTarget(workspace=ws, name="gpus"),
    environment=env,
    distributed_job_config=MpiConfiguration(node_count=4),
)
run = experiment.submit(src)
print(run)
RunDetails(run).show()
run.wait_for_completion(show_output=True)
details = run.get_details()
print("status:", details["status"])
print("nodes:", details["runDefinition"]["nodeCount"], details["runDefinition"]["communicator"])
print("inputs:", details["inputDatasets"][0]["consumptionDetails"]["mechanism"])
print("files:", sorted(name for name in run.get_file_names() if name.startswith("outputs/")))
print("losses:", len(run.get_metrics()["loss"]))
model = run.register_model(model_name="effusion", model_path="outputs/effusion.pt")
print(model.name, model.version, model.run_id == run.id)
