"""Memory that is freed and allocated again causes no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Prints what keep_freed_memory() said, and the page faults of using two blocks of 12 MiB ten times
# over.
PROGRAM = """
import ctypes, resource
from farandole.job.context.malloc import keep_freed_memory
print(keep_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.free.argtypes = [ctypes.c_size_t]
def use():
    blocks = [libc.malloc(12 << 20) for _ in range(2)]
    for block in blocks:
        ctypes.memset(block, 1, 12 << 20)
    for block in blocks:
        libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(**env: str) -> tuple[bool, int]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kept, faults = result.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_freed_memory_is_used_again() -> None:
    kept, faults = run()
    if not kept:
        pytest.skip("this libc has no mallopt")
    assert faults < 100  # 61,440 pages are touched


@pytest.mark.parametrize(
    "name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"]
)
def test_malloc_settings_of_the_user_are_kept(name: str) -> None:
    value = "glibc.malloc.trim_threshold=65536" if name == "GLIBC_TUNABLES" else "65536"
    kept, faults = run(**{name: value})
    assert not kept
    assert faults > 10_000
