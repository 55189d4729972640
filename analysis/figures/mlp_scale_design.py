"""The MLP sweep on variants of the model (appendix B): do they separate the arms?

From S = 1 to 8, without multipliers and with three scalar ones. Above: the loss that is lost (a),
and by how much less each variant loses than the plain design, paired by seed (b). Below: the factor
by which the outputs of MLP, SSM and attention grow (geometric mean over layers); written is this
factor with an RMSNorm over that of the plain design, without multipliers, paired by seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
from analysis.drawing.style import ARM_LOOKS, NEUTRAL, S_MEANS, SMALL, shade
from analysis.quantities.losses import final_losses
from analysis.quantities.mlp_scale import BLOCKS
from analysis.quantities.norms import at_step
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("mlp_scale_design",)
PLAIN, NORM = "PLAIN", "NORM"
DESIGNS = {
    PLAIN: "plain: grouped\nqueries, no norm",
    "HEADS": "multi-head\nattention",
    NORM: "RMSNorm\nin the SSM",
    "BOTH": "multi-head,\nRMSNorm",
}
# Look and name without multipliers, and with them.
LOOKS = {
    False: (ARM_LOOKS["FPN"], "no multipliers"),
    True: (ARM_LOOKS["SPN"], "three scalar multipliers"),
}
MESSAGES = (
    "RMSNorm in the SSM lowers the cost of S = 8 (n = {n}, exploratory)",
    "MLP outputs grow without multipliers; under scalars this is shown only with RMSNorm\n"
    "and grouped queries. Without multipliers RMSNorm slows MLP and attention outputs;\n"
    "for the SSM's this is open (n = {n}, exploratory)",
)
# By quantity the panel's title; b is the loss once more, against the plain design.
TITLES = {
    "loss": "a   Cost: loss(S = 8) − loss(S = 1)",
    "against": "b   Cost − the plain design's, by seed",
    "MLP": "c   MLP output",
    "SSM": "d   SSM output",
    "attention": "e   Attention output",
}


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
    """The losses above, the outputs below."""
    figure, seeds = sheet(4.9, w_pad=0.04, h_pad=0.03), numbers["seed"].nunique()
    parts = figure.subfigures(2, 1)
    rows = [part.subplots(1, count, sharey=True) for part, count in zip(parts, (2, 3), strict=True)]
    for part, message in zip(parts, MESSAGES, strict=True):
        headline(part, message.format(n=seeds), context)
    axes = dict(zip(TITLES, [axis for row in rows for axis in row], strict=True))
    paired = _against(numbers)
    costs = paired[paired["quantity"] == "loss"].assign(quantity="against")
    every = pd.concat([numbers, costs])
    groups = dict(tuple(every.groupby(["quantity", "learned", "design"])["value"]))
    for quantity, axis in axes.items():
        for learned, (look, _) in LOOKS.items():
            named = {own: groups.get((quantity, learned, own)) for own in DESIGNS}
            _rows(axis, named, look, -0.19 if learned else 0.19)
        axis.axvline(0, **NEUTRAL)
        axis.margins(x=0.08)
        axis.grid(axis="y", visible=False)
        axis.set_ylim(-0.55, len(DESIGNS) - 0.45)
        axis.set_yticks(range(len(DESIGNS)), reversed(DESIGNS.values()))
        axis.tick_params(axis="y", length=0)
        for border in np.arange(len(DESIGNS) - 1) + 0.5:
            axis.axhline(border, color="#dddddd", lw=0.6)
        label(axis, TITLES[quantity])
    for name in ("loss", "against"):
        axes[name].set_xlabel("Δ loss (nats)")
        axes[name].locator_params(axis="x", nbins=5)
    axes["against"].text(0, len(DESIGNS) - 1, "0 by definition", ha="center", va="center",
                         fontsize=SMALL, bbox={"color": "white", "pad": 1})  # fmt: skip
    # The MLP's output changes far more than the others, which share a range.
    mlp, *others = (axes[name] for name in BLOCKS)
    for group in ([mlp], others):
        ends = np.array([axis.get_xlim() for axis in group])
        for axis in group:
            axis.set_xlim(ends.min(), ends.max())
            _name_factors(axis)
            axis.set_xlabel("output norm, S = 8 / S = 1")
    for name in BLOCKS:
        _tell_of_norm(axes[name], paired[paired["quantity"] == name])
    handles = [key(name, ls="", **look) for look, name in LOOKS.values()]
    if seeds > 1:
        handles.append(key("mean, 95%", color="#444444", lw=1.2, marker="|", ms=6, mew=1.8))
    legend_below(figure, handles, len(handles))
    note = f"{S_MEANS}, of the MLP"
    if seeds > 1:
        note += (
            "\npoints: seeds; of plain: growth over the plain design's, no multipliers, paired\n"
        )
        note += "c: a far wider axis than d and e, which share one"
    return caption(figure, context, note)


def _against(numbers: pd.DataFrame) -> pd.DataFrame:
    """The changes of each design, less those of the plain one with the same seed."""
    same = ["quantity", "learned", "seed"]
    plain = numbers[numbers["design"] == PLAIN].set_index(same)["value"].rename("plain")
    others = numbers[numbers["design"] != PLAIN].join(plain, on=same)
    others = others.assign(value=others["value"] - others["plain"])
    return others.dropna(subset="value")


def _tell_of_norm(axis, paired: pd.DataFrame) -> None:
    """By what factor RMSNorm changes the growth of an output without multipliers, in its row."""
    own = paired[(paired["design"] == NORM) & ~paired["learned"]]
    if len(own) < 2:
        return
    mean = interval(own["value"])
    middle, low, high = (f"{np.exp(end):.2f}" for end in (mean.mean, mean.low, mean.high))
    # At the side that its points leave free.
    right = (own["value"] + own["plain"]).mean() < np.mean(axis.get_xlim())
    row = len(DESIGNS) - 1 - list(DESIGNS).index(NORM)
    axis.text(0.98 if right else 0.02, row, f"×{middle} of plain\n[{low}, {high}]", va="center",
              ha="right" if right else "left", transform=axis.get_yaxis_transform(),
              fontsize=SMALL, linespacing=1.05,
              color=shade(LOOKS[False][0]["color"], -0.25))  # fmt: skip


def _rows(axis, named: dict[str, pd.Series | None], look: dict, lift: float) -> None:
    """A line for each design, from top to bottom: the seeds, and below them their mean and 95%."""
    for place, values in enumerate(reversed(named.values())):
        if values is None:
            continue
        height, mean = place + lift, interval(values)
        seeds = {"ls": "", "ms": 3.2, "mew": 0, "alpha": 0.75, "clip_on": False}
        axis.plot(values, [height + 0.07] * len(values), **look | seeds)
        if mean.n > 1:
            axis.plot([mean.low, mean.high], [height - 0.09] * 2, color=look["color"], lw=1.2)
            colour = shade(look["color"], -0.3)
            axis.plot(mean.mean, height - 0.09, "|", color=colour, ms=5, mew=1.6, zorder=4)


def _name_factors(axis) -> None:
    """Factors such as × 10 at the ticks of an axis of their logarithms, five or so of them."""
    low, high = axis.get_xlim()
    wanted = 0.2 * (high - low)
    step = next((step for step in (2.0, np.sqrt(10.0), 10.0) if np.log(step) > wanted), 100.0)
    count = np.arange(np.ceil(low / np.log(step)), np.floor(high / np.log(step)) + 1)
    named = [f"×{float(f'{factor:.1g}'):g}" for factor in step**count]
    axis.set_xticks(count * np.log(step), named)
