"""What the heads of a Gated Delta Network do after training, over the width (third paper).

Under AdamW at one LR, at the end of training; the figures named are the paper's under SGD. a: mean
β (figure 28). b: standard deviations over tokens of z_α
and z_β, geometric means over heads (figures 32 and 36). c: the largest of five places of a sequence
of the mean over heads of |c| (figure 42), where c is the mean of cos(q, k) over the sequences of a
probe, beside the same of independent directions. d: the memory of heads in tokens, medians over
heads. Lines are means over seeds with 95% intervals, points seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import DASHED_KEYS, NEUTRAL, plain_log_axis
from analysis.figures.gdn_fig3 import LOOKS
from analysis.quantities import gdn_transfer as found
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = {"gdn_transfer": ("* lr=0.016 *",)}
TITLES = {
    "a": "mean $β$",
    "b": "s.d. of $z$",
    "c": "largest $|\\cos(q, k)|$",
    "d": "memory (tokens)",
}
MESSAGE = (
    "With muP gates spread alike at every width, with SP more in wider models;\n"
    "the median head remembers about a tenth of a sequence, or less"
)
_APART = 1.06  # recipes stand beside each other
_LINES = {"written": "-", "alpha": "-", "beta": "--", "cosine": "-", "memory": "-"}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, quantity, recipe, seed, width, value; independent, length of a sequence.

    ``independent``: what panel c would have at this width for independent directions.
    """
    table, parts = tables["gdn_transfer"], []
    lr, end = _lr(), table.settings["train"]["steps"]
    for recipe in LOOKS:

        def told(stat: str, tensor: str, recipe: str = recipe) -> pd.DataFrame:
            return found.of_heads(table, stat, tensor, recipe, lr)

        each = {("a", "written"): found.by_width(told("head_mean", "gdn.written"), end)}
        for gate in ("alpha", "beta"):
            rows = told("deviation", f"gdn.{gate}")
            each["b", gate] = np.exp(found.by_width(rows.assign(value=np.log(rows["value"])), end))
        each["c", "cosine"] = found.largest_cosine(table, recipe, lr, end)
        each["d", "memory"] = found.by_width(told("memory", "gdn.kept"), end, "median")
        for (panel, quantity), values in each.items():
            rows = values.rename_axis(columns="width").stack().rename("value").reset_index()
            parts.append(rows.assign(panel=panel, quantity=quantity, recipe=recipe))
    model, every = table.settings["model"], pd.concat(parts, ignore_index=True)
    share = model["mixer_sizes"]["gdn"]["key_dim"] / model["hidden_size"]
    heads = found.of_heads(table, "memory", "gdn.kept", next(iter(LOOKS)), lr)
    count = len(heads[["layer", "head"]].drop_duplicates())
    sequences = table.settings["probes"]["sequences"]
    independent = {width: found.independent_cosine(round(width * share), count, sequences)
                   for width in every["width"].unique()}  # fmt: skip
    return every.assign(
        independent=every["width"].map(independent),
        length=table.settings["train"]["sequence_length"],
    )


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels, a line for each recipe."""
    figure, axes = page(1, 4, 2.5, w_pad=0.03)
    headline(figure, MESSAGE, context)
    widths = sorted(numbers["width"].unique())
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = numbers[numbers["panel"] == panel]
        for (quantity, recipe), own in rows.groupby(["quantity", "recipe"]):
            colour, marker, _ = LOOKS[recipe]
            own = own.assign(width=own["width"] * _APART ** (list(LOOKS).index(recipe) - 1))
            mean = own.groupby("width")["value"].mean()
            axis.plot(mean.index, mean, color=colour, marker=marker, ms=3.4, lw=1.2,
                      ls=_LINES[quantity])  # fmt: skip
            axis.plot(own["width"], own["value"], marker, color=colour, ms=1.8, lw=0, alpha=0.45,
                      mew=0)  # fmt: skip
            for width, values in own.groupby("width")["value"]:
                each = interval(values)
                if each.n > 1:
                    axis.plot([width] * 2, [each.low, each.high], color=colour, lw=1)
        axis.set_xscale("log", base=2)
        axis.set_xticks(widths, [f"{width:g}" for width in widths])
        axis.xaxis.set_minor_locator(NullLocator())
        label(axis, f"{panel}   {title}", xlabel="width $d$")
    axes[0].set_ylim(0, 1)
    plain_log_axis(axes[1])
    axes[2].plot(widths, numbers.groupby("width")["independent"].first(), **NEUTRAL, ls=":")
    axes[2].set_ylim(0)
    axes[3].set_ylim(0, 1.15 * numbers.loc[numbers["panel"] == "d", "value"].max())
    handles = [key(name, color=colour, marker=marker, ms=3.4, lw=1.2)
               for colour, marker, name in LOOKS.values()]  # fmt: skip
    handles += [key("b: $z_α$", color="#444444", lw=1.2), key("b: $z_β$", color="#444444", ls="--"),
                key("c: independent directions", **{**NEUTRAL, "ls": ":"})]  # fmt: skip
    legend_below(figure, handles, 3, **DASHED_KEYS)
    bands = ", 95%" if numbers["seed"].nunique() > 1 else ""
    note = f"LR {_lr():g}, end of training; points: seeds; lines: means{bands}   "
    note += f"d: median head; a sequence has {numbers['length'].iloc[0]:g} tokens\n"
    note += "β: write gate; z: gates before their nonlinearity; c: of five places, biased up"
    return caption(figure, context, note)


def _lr() -> float:
    return criteria_of("gdn_transfer")["GD10"]["thresholds"]["lr"]
