"""Figure of ours: some models learn to copy from their context, and their losses jump by it.

a: loss after the decay on tokens that end a pair seen before in their sequence, against that on all
other tokens; a point is a model. b: loss of the unified design less that of standard vectors among
all tokens and among either; left of 0 is better. Bars are medians, because means rest on the few
models that have learned to copy. With Muon.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, told_of_points, write_values
from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.quantities.designs import gap
from analysis.quantities.recall import OTHER, RECALLED, final_losses_among, gap_among
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_unified": "SV20.2"}
ARMS = {"MUON_UNIFIED": LOOKS["unified"], "MUON_STANDARD": LOOKS["standard"]}
AMONG = [
    Comparison(name, "sv_unified", *ARMS, "unified")
    for name in ("all tokens", "pairs seen before", "all others")
]
ROBUST = frozenset(each.name for each in AMONG)
MESSAGE = "With Muon the unified design leads in the median; on pairs seen before it is open"


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
    for each, values in zip(AMONG, kinds, strict=True):
        rows.append(values.rename("value").reset_index().assign(panel="b", name=each.name))
    found = pd.concat(rows, ignore_index=True)
    return found[["panel", "name", "seed", "recalled", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    figure, axes = page(1, 2, 2.7, w_pad=0.06, width_ratios=[1, 1.3])
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    handles = []
    for arm, (colour, name, marker) in ARMS.items():
        rows = panels["a"][panels["a"]["name"] == arm]
        axes[0].plot(rows["value"], rows["recalled"], marker, color=colour, ms=4, alpha=0.7, mew=0)
        handles.append(key(f"a: {name}", color=colour, marker=marker, ms=4, lw=0))
    label(axes[0], "a   One point a model", xlabel="loss on other tokens (nats)",
          ylabel="loss on pairs\nseen before (nats)")  # fmt: skip
    draw_gaps(axes[1], panels["b"], AMONG, below=0.28, robust=ROBUST)
    low, high = panels["b"]["value"].min(), panels["b"]["value"].max()
    axes[1].set_xlim(low - 0.1 * (high - low), high + 0.45 * (high - low))
    axes[1].set_ylim(-0.6, len(AMONG) - 0.35)
    write_values(axes[1], panels["b"], [each.name for each in AMONG], above=True, robust=ROBUST)
    label(axes[1], "b   The gap", xlabel="← better   unified − standard (nats)")
    legend_below(figure, handles, 2)
    count = numbers["seed"].nunique()
    note = f"with Muon; b: {told_of_points(panels['b'], ROBUST)}"
    return caption(figure, context, note, n=f"n = {count} seed{'s' * (count > 1)}")
