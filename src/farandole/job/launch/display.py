"""How a job is shown to the user who started it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TextIO

from farandole.job.launch.limits import standard


class Display:
    """``show_ranks``: whose output is shown, None: everybody's; ``output_dir``: a folder that keeps
    all of it; ``verbose`` tells more of what happens, ``quiet`` nothing but errors. ``say`` is for
    our own messages, ``messages`` for those of ``log_to_driver``. The streams are stdout and stderr
    if none are given.
    """

    def __init__(
        self,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        say: TextIO | None = None,
        messages: TextIO | None = None,
        output_dir: str | None = None,
        prefix_timestamp: bool = False,
        show_ranks: Collection[int] | None = None,
        verbose: bool = False,
        quiet: bool = False,
    ) -> None:
        self.out = out or standard("stdout")
        self.messages = messages or standard("stdout")
        self.err = err or standard("stderr")
        self.say = say or standard("stderr")
        self.output_dir = output_dir
        self.prefix_timestamp = prefix_timestamp
        self.show_ranks = show_ranks
        self.verbose = verbose
        self.quiet = quiet

    def note(self, text: str) -> None:
        """A message of ours."""
        self.say.write(f"farandole: {text}\n")
        self.say.flush()
