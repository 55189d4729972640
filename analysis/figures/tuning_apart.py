"""Figure 7 where the search set the multipliers' learning rate apart (section 5.1).

As figure 7, of a second search on new seeds: one factor for the multipliers' LR, another for that
of norms, convolutions and biases; scalars are tuned in every tier.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing import tiers
from analysis.drawing.page import written_of
from analysis.tables.context import Context
from analysis.tables.trials import TunedTables

EXPERIMENTS = ("tuning_apart",)
MESSAGES = tiers.Messages(
    {"Adam": 4, "Muon": 4},
    (
        "All tuned, AdamW: scalars gain little or nothing, vectors trail; Muon: neither matters",
        "Vectors keep an early lead at NONE, with Muon at LR = LRWD too, and nowhere else",
        "Scalars lead at every cost of the search with AdamW; with Muon until all is tuned",
    ),
)
# What a tier tunes, and how, in the words of the caption.
TUNED = (
    "tuned: NONE base LR; LR also LRs of groups; LRWD also weight decay; FULL also forward factors",
    "the search: factors apart for the LR of multipliers and that of norms, convolutions, biases",
)
# What other published seeds say.
LATER = "AdamW, FULL: eight later seeds, figure tuning_head, give scalars a gain of 0.002 ± 0.006"


def numbers(tables: dict[str, TunedTables]) -> pd.DataFrame:
    """As ``analysis.drawing.tiers.numbers``."""
    return tiers.numbers(tables["tuning_apart"])


def draw(numbers: pd.DataFrame, context: Context):
    """As ``analysis.drawing.tiers.draw``."""
    later = (LATER,) if written_of(context) else ()
    return tiers.draw(numbers, context, {"tiny": MESSAGES}, TUNED + later)
