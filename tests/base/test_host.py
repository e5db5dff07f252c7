"""The host as the kernel shows it: control groups that limit cores, and namespaces."""

from __future__ import annotations

import math
import os
from pathlib import Path

from farandole.base.host import boot_id, cores, namespace, quota


class TestCores:
    def files(self, folder: Path, **content: str) -> float:
        for name, text in content.items():
            path = folder / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return quota(str(folder / "mount"), str(folder / "groups"))

    def test_a_limit_of_version_2_holds_for_the_groups_below(self, tmp_path: Path) -> None:
        found = self.files(
            tmp_path,
            groups="0::/a/b\n",
            mount__a__cpu_dot_max="250000 100000\n",
            mount__a__b__cpu_dot_max="max 100000\n",
        )
        assert found == 2.5

    def test_a_limit_of_version_1(self, tmp_path: Path) -> None:
        found = self.files(
            tmp_path,
            groups="4:cpu,cpuacct:/\n3:memory:/x\n",
            mount__cpu__cpu_dot_cfs_quota_us="300000",
            mount__cpu__cpu_dot_cfs_period_us="100000",
        )
        assert found == 3.0
        assert self.files(tmp_path, mount__cpu__cpu_dot_cfs_quota_us="-1") == math.inf

    def test_without_one(self, tmp_path: Path) -> None:
        assert self.files(tmp_path, groups="0::/\n") == math.inf
        assert 1 <= cores() <= len(os.sched_getaffinity(0))


def test_a_namespace_is_that_of_the_running_kernel() -> None:
    assert boot_id()
    assert namespace("net").startswith(boot_id())
    assert namespace("net") != namespace("pid")
    assert namespace("no_such_kind") == boot_id()
