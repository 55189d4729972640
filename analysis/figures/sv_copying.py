"""Figure of ours: some models learn to copy from their context, and their losses jump by it.

a: loss after the decay on tokens that end a pair seen before in their sequence, against that on all
other tokens; a point is a model. b: loss of the unified design less that of standard vectors among
all tokens and among either; left of 0 is better. Drawn is what SV20.2 judges: the median among all
tokens, since the mean rests on the few models that have learned to copy, and the mean among all
others. Pairs seen before, of which no claim speaks, have a median, and an axis of their own. With
Muon.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.designs import LOOKS
from analysis.drawing.gaps import Comparison, draw_gaps, told_of_points, write_above
from analysis.drawing.page import caption, headline, key, label, legend_below, sheet
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
ROBUST = frozenset({"all tokens", "pairs seen before"})
# Rows of the axes of b, from above: what spreads further has limits of its own.
PARTS = (("all tokens", "all others"), ("pairs seen before",))
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
    """Two panels, the second of two axes."""
    figure = sheet(3.0, w_pad=0.06, h_pad=0.03)
    headline(figure, MESSAGE, context)
    places = figure.subplot_mosaic(
        [["a", "b"], ["a", "rest"]], height_ratios=[2, 1], width_ratios=[1, 1.3]
    )
    left, *right = places.values()
    panels = dict(tuple(numbers.groupby("panel")))
    handles = []
    for arm, (colour, name, marker) in ARMS.items():
        rows = panels["a"][panels["a"]["name"] == arm]
        left.plot(rows["value"], rows["recalled"], marker, color=colour, ms=4, alpha=0.7, mew=0)
        handles.append(key(f"a: {name}", color=colour, marker=marker, ms=4, lw=0))
    label(left, "a   One point a model", xlabel="loss on other tokens (nats)",
          ylabel="loss on pairs\nseen before (nats)")  # fmt: skip
    for axis, names in zip(right, PARTS, strict=True):
        rows = panels["b"][panels["b"]["name"].isin(names)]
        compared = [each for name in names for each in AMONG if each.name == name]
        draw_gaps(axis, rows, compared, below=0.28, robust=ROBUST)
        low, high = min(rows["value"].min(), 0), max(rows["value"].max(), 0)
        axis.set_xlim(low - 0.15 * (high - low), high + 0.3 * (high - low))
        axis.set_ylim(-0.6, len(names) - 0.35)
        write_above(axis, rows, names, robust=ROBUST)
    label(right[0], "b   The gap")
    label(right[1], "", xlabel="← better   unified − standard (nats)")
    legend_below(figure, handles, 2)
    count = numbers["seed"].nunique()
    note = f"with Muon; b: {told_of_points(panels['b'], ROBUST)}"
    return caption(figure, context, note, n=f"n = {count} seed{'s' * (count > 1)}")
