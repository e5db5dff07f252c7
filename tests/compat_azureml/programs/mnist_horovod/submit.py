# description: train a TensorFlow model on MNIST, distributed with Horovod

from pathlib import Path

from azureml.core import Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import MpiConfiguration

ws = Workspace.from_config()
prefix = Path(__file__).parent
source_dir = str(prefix.joinpath("source"))
script_name = "train.py"
environment_file = str(prefix.joinpath("tf-gpu-horovod.yml"))
environment_name = "tf-gpu-horovod-example"
experiment_name = "tf-mnist-distributed-horovod-example"
compute_target = "gpu-K80-2"

env = Environment.from_conda_specification(environment_name, environment_file)
env.docker.enabled = True
env.docker.base_image = "mcr.microsoft.com/azureml/openmpi3.1.2-cuda10.1-cudnn7-ubuntu18.04"

cluster_config = MpiConfiguration(process_count_per_node=2, node_count=2)
src = ScriptRunConfig(
    source_directory=source_dir,
    script=script_name,
    environment=env,
    compute_target=compute_target,
    distributed_job_config=cluster_config,
)
run = Experiment(ws, experiment_name[:36]).submit(src)
print(run)
run.wait_for_completion(show_output=True)
print("losses:", len(run.get_metrics()["loss"]))
