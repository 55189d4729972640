"""Figure of ours: is the scalar on the LM head what lets multipliers beat a tuned model?

Where all is tuned: loss after the decay less that without multipliers, paired by seed; left is
better. Scalars and vectors as the tuning ablation has them, and each with the other's LM head: no
scalar there, or one. Drawn are the seeds that judge T9, where there are any.
"""

from __future__ import annotations

import dataclasses

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.drawing.axes import dots, judging_alone
from analysis.drawing.gaps import told_of_points, write_column
from analysis.drawing.page import caption, headline, label, page
from analysis.drawing.style import NEUTRAL, NO_MULTIPLIERS, NOT_JUDGED, OPTIMIZER_NAMES, SMALL
from analysis.drawing.tiers import LOOKS
from analysis.quantities import tuning_ablation as tuning
from analysis.quantities.tuning_ablation import OPTIMIZERS, SCALAR, TIERS, WITH, WITHOUT
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

# Of more seeds than those that have all arms.
EXPERIMENTS = {"tuning_apart": ("*_FULL *", "*_APART_NO_HEAD *", "*_APART_HEAD *")}
# From above: the kind of multipliers, and whether the LM head has what it lacks in the ablation.
LINES = {
    "scalars": (SCALAR, False),
    "scalars, none\non the LM head": (SCALAR, True),
    "vectors": (WITH, False),
    "vectors, and a scalar\non the LM head": (WITH, True),
}
MESSAGE = (
    "With Muon, vectors plus a scalar on the LM head gain, perhaps by less than matters;\n"
    "no other arm is seen to gain"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, name, seed, value (nats per token)."""
    table = tables["tuning_apart"]
    full, others = tuning.losses(table), tuning.losses_with_other_heads(table)
    rows = []
    for optimizer in OPTIMIZERS.values():
        for name, (kind, other) in LINES.items():
            own = others[optimizer, kind] if other else full[optimizer, kind, TIERS[-1]]
            values = (own - full[optimizer, WITHOUT, TIERS[-1]]).rename("value").dropna()
            rows.append(values.reset_index().assign(optimizer=optimizer, name=name))
    found = pd.concat(rows, ignore_index=True)[["optimizer", "name", "seed", "value"]]
    return judging_alone(found, criteria_of("tuning_apart")["T9"])


def draw(numbers: pd.DataFrame, context: Context):
    """A panel for each optimizer, with the same lines."""
    figure, axes = page(1, 2, 2.5, w_pad=0.05, sharex=True, sharey=True)
    headline(figure, MESSAGE, context)
    matters = criteria_of("tuning_apart")["T9"]["smallest_effect"]
    low, high = min(numbers["value"].min(), 0), max(numbers["value"].max(), 0)
    axes[0].set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    for axis, letter, optimizer in zip(axes, "ab", OPTIMIZERS.values(), strict=True):
        rows = numbers[numbers["optimizer"] == optimizer]
        named = {name: rows.loc[rows["name"] == name, "value"] for name in LINES}
        looks = {name: LOOKS[kind] for name, (kind, _) in LINES.items()}
        colours = {name: look["color"] for name, look in looks.items()}
        markers = {name: look["marker"] for name, look in looks.items()}
        dots(axis, named, colours, markers=markers, below=0.3)
        axis.axvspan(-matters, matters, **NOT_JUDGED, lw=0, zorder=0)
        axis.axvline(0, **NEUTRAL)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0, labelsize=SMALL)
        axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        write_column(axis, rows, list(LINES))
        label(axis, f"{letter}   {OPTIMIZER_NAMES[optimizer]}")
        axis.set_xlabel(f"← better    loss − {NO_MULTIPLIERS} (nats)")
    drawn = dataclasses.replace(context, seeds=sorted(numbers["seed"].unique()))
    note = f"all tuned (FULL); grey: ± {matters:g}, less than matters\n{told_of_points(numbers)}"
    return caption(figure, drawn, note)
