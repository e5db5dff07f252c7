"""The check that no distribution of Microsoft's SDK is installed.

The build hook runs this file by itself, so it imports only the standard library.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions


def check_alone(folders: list[str] | None = None) -> None:
    """Raise ImportError if a distribution ``azureml-*`` is installed.

    All of them own the package ``azureml``, so only one provider may be present.

    ``folders``: where to look; by default ``sys.path``.
    """
    found: dict[str, str] = {}
    for each in distributions(path=folders or sys.path):
        name = re.sub(r"[-_.]+", "-", str(each.metadata["Name"] or "")).lower()
        if name.startswith("azureml-"):
            found[name] = f"{name} {each.version} in {each.locate_file('')}"
    if found:
        raise ImportError(
            f"Microsoft's {', '.join(sorted(found.values()))} is installed, and farandole-azureml"
            " provides the same package 'azureml'. Keep only one. For Farandole: pip uninstall -y"
            f" {' '.join(sorted(found))}, then install farandole-azureml again. For Microsoft's:"
            " pip uninstall -y farandole-azureml, then install Microsoft's again",
            name="azureml",
        )
