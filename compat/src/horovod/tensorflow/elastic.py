from farandole.compat.elastic import run
from farandole.tensorflow.elastic import TensorFlowKerasState, TensorFlowState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
