"""Parameter servers: which part of the weights each holds, pushes and pulls."""

from __future__ import annotations

from benchmarks.pictures.style import Drawing

RANKS = (25, 210, 395, 580)


def draw() -> str:
    found = Drawing(
        760,
        400,
        "farandole run -np 4 --servers 2 --strategy ps_async",
        "Two servers hold half of the weights each. Each of four ranks trains by itself, pushes the"
        " change of its weights to both servers, and pulls the centre.",
    )
    for x, name, half in ((130, "server 0", "first half"), (450, "server 1", "second half")):
        found.box(x, 50, 190, 64, "orange", [name, f"centre, {half}"])
    for number, x in enumerate(RANKS):
        middle = x + 77
        found.box(x, 258, 155, 64, "green", [f"rank {number}", "step, step, step, ..."])
        for server in (225, 545):
            shift = (middle - 385) / 6
            found.arrow([(middle - 8, 258), (server + shift - 8, 114)], "s1")
            found.arrow([(server + shift + 8, 114), (middle + 8, 258)], "s2")
    found.path("M25 346 h30", "l-s1")
    found.text(65, 350, "push: the change of a rank's weights since its last pull")
    found.path("M25 376 h30", "l-s2")
    found.text(65, 380, "pull: the centre, from which the rank continues")
    return found.svg()
