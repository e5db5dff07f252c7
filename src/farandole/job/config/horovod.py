"""Horovod's variables without an effect here, for its installer and its controller."""

from __future__ import annotations

from collections.abc import Mapping

# The worker sets these variables for programs.
HOROVOD_FIXED = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
_COMPILING = {
    f"HOROVOD_{prefix}{name}"
    for prefix, names in (
        ("WITH_", "TENSORFLOW PYTORCH MXNET MPI GLOO NVTX"),
        ("WITHOUT_", "TENSORFLOW PYTORCH MXNET MPI GLOO NVTX"),
        ("GPU_", "OPERATIONS ALLREDUCE ALLGATHER BROADCAST ALLTOALL REDUCESCATTER"),
        ("CUDA_", "HOME INCLUDE LIB"),
        ("ROCM_", "HOME INCLUDE LIB"),
        ("NCCL_", "HOME INCLUDE LIB LINK"),
        ("BUILD_", "ARCH_FLAGS FLAGS CUDA_CC_LIST"),
        (
            "",
            (
                "GPU CPU_OPERATIONS ALLOW_MIXED_GPU_IMPL NVTX_INCLUDE CMAKE DEBUG SKIP_COMPILE"
                " LOCAL_VERSION"
            ),
        ),
    )
    for name in names.split()
}


def built_for(env: Mapping[str, str]) -> list[str]:
    """Return the variables in ``env`` with which Horovod's installer selects code to compile.

    They have no effect, because nothing is compiled here.
    """
    return sorted(name for name in _COMPILING & env.keys() if env[name] != HOROVOD_FIXED.get(name))
