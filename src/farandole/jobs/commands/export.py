"""``farandole export``: write a run to an archive."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs.commands.output import print_json
from farandole.jobs.details import readable_size
from farandole.jobs.references import find_run


def parser() -> Parser:
    made = Parser(
        prog="farandole export",
        example="farandole export last --output xray.tar.gz",
        description=(
            "Write a run's folder to an archive. The unpacked folder is a run: farandole show"
            " FOLDER, farandole rerun FOLDER."
        ),
    )
    made.add_argument("run", metavar="RUN", nargs="?", default="last", help="id, name or last")
    made.add_argument("-o", "--output", metavar="FILE", help="default: RUN.tar.gz in this folder")
    made.add_argument("--no-outputs", action="store_true", help="without the program's outputs")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    folder = find_run(RunsHome(), options.run)
    path = options.output or f"{folder.run_id}.tar.gz"
    left_out = {"work"} | ({"outputs"} if options.no_outputs else set())

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = member.name.split("/")
        return None if len(parts) > 1 and parts[1] in left_out else member

    try:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder.path, arcname=folder.run_id, filter=kept)
    except OSError as error:
        raise SettingsError(f"the archive {path} cannot be written: {error}") from None
    size = os.path.getsize(path)
    if options.json:
        return print_json({"run_id": folder.run_id, "path": path, "bytes": size})
    return say(f"{path}  {readable_size(size)}")
