"""Figure 6 of the second paper: the unified design against standard vectors, over sizes.

a: gap of the training loss over training, unified less standard on the same batches, at each width;
below 0 the unified design is ahead. b: loss after the decay against parameters, and in numbers how
much lower the unified design's is. Power laws fit the three sizes badly, so that points are joined.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.axes import median
from analysis.drawing.designs import LOOKS
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import MEDIANS, NEUTRAL, SMALL, colour_of_width
from analysis.quantities.designs import course_of_gap
from analysis.quantities.losses import final_losses
from analysis.quantities.stats import with_interval
from analysis.quantities.unified import STANDARD, UNIFIED, named, sizes
from analysis.tables.context import Context, stacked
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_unified": ("STANDARD*", "UNIFIED*")}
DESIGNS = {STANDARD: LOOKS["standard"], UNIFIED: LOOKS["unified"]}
MESSAGE = (
    "The unified design ends with the lower loss at each width, by more in wider models;\n"
    "the two narrower ones are behind at first"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, design, width, parameters, seed, share (of the steps), value (nats)."""
    table = tables["sv_unified"]
    losses, rows = final_losses(table), []
    for ending, (parameters, width) in sizes(table).iterrows():
        at = {"width": width, "parameters": parameters}
        gaps = stacked(course_of_gap(table, *named(ending)), panel="a", design=UNIFIED, **at)
        rows.append(gaps)
        for design in DESIGNS:
            own = losses[losses["arm"] == design + ending][["seed", "value"]]
            rows.append(own.assign(panel="b", design=design, **at))
    found = pd.concat(rows, ignore_index=True)
    return found[["panel", "design", "width", "parameters", "seed", "share", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 2.7, w_pad=0.06)
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    widths = sorted(numbers["width"].unique())
    handles = []
    for width in widths:
        colour = colour_of_width(width)
        rows = panels["a"][panels["a"]["width"] == width]
        median(axes[0], rows, "share", color=colour)
        handles.append(key(f"width {width:g}", color=colour))
    axes[0].axhline(0, **NEUTRAL)
    label(axes[0], "a   Over training", xlabel="share of the steps",
          ylabel="training loss,\nunified − standard (nats)")  # fmt: skip
    for design, (colour, name, marker) in DESIGNS.items():
        rows = panels["b"][panels["b"]["design"] == design]
        median(axes[1], rows, "parameters", color=colour, marker=marker, lw=0.9, ms=4)
        handles.append(key(name, color=colour, marker=marker, ms=4))
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low - 0.25 * (high - low), high)
    _say_gains(axes[1], panels["b"])
    axes[1].set_xscale("log")
    ticks = sorted(panels["b"]["parameters"].unique())
    axes[1].set_xticks(ticks, [_in_short(tick) for tick in ticks])
    axes[1].xaxis.set_minor_locator(NullLocator())
    label(axes[1], "b   Over sizes", xlabel="parameters", ylabel="loss after the decay\n(nats)")
    legend_below(figure, handles, min(len(handles), 5))
    several = len(context.seeds) > 1
    note = f"{MEDIANS}; numbers in b: means with 95% intervals" if several else ""
    return caption(figure, context, note)


def _say_gains(axis, rows: pd.DataFrame) -> None:
    """By width how much lower the unified design's loss is, in the corner below the lines."""
    lines = ["unified lower by (nats)"]
    for width, own in rows.groupby("width"):
        losses = own.pivot(index="seed", columns="design", values="value")
        gain = with_interval(losses[STANDARD] - losses[UNIFIED], 3).replace("-", "−")
        lines.append(f"width {width:g}: {gain}")
    axis.text(0.03, 0.03, "\n".join(lines), transform=axis.transAxes, va="bottom", fontsize=SMALL,
              linespacing=1.25, bbox={"color": "white", "pad": 0.5})  # fmt: skip


def _in_short(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
