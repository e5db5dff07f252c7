"""Horovod's files of hosts."""

from __future__ import annotations

import re

from farandole.errors import SettingsError

_LINE = re.compile(r"(?P<host>[\w.-]+)(\s+slots\s*=\s*(?P<slots>[0-9]+))?\s*(#.*)?")


def read_hostfile(path: str) -> str:
    """``host slots=2`` per line, as ``host:2,...``. A host without slots has one."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--hostfile {path!r} cannot be read: {error}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise SettingsError(f"{path}:{number}: {line!r} cannot be read; a line is: <host> slots=<n>")
        hosts.append(f"{found['host']}:{found['slots'] or 1}")
    if not hosts:
        raise SettingsError(f"--hostfile {path!r} names no host")
    return ",".join(hosts)
