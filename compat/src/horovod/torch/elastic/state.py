from farandole.compat.elastic import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    TorchState,
    get_handler_registry,
    run,
    set_handler_registry,
)

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]
