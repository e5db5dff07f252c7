"""PyTorch on two nodes, started by the service and by torch's own launcher."""

from azureml.core import Dataset, Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.core.runconfig import PyTorchConfiguration

ws = Workspace.from_config()
cluster_name = "gpu-cluster"
try:
    compute_target = ComputeTarget(workspace=ws, name=cluster_name)
except ComputeTargetException:
    compute_config = AmlCompute.provisioning_configuration(
        vm_size="Standard_NC6", vm_priority="dedicated", min_nodes=0, max_nodes=4
    )
    compute_target = ComputeTarget.create(ws, cluster_name, compute_config)
    compute_target.wait_for_completion(show_output=True)
print(compute_target.get_status().allocation_state)

datastore = ws.get_default_datastore()
dataset = Dataset.File.upload_directory(
    src_dir="./cifar-10", target=(datastore, "datasets/cifar10"), overwrite=True
)
pytorch_env = Environment.get(ws, name="AzureML-PyTorch-1.6-GPU")
experiment = Experiment(ws, name="pytorch-ddp")

src = ScriptRunConfig(
    source_directory="./source",
    script="train.py",
    arguments=["--data-dir", dataset.as_named_input("cifar").as_mount(), "--epochs", 2],
    compute_target=compute_target,
    environment=pytorch_env,
    distributed_job_config=PyTorchConfiguration(
        communication_backend="Gloo", process_count=2, node_count=2
    ),
)
run = experiment.submit(src)
print(run.id)
run.wait_for_completion(show_output=True)
print("by the service:", run.get_status(), len(run.get_metrics()["loss"]))

launch_cmd = [
    *("python", "-m", "torch.distributed.run", "--nproc_per_node", 2, "--nnodes", 2),
    *("--node_rank", "$NODE_RANK", "--master_addr", "$MASTER_ADDR"),
    *("--master_port", "$MASTER_PORT", "train.py", "--epochs", 2, "--data-dir"),
]
src = ScriptRunConfig(
    source_directory="./source",
    command=[*launch_cmd, dataset.as_mount()],
    compute_target=compute_target,
    environment=pytorch_env,
    distributed_job_config=PyTorchConfiguration(node_count=2),
)
run = experiment.submit(src)
run.wait_for_completion()
print("by torch's launcher:", run.get_status())
run.download_file("outputs/model.pt", "downloaded.pt")
for name in sorted(run.get_file_names()):
    print(name)
