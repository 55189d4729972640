"""Figure 5 of the second paper: branches, placement and reparametrization.

Loss after the decay less that of a direct vector on the inputs of each matrix (HG), paired by seed,
so that all rows of a to c have one zero; left of it is better. a: vectors that branches share. b:
other placements. c: magnitude and direction apart (OR, ER), on both sides and with a norm between.
d: with OR and a norm between, weight decay on some of the vectors, less no decay. Drawn are in d
the seeds that judge SV15.2, where there are any.
"""

from __future__ import annotations

import dataclasses

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import judging_alone
from analysis.drawing.gaps import Comparison, draw_gaps, measured, told_of_points, write_gaps
from analysis.drawing.page import caption, finding, headline, key, label, legend_below, page
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

EXPERIMENTS = {
    "sv_heterogeneity": ("HG *", "STANDARD *"),
    "sv_placement": (),
    "sv_reparametrization": ("HG *", "D*P_?R *"),
    "sv_decay": ("DNP_OR_*",),
}
PANELS = {
    "a": [Comparison("shared by branches", "sv_heterogeneity", "STANDARD", "HG", "none")],
    "b": [
        Comparison("both sides (DP)", "sv_placement", "DP", "HG", "dp"),
        Comparison("outputs only (AP)", "sv_placement", "AP", "HG", "ap"),
        Comparison("inputs only, matrices × 2 (ours)", "sv_placement", "HG_FACTOR", "HG", "none"),
        Comparison("both sides, norm between (DNP)", "sv_placement", "DNP", "HG", "dnp"),
    ],
    "c": [
        Comparison("DP with OR", "sv_reparametrization", "DP_OR", "HG", "or"),
        Comparison("DP with ER", "sv_reparametrization", "DP_ER", "HG", "er"),
        Comparison("DNP with OR", "sv_reparametrization", "DNP_OR", "HG", "or"),
        Comparison("DNP with ER", "sv_reparametrization", "DNP_ER", "HG", "er"),
    ],
    "d": [
        Comparison(name, "sv_decay", f"DNP_OR_{arm}", "DNP_OR_NONE", "or")
        for name, arm in (("on inputs (IWD)", "INPUT"), ("on outputs", "OUTPUT"), ("on all", "ALL"))
    ],
}
TITLES = {
    "a": "a   Vectors shared by branches are worse than own ones",
    "b": "b   No gain of vectors on outputs is seen; a factor of 2 harms",
    "c": "c   Magnitude and direction apart (OR, ER) gain most behind a norm",
    "d": "d   Weight decay harms DNP with OR, perhaps by less than matters",
}
MESSAGE = (
    "Vectors elsewhere are not seen to gain on those on the inputs of matrices (b);\n"
    "with a norm between, magnitude and direction apart (OR, ER) do (c)"
)
# One seed bears no conclusion, and what another's runs show is not known.
SUBJECTS = {
    "a": "a   Vectors shared by branches",
    "b": "b   Placement",
    "c": "c   Magnitude and direction apart (OR, ER)",
    "d": "d   Weight decay, DNP with OR (0: no vector decays)",
}
WORDS = (
    "reference: a vector on the inputs of each matrix; in d what has no decay of vectors.\n"
    "branches: query, key, value, gate, up.   AP: vectors γ on the outputs of matrices.   "
    "DP: on inputs and outputs.\n"
    "DNP: DP with an RMSNorm between matrix and output vector.   "
    "× 2: a fixed factor of 2 on each matrix.\n"
    r"OR: $\gamma = \beta\,\mathrm{Norm}(\alpha)$, length and direction apart.   "
    r"ER: $\gamma = e^{\beta}\,e^{\alpha - \mathrm{mean}(\alpha)}$."
)
# Of the distance of two lines: a bar stands above its points, so that none is hidden.
_BELOW = 0.42


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, value (nats per token)."""
    rows = measured(tables, PANELS)
    last = rows["panel"] == "d"
    judging = judging_alone(rows[last], criteria_of("sv_decay")["SV15.2"])
    return pd.concat([rows[~last], judging], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Four panels above each other, with one axis."""
    lines = [len(compared) for compared in PANELS.values()]
    figure, axes = page(4, 1, 5.3, h_pad=0.03, sharex=True, height_ratios=[2.0, *lines[1:]])
    headline(figure, MESSAGE, context)
    panels = dict(tuple(numbers.groupby("panel")))
    low, high = min(numbers["value"].min(), 0), max(numbers["value"].max(), 0)
    axes[0].set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    for axis, (panel, title) in zip(axes, TITLES.items(), strict=True):
        rows = panels[panel]
        draw_gaps(axis, rows, PANELS[panel], below=_BELOW if panel == "a" else 0.3)
        write_gaps(axis, rows, PANELS[panel], head=False)  # titles are long
        axis.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        plain = SUBJECTS[panel]
        several = rows["seed"].nunique() > 1
        label(axis, finding(context, title, plain) if several else plain)
    axes[0].set_ylim(-0.75, 0.35)
    axes[-1].set_xlabel("← better        loss − reference (nats)")
    legend_below(figure, [key(WORDS, lw=0)], 1, handlelength=0, handletextpad=0)
    note = f"all arms have one LR, the best found for shared vectors\n{told_of_points(numbers)}"
    context = dataclasses.replace(context, others={})
    return caption(figure, context, note, n=_counts(panels))


def _counts(panels: dict[str, pd.DataFrame]) -> str:
    """The number of seeds by panel: those that judge, and those that explore."""
    told: dict[str, list[str]] = {}
    for panel, rows in panels.items():
        seeds = rows["seed"].dropna().unique()
        judging = int((seeds >= FIRST_JUDGING_SEED).sum())
        parts = [f"{judging}"] * (judging > 0)
        parts += [f"{len(seeds) - judging} of exploration"] * (judging < len(seeds))
        told.setdefault(f"n = {' + '.join(parts)}", []).append(panel)
    return "   ".join(f"{', '.join(panels)}: {said}" for said, panels in told.items())
