"""Figure 7 of the second paper: the unified design with a mixture of experts.

a: gap of the training loss over training, unified less standard on the same batches. b: the gap of
the loss after the decay; below 0, and left of it, the unified design is ahead.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.designs import OPTIMIZERS
from analysis.drawing.pairs import draw_pairs, numbers_of
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"sv_unified": ("STANDARD *", "UNIFIED *", "MOE_*")}
PAIRS = {
    "mixture of experts": ("MOE_UNIFIED", "MOE_STANDARD", "#607D8B", "s"),
    "dense": ("UNIFIED", "STANDARD", OPTIMIZERS["AdamW"], "o"),
}

MESSAGE = "The unified design gains with a mixture of experts too"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, share (of the steps), value (nats per token)."""
    return numbers_of(tables["sv_unified"], PAIRS)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    return draw_pairs(numbers, context, PAIRS, MESSAGE)
