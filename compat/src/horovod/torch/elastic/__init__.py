from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState, run

__all__ = ["ElasticSampler", "TorchState", "run"]
