"""HorovodRunner: the driver with the notebook, and executors with the ranks."""

from __future__ import annotations

from benchmarks.pictures.style import Drawing


def draw() -> str:
    found = Drawing(
        760,
        430,
        "HorovodRunner(np=4).run(train) on a Spark cluster",
        "The driver sends the function to four Spark tasks on two executors. A rank runs as a"
        " process of its own next to each task. Ranks exchange gradients with each other; messages"
        " and rank 0's result return to the cell.",
    )
    found.rect(15, 48, 225, 322, "lane", radius=8)
    found.text(30, 72, "Driver", "ink b")
    found.box(30, 88, 195, 62, "grey", ["notebook cell", "runner.run(train)"])
    found.box(30, 176, 195, 62, "blue", ["Farandole", "starts and watches ranks"])
    found.box(30, 264, 195, 46, "grey", ["Spark session"])
    found.text(30, 335, "np=-2: two ranks here,", "dim")
    found.text(30, 353, "without executors", "dim")
    found.arrow([(127, 150), (127, 176)], "dim", both=True)
    found.arrow([(127, 238), (127, 264)], "dim")
    for number, top in enumerate((48, 220)):
        _executor(found, top, number)
    found.arrow([(530, 182), (530, 258)], "s3", both=True)
    found.text(545, 214, "gradients: TCP between hosts", "dim small")
    found.arrow([(225, 200), (290, 130)], "s1")
    found.arrow([(225, 214), (290, 290)], "s1")
    found.text(
        15,
        396,
        "train and its arguments travel by cloudpickle; back come log_to_driver messages,",
        "dim",
    )
    found.text(
        15, 416, "the live status, a failed rank's traceback, and the result of rank 0.", "dim"
    )
    return found.svg()


def _executor(found: Drawing, top: int, number: int) -> None:
    first = 2 * number
    found.rect(290, top, 455, 150, "lane", radius=8)
    found.text(305, top + 24, f"Executor {number + 1}", "ink b")
    for place in range(2):
        y = top + 38 + place * 56
        found.box(305, y, 130, 40, "grey", [f"Spark task {first + place}"])
        found.box(475, y, 110, 40, "green", [f"rank {first + place}"])
        found.arrow([(435, y + 20), (475, y + 20)], "dim")
    found.arrow([(530, top + 78), (530, top + 94)], "s3", both=True)
    found.text(600, top + 82, "gradients:", "dim")
    found.text(600, top + 100, "shared memory", "dim")
