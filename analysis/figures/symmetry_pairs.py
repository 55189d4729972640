"""Figure of ours (section 4.1): Q's and K's multipliers by rotated pair, in two orders of the data.

a, b: a point is a rotated pair of channels of a key head: ln of its row multipliers' product or
ratio, mean over both channels and the heads that share the key, less the mean over the pairs of the
layer, in one order of the data against another, from the same initial values and without weight
decay. What is learned lies on the diagonal; what drifts at random is round. Points are of
all seeds, dark ones of one, and pairs of one run are not independent. So c has the correlation over
the pairs of a seed, for each, and the difference of the two. Read as the constant stage ends.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.page import caption, finding, headline, label, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, SMALL, shade
from analysis.quantities import symmetry
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"symmetry": ("FREE *", "FREE_ORDER *")}
LOOK = {"marker": ARM_LOOKS["VPN"]["marker"], "ls": "", "ms": 1.9, "mew": 0}
COLOUR = ARM_LOOKS["VPN"]["color"]
# What the published runs show, and the plain title of others.
TITLES = {
    "product": ("Products repeat weakly", "Products"),
    "ratio": ("Whether ratios\n     repeat is open", "Ratios"),
}
SAID = {"product": "$r_Q\\,r_K$", "ratio": "$r_Q / r_K$"}
DIFFERENCE = "difference"
MESSAGE = (
    "Between two orders of the data products differ more than ratios, and correlate more:\n"
    "by {} (exploratory)"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, seed, layer, pair, product, ratio (both ln)."""
    table = tables["symmetry"]
    parts = [
        symmetry.pairs(table, arm).reset_index().assign(arm=arm)
        for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    ]
    columns = ["arm", "seed", "layer", "pair", "product", "ratio"]
    return pd.concat(parts, ignore_index=True)[columns]


def draw(numbers: pd.DataFrame, context: Context):
    """Two square panels with one range, and the correlations beside them."""
    figure, axes = page(1, 3, 3.3, w_pad=0.05)
    keys = ["seed", "layer", "pair"]
    one, other = (
        numbers[numbers["arm"] == arm].set_index(keys)
        for arm in (symmetry.FREE, symmetry.FREE_ORDER)
    )
    shared = one.index.intersection(other.index)
    one, other = one.loc[shared], other.loc[shared]
    seeds = shared.get_level_values("seed")
    dark = seeds == seeds.min()
    reach = 1.05 * max(table[list(SAID)].abs().to_numpy().max() for table in (one, other))
    for axis, letter, (name, title) in zip(axes[:2], "ab", TITLES.items(), strict=True):
        axis.axline((0, 0), slope=1, **NEUTRAL)
        axis.plot(one[name][~dark], other[name][~dark], **LOOK, color=COLOUR, alpha=0.4)
        axis.plot(one[name][dark], other[name][dark], **LOOK, color=shade(COLOUR, -0.65))
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach))
        axis.set_aspect("equal", adjustable="box")
        axis.locator_params(nbins=7, steps=[1, 2, 5, 10])
        axis.set_anchor("N")
        label(axis, f"{letter}   {finding(context, *title)}",
              xlabel=f"ln({SAID[name]}) − layer mean,\none order of the data")  # fmt: skip
    axes[0].text(0.03, 0.97, "line: repeats exactly", transform=axes[0].transAxes, va="top",
                 fontsize=SMALL, color="#555555", bbox={"color": "white", "pad": 0.5})  # fmt: skip
    axes[0].set_ylabel("the same in another order")
    found = _correlations(axes[2], one, other)
    more = interval(found[DIFFERENCE])
    if more.n > 1 and more.low > 0:
        headline(figure, MESSAGE.format(_said(found[DIFFERENCE])), context)
    # Rows are published of fewer seeds than norms are.
    drawn = sorted(map(int, numbers["seed"].unique()))
    pairs = one.groupby("seed").size().max()
    layers = shared.get_level_values("layer").nunique()
    note = (
        r"$r_Q$, $r_K$: row multipliers of Q and K, without weight decay   "
        f"dark: seed {seeds.min()}\n"
        r"ln: mean of $\ln|r|$ over the channels of a rotated pair and the heads that share a key"
        f"\na, b: {pairs} pairs a seed ({layers} layers × {pairs // layers}), the same range"
    )
    if len(drawn) > 1:
        note += "   c: ▲ seeds; tick and line: mean with 95% interval"
    return caption(figure, dataclasses.replace(context, seeds=drawn), note)


def _said(values: np.ndarray) -> str:
    """A mean and its interval, with a third digit where two would be zero."""
    mean = interval(values)
    parts = [mean.mean, *([mean.low, mean.high] if mean.n > 1 else [])]
    first, *ends = [f"{part:.{3 if abs(part) < 0.005 else 2}f}".replace("-", "−") for part in parts]
    return f"{first} [{ends[0]}, {ends[1]}]" if ends else first


def _correlations(axis, one: pd.DataFrame, other: pd.DataFrame) -> dict[str, np.ndarray]:
    """Seed by seed, with the mean and its 95% interval, which stand above it in numbers too."""
    found = {
        said: np.array([
            np.corrcoef(own[name], other.loc[own.index, name])[0, 1]
            for _, own in one.groupby("seed")
        ])
        for name, said in SAID.items()
    }  # fmt: skip
    found[DIFFERENCE] = np.subtract(*found.values())
    dots(axis, found, dict.fromkeys(found, COLOUR), below=0.22)
    for place, (name, values) in enumerate(reversed(found.items())):
        axis.annotate(f"{name}: {_said(values)}", (0.03, place), (0, 6), textcoords="offset points",
                      xycoords=("axes fraction", "data"), fontsize=SMALL,
                      bbox={"color": "white", "pad": 0.5})  # fmt: skip
    axis.axvline(0, **NEUTRAL)
    axis.set_xlim(min(-0.3, *map(min, found.values())) - 0.05, 1.05)
    axis.set_yticks([])
    axis.set_anchor("N")
    axis.set_box_aspect(1)
    axis.set_ylim(-0.45, len(found) - 0.4)
    label(axis, "c   Correlations, by seed", xlabel="correlation of the two orders")
    return found
