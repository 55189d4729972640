"""Figure 7 (section 5.1): four tiers of tuning, without and with multipliers; what tuning costs.

Left AdamW, right Muon. A gain above 0 is better in all panels. Top: loss after the decay at each
tier; points are seeds, a thin line joins the arms of a seed, bars are means. Where the search kept
nothing at a tier, its runs are those of the tier before: they are hollow, and a tier where no arm
has runs of its own has no column. What scalars and vectors gain on no multipliers at the first and
the last tier with runs is written, with 95% intervals over seeds. Middle: what vector multipliers
gain over training, batch by batch the same data, averaged over a window of steps; means of each
tier with 95% intervals. Bottom (ours): what an arm gains on NONE without multipliers, over the
FLOPs that the search had spent when it had found the arm's tuning; bars are 95% intervals. The
points of a line are, from left, NONE, LR, LRWD and FULL; a tier that tried nothing has none. Where
only NONE has runs, the FLOPs stand below the arms in the top row, and the bottom one is left out.
The csv has the number of trials too.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing import tiers
from analysis.drawing.style import OPTIMIZER_NAMES
from analysis.tables.context import Context
from analysis.tables.trials import TunedTables

EXPERIMENTS = ("tuning_ablation",)
# By scale; of one tier there are two rows.
MESSAGES = {
    "tiny": tiers.Messages(
        {"Adam": 4, "Muon": 4},
        (
            "Vectors lead at NONE (base LR tuned), trail at FULL, after a search that tied "
            "their LR",
            "Vectors keep an early lead only in NONE; with Muon also in LRWD, until LR decay",
            "Scalars, tuned in base LR only, bring most of full tuning's gain for a quarter of its "
            "FLOPs",
        ),
    ),
    "mini": tiers.Messages(
        {"Adam": 4, "Muon": 4},
        (
            "Vectors gain at NONE, and with AdamW with all tuned; the other gains are open",
            "At NONE the gain comes in the decay; where weight decay is tuned, before it",
            "With AdamW scalars, base LR tuned, gain more than full tuning without multipliers",
        ),
    ),
}
# What a tier tunes, and what the search at tiny alone did, in the words of the caption.
TUNED = {
    "NONE": "base LR",
    "LR": "also LRs of groups",
    "LRWD": "also weight decay",
    "FULL": "also forward factors",
}
TIED = (
    "the search tied: one factor for the LR of multipliers and that of norms, convolutions, biases"
)


def numbers(tables: dict[str, TunedTables]) -> pd.DataFrame:
    """As ``analysis.drawing.tiers.numbers``."""
    return tiers.numbers(tables["tuning_ablation"])


def draw(numbers: pd.DataFrame, context: Context):
    """As ``analysis.drawing.tiers.draw``."""
    of_each = tiers.by_optimizer(numbers)
    shown = {tier: [name for name, own in of_each.items() if tier in own] for tier in TUNED}
    shown = {tier: names for tier, names in shown.items() if names}
    parts = [f"{tier} {TUNED[tier]}" if len(shown) > 1 else TUNED[tier] for tier in shown]
    said = [f"tuned: {'; '.join(parts)}"]
    if context.scale == "tiny":
        said.append(TIED)
    for name in of_each:
        lone = [tier for tier, names in shown.items() if names == [name] != list(of_each)]
        if lone:
            said.append(f"{', '.join(lone)}: {OPTIMIZER_NAMES[name]} alone")
    return tiers.draw(numbers, context, MESSAGES, tuple(said))
