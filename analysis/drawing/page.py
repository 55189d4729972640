"""A figure's page: its panels, their titles, the legend below them and the caption."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.drawing.style import DECAY, NOT_JUDGED, SMALL, TEXT_WIDTH
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED

# Points: the space around the legend and the caption.
_GAP = 4
_BELOW = "legend below"


def sheet(height: float, w_pad: float | None = None, h_pad: float | None = None):
    """An empty figure, ``height`` inches high and as wide as a page's text."""
    figure = plt.figure(figsize=(TEXT_WIDTH, height))
    figure.get_layout_engine().set(w_pad=w_pad, h_pad=h_pad)
    return figure


def page(rows: int, columns: int, height: float, *, w_pad: float | None = None,
         h_pad: float | None = None, **subplots):  # fmt: skip
    """A ``sheet`` and its axes, as of ``Figure.subplots``; the spaces around them are inches."""
    figure = sheet(height, w_pad, h_pad)
    return figure, figure.subplots(rows, columns, **subplots)


def text_page(height: float):
    """A ``sheet`` for a table, and ``write(x, y, text, **look)`` in shares of its width and height.

    Texts stand in the middle of their height, and begin at x unless ``ha`` says otherwise.
    """
    figure, axis = page(1, 1, height)
    axis.set_axis_off()

    def write(x: float, y: float, text: str, **look) -> None:
        look = {"fontsize": SMALL, "va": "center", "in_layout": False} | look
        axis.text(x, y, text, transform=axis.transAxes, **look)

    return figure, axis, write


def label(axis, title: str, **settings) -> None:
    """A title above the left edge, and ``axis.set(**settings)``."""
    axis.set_title(title, loc="left")
    axis.set(**settings)


def finding(context: Context, found: str, plain: str, scale: str = "tiny") -> str:
    """A panel's title: ``found`` of the runs published at ``scale``, and ``plain`` of others.

    What another's runs show is not known; ``plain`` says what is drawn.
    """
    return found if written_of(context, scale) else plain


def written_of(context: Context, scale: str = "tiny") -> bool:
    """Whether these are the runs published at ``scale``, of which findings are written."""
    return context.told and (context.source, context.scale) == ("reference", scale)


def headline(part, message: str, context: Context | None = None, scale: str = "tiny") -> None:
    """The message of a figure, or of a row of its panels, in bold above them.

    With ``context`` it was written of the runs published at ``scale``, and stands above these
    alone: what another's runs say is not known.
    """
    if context is not None and not written_of(context, scale):
        return
    part.suptitle(message, x=0.01, ha="left", fontsize=7.5, weight="bold", linespacing=1.15)


def key(label: str, color: str = "black", **look) -> Line2D:
    """A legend's entry for lines or markers of this look."""
    return Line2D([], [], label=label, color=color, **look)


def key_of_decay(label: str = "decay of the learning rate begins") -> Line2D:
    """A legend's entry for ``decay_line``."""
    return key(label, **DECAY)


def key_of_shade(numbers: pd.DataFrame) -> list[Patch]:
    """A legend's entry for the grey of ``s_axis``, if some but not all of ``judged`` are true."""
    mixed = numbers["judged"].any() and not numbers["judged"].all()
    said = "not judged: too far for a learned scale, or too coarse a step"
    return [Patch(**NOT_JUDGED, label=said)] if mixed else []


def legend_below(figure, handles: list, ncols: int, **options) -> None:
    """The figure's legend; ``caption`` puts it below the panels."""
    below = {"loc": "lower center", "borderaxespad": 0} | options
    figure.legend(handles=handles, ncols=ncols, **below).set_gid(_BELOW)


def caption(figure, context, note: str = "", n: str = ""):
    """What every figure must say: scale, n and which seeds, corpus, own runs. Returns it.

    ``n`` says it in other words, such as panel by panel. It takes more lines where one is wider
    than the figure. Panels and the legend of ``legend_below`` stand above it.
    """
    of_all = [_seeds(context.seeds)]
    of_all += [f"{name}: {_seeds(seeds)}" for name, seeds in context.others.items()]
    smoke = " (tests that all works; no result)" if context.scale == "smoke" else ""
    parts = [f"scale: {context.scale}{smoke}", *([n] if n else of_all), f"corpus: {context.corpus}"]
    parts += ["own runs"] if context.source == "runs" else []
    parts += [note] if note else []
    text = figure.text(0.5, 0.005, "", ha="center", va="bottom", fontsize=SMALL, color="#444444",
                       linespacing=1.3)  # fmt: skip
    lines = [parts[0]]
    for part in parts[1:]:
        text.set_text(f"{lines[-1]}   {part}")
        if text.get_window_extent().width < 0.97 * figure.bbox.width:
            lines[-1] = text.get_text()
        else:
            lines.append(part)
    text.set_text("\n".join(lines))
    gap = _GAP / 72 * figure.dpi / figure.bbox.height
    used = text.get_window_extent().y1 / figure.bbox.height
    for legend in figure.legends:
        if legend.get_gid() == _BELOW:
            legend.set_bbox_to_anchor((0.5, used + gap))
            used += gap + legend.get_window_extent().height / figure.bbox.height
    if (layout := figure.get_layout_engine()) is not None:
        layout.set(rect=(0, used, 1, 1 - used))
    return figure


def _seeds(seeds) -> str:
    if not seeds:
        return "Brownian motion alone"
    exploring = sum(seed < FIRST_JUDGING_SEED for seed in seeds)
    word = "exploration " if exploring == len(seeds) else ""
    told = f"n = {len(seeds)} {word}seed{'s' * (len(seeds) > 1)}"
    return told if exploring in (0, len(seeds)) else f"{told} ({exploring} of exploration)"
