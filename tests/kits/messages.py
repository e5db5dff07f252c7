"""Pin the values of a message, not its sentences, so that its English can be edited freely.

A value is what the reader of a message needs: a rank, a number, a flag, a file, a tensor's name,
the name of a type. A message without a value is pinned by a noun of the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def _whole(value: str) -> str:
    """Return a regular expression for ``value`` as a whole word or number."""
    begin = r"(?<!\w)" if re.match(r"\w", value) else ""
    end = r"(?!\w)" if re.search(r"\w\Z", value) else ""
    if re.match(r"\d", value):
        begin += r"(?<!\d[.,])"
    if re.search(r"\d\Z", value):
        end += r"(?![.,]\d)"
    text = re.escape(value)
    if value[:4] in ("rank", "Rank"):  # at the beginning of a sentence, or within one
        text = f"[Rr]{text[1:]}"
    return begin + text + end


def mentioning(*values: str | tuple[str, ...]) -> str:
    """Return a regular expression for ``match=``: all values, in any order."""
    found = [each for value in values for each in ((value,) if isinstance(value, str) else value)]
    if not found:
        raise ValueError("mentioning() takes at least one value")
    return r"(?s)\A" + "".join(f"(?=.*?{_whole(value)})" for value in found)


def mentions(text: str | Iterable[str], *values: str | tuple[str, ...]) -> bool:
    """Return whether one line of ``text``, or one of several texts, contains all values."""
    lines = text.splitlines() if isinstance(text, str) else text
    pattern = re.compile(mentioning(*values))
    return any(pattern.search(line) for line in lines)
