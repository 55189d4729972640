"""The MLP sweep on variants of the model (appendix B): do they separate the arms?

From S = 1 to 8, without multipliers and with three scalar ones: left the loss that is lost, and as
numbers its mean with the 95% interval; then the factor by which the outputs of MLP, SSM and
attention grow (geometric mean over layers).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, SMALL, shade
from analysis.quantities.losses import final_losses
from analysis.quantities.mlp_scale import BLOCKS
from analysis.quantities.norms import at_step
from analysis.quantities.stats import interval, with_interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale_design",)
DESIGNS = {
    "PLAIN": "grouped queries,\nno norm",
    "HEADS": "multi-head\nattention",
    "NORM": "RMSNorm\nin the SSM",
    "BOTH": "multi-head,\nRMSNorm",
}
# Look and name without multipliers, and with them.
LOOKS = {
    False: (ARM_LOOKS["FPN"], "no multipliers"),
    True: (ARM_LOOKS["SPN"], "three scalar multipliers"),
}
MESSAGE = "With RMSNorm in the SSM no rise of loss is seen (n = {n}); the SSM's output grows little"
# By quantity the panel's title.
TITLES = {
    "loss": "a   Loss, S = 8 − S = 1",
    "MLP": "b   MLP output",
    "SSM": "c   SSM output",
    "attention": "d   Attention",
}
FACTOR = "output norm,\nS = 8 / S = 1"
LABELS = {
    "loss": "nats",
    "MLP": f"{FACTOR}\n(wider axis)",
    "SSM": FACTOR,
    "attention": FACTOR,
}
# Outputs of these have one axis: the MLP's, of which S is, changes much more.
FOLLOWERS = ("SSM", "attention")


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: design, learned, quantity (loss, or a block), seed, value.

    Differences of the loss in nats per token, of the outputs' norms in logs.
    """
    table = tables["mlp_scale_design"]
    norms = at_step(table.pick(stat="activation_norm"), table.stage_end)
    logs = norms.assign(value=np.log(norms["value"]))
    quantities = {name: logs[logs["tensor"] == tensor] for name, tensor in BLOCKS.items()}
    parts = []
    for quantity, rows in ({"loss": final_losses(table)} | quantities).items():
        wide = rows.pivot_table("value", ["arm", "seed"], "S", aggfunc="mean")  # over layers
        low, high = sorted(wide.columns)
        change = (wide[high] - wide[low]).rename("value").reset_index()
        parts.append(change.assign(quantity=quantity))
    changes = pd.concat(parts, ignore_index=True)
    changes["learned"] = changes["arm"].str.endswith("_LRM")
    changes["design"] = changes["arm"].str.removesuffix("_LRM")
    return changes[["design", "learned", "quantity", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels."""
    figure, axes = page(1, 4, 2.6, w_pad=0.03, sharey=True, width_ratios=[1.2, 1, 1, 1])
    seeds = numbers["seed"].nunique()
    figure.suptitle(MESSAGE.format(n=seeds), x=0.01, ha="left", fontsize=7.5, weight="bold")
    axes = dict(zip(TITLES, axes, strict=True))
    groups = dict(tuple(numbers.groupby(["quantity", "learned", "design"])["value"]))
    for quantity, axis in axes.items():
        for learned, (look, _) in LOOKS.items():
            named = {name: groups[quantity, learned, own] for own, name in DESIGNS.items()}
            lift = -0.19 if learned else 0.19
            _rows(axis, named, look, lift)
            if quantity == "loss":
                _told(axis, named, look, lift)
        axis.axvline(0, **NEUTRAL)
        axis.margins(x=0.08)
        axis.grid(axis="y", visible=False)
        axis.set_ylim(-0.55, len(DESIGNS) - 0.45)
        for border in np.arange(len(DESIGNS) - 1) + 0.5:
            axis.axhline(border, color="#dddddd", lw=0.6)
        label(axis, TITLES[quantity], xlabel=LABELS[quantity])
    axes["loss"].set_yticks(range(len(DESIGNS)), reversed(DESIGNS.values()))
    axes["loss"].locator_params(axis="x", nbins=3)
    ends = np.array([axes[name].get_xlim() for name in FOLLOWERS])
    for name in FOLLOWERS:
        axes[name].set_xlim(ends.min(), ends.max())
    for name in BLOCKS:
        _name_factors(axes[name])
    handles = [key(name, ls="", **look) for look, name in LOOKS.values()]
    if seeds > 1:
        handles.append(key("mean, 95%", color="#444444", lw=1.2, marker="|", ms=6, mew=1.8))
    legend_below(figure, handles, len(handles))
    return caption(figure, context, "points: seeds; numbers: mean, 95%" if seeds > 1 else "")


def _rows(axis, named: dict[str, pd.Series], look: dict, lift: float) -> None:
    """A line for each design, from top to bottom: the seeds, and below them their mean and 95%."""
    for place, values in enumerate(reversed(named.values())):
        height, mean = place + lift, interval(values)
        seeds = {"ls": "", "ms": 3.2, "mew": 0, "alpha": 0.75, "clip_on": False}
        axis.plot(values, [height + 0.07] * len(values), **look | seeds)
        if mean.n > 1:
            axis.plot([mean.low, mean.high], [height - 0.09] * 2, color=look["color"], lw=1.2)
            colour = shade(look["color"], -0.3)
            axis.plot(mean.mean, height - 0.09, "|", color=colour, ms=5, mew=1.6, zorder=4)


def _told(axis, named: dict[str, pd.Series], look: dict, lift: float) -> None:
    """The mean of each line with its interval, to the right of the axis."""
    for place, values in enumerate(reversed(named.values())):
        said = with_interval(values, 3).replace("-0.000", "0.000").replace("-", "−")
        axis.text(1.03, place + lift, said, transform=axis.get_yaxis_transform(), va="center",
                  fontsize=SMALL, color=shade(look["color"], -0.25))  # fmt: skip


def _name_factors(axis) -> None:
    """Factors such as × 10 at the ticks of an axis of their logarithms, two or three of them."""
    low, high = axis.get_xlim()
    wanted = 0.32 * (high - low)
    step = next((step for step in (2.0, np.sqrt(10.0), 10.0) if np.log(step) > wanted), 100.0)
    count = np.arange(np.ceil(low / np.log(step)), np.floor(high / np.log(step)) + 1)
    named = [f"×{float(f'{factor:.1g}'):g}" for factor in step**count]
    axis.set_xticks(count * np.log(step), named)
