"""The check that no distribution of Microsoft's SDK is installed.

The build hook runs this file alone, so it imports only the standard library. It lists folders and
opens no file, because the check delays every import of ``azureml``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

_METADATA = re.compile(r"(azureml[-_.][\w.-]*?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", re.I)


def check_alone(folders: list[str] | None = None) -> None:
    """Raise ImportError if a distribution ``azureml-*`` is installed.

    All these distributions own the package ``azureml``, so only one provider may be present.

    ``folders``: the folders to search; by default ``sys.path``.
    """
    found = dict(sorted(_installed(folders or sys.path)))
    if found:
        raise ImportError(
            f"Microsoft's {', '.join(found.values())} is installed, and farandole-azureml provides"
            " the same package 'azureml'. Keep only one. For Farandole: pip uninstall -y"
            f" {' '.join(found)}, then install farandole-azureml again. For Microsoft's: pip"
            " uninstall -y farandole-azureml, then install Microsoft's again",
            name="azureml",
        )


def _installed(folders: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name, and the name with version and folder, of each distribution ``azureml-*``."""
    for folder in folders:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            match = _METADATA.fullmatch(entry)
            if match:
                name = re.sub(r"[-_.]+", "-", match[1]).lower()
                yield name, f"{name} {match[2]} in {folder}"
