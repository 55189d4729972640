"""A figure's page: its panels, their titles, the legend below them and the caption."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.drawing.style import NOT_JUDGED, TEXT_WIDTH
from analysis.tables.results import FIRST_JUDGING_SEED

_CAPTION = 0.18  # inches


def page(rows: int, columns: int, height: float, *, below: float, above: float = 0.0,
         w_pad: float | None = None, h_pad: float | None = None, **subplots):  # fmt: skip
    """A figure as wide as a page's text and its axes, as of ``plt.subplots``.

    ``height`` and the space around panels, ``w_pad`` and ``h_pad``, are inches. ``below`` and
    ``above`` are shares of the height that the panels leave to the legend and the caption.
    """
    figure, axes = plt.subplots(rows, columns, figsize=(TEXT_WIDTH, height), **subplots)
    inside = (0, below, 1, 1 - below - above)
    figure.get_layout_engine().set(rect=inside, w_pad=w_pad, h_pad=h_pad)
    return figure, axes


def label(axis, title: str, **settings) -> None:
    """A title above the left edge, and ``axis.set(**settings)``."""
    axis.set_title(title, loc="left")
    axis.set(**settings)


def key(label: str, color: str = "black", **look) -> Line2D:
    """A legend's entry for lines or markers of this look."""
    return Line2D([], [], label=label, color=color, **look)


def key_of_shade(numbers: pd.DataFrame) -> list[Patch]:
    """A legend's entry for the grey of ``s_axis``, if some but not all of ``judged`` are true."""
    mixed = numbers["judged"].any() and not numbers["judged"].all()
    return [Patch(**NOT_JUDGED, label="not judged")] if mixed else []


def legend_below(figure, handles: list, ncols: int, height: float = 0.03, **options) -> None:
    """The figure's legend, ``height`` of the figure above its lower edge."""
    options = {"loc": "lower center", "bbox_to_anchor": (0.5, height)} | options
    figure.legend(handles=handles, ncols=ncols, **options)


def caption(figure, context, note: str = ""):
    """What every figure must say: scale, n and which seeds, corpus, whose runs. Returns it.

    Panels make room for it where nobody has told them how much they may take.
    """
    layout = figure.get_layout_engine()
    if layout is not None and layout.get().get("rect") == (0, 0, 1, 1):
        below = _CAPTION / figure.get_figheight()
        layout.set(rect=(0, below, 1, 1 - below))
    n = ", ".join(
        [_seeds(context.seeds), *(f"{name}: {_seeds(o)}" for name, o in context.others.items())]
    )
    whose = {"runs": "own runs", "reference": "published runs"}[context.source]
    smoke = " (tests that all works; no result)" if context.scale == "smoke" else ""
    parts = [f"scale: {context.scale}{smoke}", n, f"corpus: {context.corpus}", whose, note]
    figure.text(0.5, 0.005, "   ".join(filter(None, parts)), ha="center", va="bottom",
                fontsize=5.8, color="#444444")  # fmt: skip
    return figure


def _seeds(seeds) -> str:
    if not seeds:
        return "Brownian motion alone"
    stage = "judge" if min(seeds) >= FIRST_JUDGING_SEED else "explore"
    named = f"seed that {stage}s" if len(seeds) == 1 else f"seeds that {stage}"
    return f"n = {len(seeds)} {named}"
