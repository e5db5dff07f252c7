"""The common style of the pictures: SVG that follows the reader's light or dark mode.

The palette follows Okabe and Ito, whose colours are distinguishable for colour-blind readers. Each
colour is darkened or lightened for legibility on its background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

SIZE = 13  # pixels of the text
SMALL = 12
# Class -> colour, in light mode and in dark mode.
INKS = {
    "paper": ("#ffffff", "#14181f"),
    "ink": ("#1f2733", "#e6e9ee"),
    "dim": ("#515b69", "#aeb7c4"),
    "lane": ("#f1f3f7", "#1f2630"),
    "s0": ("#1f2733", "#e6e9ee"),
    "s1": ("#0067a3", "#64b5f2"),
    "s2": ("#b84a00", "#ff9f63"),
    "s3": ("#00795a", "#43d0a2"),
    "s4": ("#9c3f7f", "#eaa0cf"),
    "s5": ("#8c6100", "#f0c24f"),
    "s6": ("#5a5fb8", "#aab0ff"),
}
# Class -> fill and outline of a box, in light mode and in dark mode.
BOXES = {
    "grey": (("#e4e8ee", "#6b7685"), ("#2f3845", "#98a3b3")),
    "blue": (("#dbe7f6", "#2f5f9e"), ("#1c3552", "#7fb2ec")),
    "green": (("#cdebd8", "#2f8f5b"), ("#163d2a", "#6fce9c")),
    "orange": (("#f6e3cd", "#b3601a"), ("#47301a", "#f0a766")),
    "purple": (("#ecdcf0", "#8a4a9c"), ("#3b2544", "#cf9ae0")),
}
GRID = ("#d5dae2", "#343d4a")


def _rules(mode: int) -> str:
    inks = "".join(
        f".{name}{{fill:{colours[mode]}}}.l-{name}{{stroke:{colours[mode]}}}"
        for name, colours in INKS.items()
    )
    boxes = "".join(
        f".{name}{{fill:{colours[mode][0]};stroke:{colours[mode][1]}}}"
        for name, colours in BOXES.items()
    )
    return f"{inks}{boxes}.grid{{stroke:{GRID[mode]}}}"


STYLE = (
    f"text{{font-family:DejaVu Sans,Verdana,sans-serif;font-size:{SIZE}px}}"
    ".b{font-weight:bold}.code{font-family:DejaVu Sans Mono,Menlo,Consolas,monospace}"
    f".small{{font-size:{SMALL}px}}.line{{fill:none;stroke-width:2}}.thick{{stroke-width:3.5}}"
    ".thin{stroke-width:1.2}.dash{stroke-dasharray:5 4}"
    + _rules(0)
    + "@media (prefers-color-scheme: dark){"
    + _rules(1)
    + "}"
)


class Drawing:
    """An SVG picture that is built element by element.

    - ``title``, ``description``: The text for screen readers, and for a pointer's tooltip.
    """

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.elements = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{STYLE}</style>",
        ]
        self.rect(0, 0, width, height, "paper", radius=8)
        self.text(15, 26, title, "ink b")

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, **more: str | float
    ) -> None:
        radius = more.pop("radius", 0)
        self._add(
            "rect",
            {"class": kind, "x": x, "y": y, "width": width, "height": height, "rx": radius, **more},
        )

    def text(self, x: float, y: float, text: str, kind: str = "ink", anchor: str = "start") -> None:
        self._add("text", {"class": kind, "x": x, "y": y, "text-anchor": anchor}, text)

    def path(self, route: str, kind: str, **more: str | float) -> None:
        self._add("path", {"class": f"line {kind}", "d": route, **more})

    def circle(self, x: float, y: float, radius: float, kind: str) -> None:
        self._add("circle", {"class": kind, "cx": x, "cy": y, "r": radius})

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, lines: Sequence[str]
    ) -> None:
        """Draw a box with centred lines; the first is bold when there are several."""
        self.rect(x, y, width, height, kind, radius=6)
        top = y + height / 2 - (len(lines) - 1) * 9 + 4.5
        for number, line in enumerate(lines):
            style = "ink b" if number == 0 and len(lines) > 1 else "ink"
            self.text(x + width / 2, top + 18 * number, line, style, "middle")

    def arrow(
        self, points: Sequence[tuple[float, float]], kind: str, *, both: bool = False
    ) -> None:
        """Draw a line through points, with a head at its end, or one at either end."""
        self.path("M" + " L".join(f"{_number(x)} {_number(y)}" for x, y in points), f"l-{kind}")
        self._head(points[-2], points[-1], kind)
        if both:
            self._head(points[1], points[0], kind)

    def _head(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
        length = ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5
        along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
        base = (end[0] - 9 * along[0], end[1] - 9 * along[1])
        corners = [
            end,
            (base[0] - 4.5 * along[1], base[1] + 4.5 * along[0]),
            (base[0] + 4.5 * along[1], base[1] - 4.5 * along[0]),
        ]
        route = " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)
        self._add("polygon", {"class": kind, "points": route})

    def svg(self) -> str:
        return "\n".join([*self.elements, "</svg>\n"])

    def _add(
        self, name: str, attributes: Mapping[str, str | float], text: str | None = None
    ) -> None:
        words = "".join(
            f' {key.replace("_", "-")}="{value if isinstance(value, str) else _number(value)}"'
            for key, value in attributes.items()
            if value not in (0, "start") or key in ("x", "y")
        )
        self.elements.append(
            f"<{name}{words}/>" if text is None else f"<{name}{words}>{escape(text)}</{name}>"
        )


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
