"""Figure of ours: some models learn to copy from their context, and their losses jump by it.

a: loss after the decay on tokens that end a pair seen before in their sequence, against that on all
other tokens; a point is a model. b: loss of the unified design less that of standard vectors among
all tokens and among either; left of 0 is better. With Muon.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import dots
from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import told_of_points, write_values
from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import NEUTRAL, SMALL
from analysis.quantities.designs import gap
from analysis.quantities.recall import OTHER, RECALLED, final_losses_among, gap_among
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

EXPERIMENTS = {"sv_unified": "SV20.2"}
ARMS = {"MUON_UNIFIED": LOOKS["unified"], "MUON_STANDARD": LOOKS["standard"]}
# Colour and marker.
AMONG = {
    "all tokens": ("#332288", "s"),
    "pairs seen before": ("#CC6677", "D"),
    "all others": ("#117733", "o"),
}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name (arm or tokens), seed, recalled, value (nats per token)."""
    table = tables["sv_unified"]
    recalled, other = (final_losses_among(table, tokens) for tokens in (RECALLED, OTHER))
    rows = [
        pd.DataFrame({"recalled": recalled[arm], "value": other[arm]})
        .reset_index()
        .assign(panel="a", name=arm)
        for arm in ARMS
    ]
    kinds = (
        gap(table, *ARMS).loc[recalled.index],
        *(gap_among(table, tokens, *ARMS) for tokens in (RECALLED, OTHER)),
    )
    for name, values in zip(AMONG, kinds, strict=True):
        rows.append(values.rename("value").reset_index().assign(panel="b", name=name))
    found = pd.concat(rows, ignore_index=True)
    return found[["panel", "name", "seed", "recalled", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 2.4, w_pad=0.06, width_ratios=[1, 1.3])
    panels = dict(tuple(numbers.groupby("panel")))
    handles = []
    for arm, (colour, name, marker) in ARMS.items():
        rows = panels["a"][panels["a"]["name"] == arm]
        axes[0].plot(rows["value"], rows["recalled"], marker, color=colour, ms=4, alpha=0.7, mew=0)
        handles.append(key(f"a: {name}", color=colour, marker=marker, ms=4, lw=0))
    axes[0].set_aspect("equal", adjustable="datalim")
    label(axes[0], "a   One point a model", xlabel="loss on other tokens (nats)",
          ylabel="loss on pairs\nseen before (nats)")  # fmt: skip
    judging = panels["b"]["seed"] >= FIRST_JUDGING_SEED
    solid, hollow = (
        {name: rows.loc[rows["name"] == name, "value"] for name in AMONG}
        for rows in (panels["b"][judging], panels["b"][~judging])
    )
    dots(
        axes[1],
        solid,
        {name: colour for name, (colour, _) in AMONG.items()},
        markers={name: marker for name, (_, marker) in AMONG.items()},
        hollow=hollow,
        below=0.3,
    )
    axes[1].axvline(0, **NEUTRAL)
    axes[1].grid(axis="y", visible=False)
    axes[1].tick_params(axis="y", length=0, labelsize=SMALL)
    low, high = panels["b"]["value"].min(), panels["b"]["value"].max()
    axes[1].set_xlim(low - 0.1 * (high - low), high + 0.8 * (high - low))
    axes[1].set_ylim(-0.7, len(AMONG) - 0.6)
    write_values(axes[1], panels["b"], list(AMONG))
    label(axes[1], "b   The gap", xlabel="← better   unified − standard (nats)")
    legend_below(figure, handles, 2)
    count = numbers["seed"].nunique()
    note = f"with Muon; b: {told_of_points(panels['b'])}"
    return caption(figure, context, note, n=f"n = {count} seed{'s' * (count > 1)}")
