"""The types and sizes of images, read from their first bytes without decoding them."""

from __future__ import annotations

from typing import NamedTuple

_MOST_PIXELS = 50_000_000  # a browser needs 4 bytes of memory for each
_LARGEST = 1 << 26  # bytes of a file that a preview loads


class Image(NamedTuple):
    """An image file: its media ``type``, ``width`` and ``height`` in pixels (0: unknown)."""

    type: str
    width: int
    height: int

    def showable(self, size: int) -> bool:
        """Return whether a browser can show the image, given its file's ``size`` in bytes."""
        return self.width * self.height <= _MOST_PIXELS and size <= _LARGEST


def recognized(head: bytes) -> Image | None:
    """Return the type and size of an image from its first bytes, ``head``.

    None for other data, and for SVG, which may contain scripts.
    """
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return Image("image/png", _number(head, 16, 4), _number(head, 20, 4))
    if head.startswith((b"GIF87a", b"GIF89a")):
        return Image("image/gif", _number(head, 6, 2, "little"), _number(head, 8, 2, "little"))
    if head.startswith(b"\xff\xd8\xff"):
        return Image("image/jpeg", *_size_of_jpeg(head))
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return Image("image/webp", *_size_of_webp(head))
    if head.startswith(b"BM") and head[14:18] == b"\x28\0\0\0":
        width, height = _number(head, 18, 4, "little"), _number(head, 22, 4, "little")
        # The height is negative if the top row comes first.
        return Image("image/bmp", width, min(height, 2**32 - height))
    return None


def _number(head: bytes, at: int, size: int, order: str = "big") -> int:
    return int.from_bytes(head[at : at + size], "big" if order == "big" else "little")


def _size_of_jpeg(head: bytes) -> tuple[int, int]:
    """Return width and height from the frame header (ITU T.81, B.2.2)."""
    place = 2
    while place + 9 < len(head) and head[place] == 0xFF:
        marker = head[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _number(head, place + 7, 2), _number(head, place + 5, 2)
        place += 2 + _number(head, place + 2, 2)
    return 0, 0


def _size_of_webp(head: bytes) -> tuple[int, int]:
    """Return width and height of the three formats of WebP (RFC 9649)."""
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + _number(head, 24, 3, "little"), 1 + _number(head, 27, 3, "little")
    if kind == b"VP8L":
        bits = _number(head, 21, 4, "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return _number(head, 26, 2, "little") & 0x3FFF, _number(head, 28, 2, "little") & 0x3FFF
