"""Figure 8 of the second paper: the unified design with Muon, beside AdamW.

a: gap of the training loss over training, unified less standard on the same batches. b: the gap of
the loss after the decay; below 0, and left of it, the unified design is ahead. With Muon its median
is drawn, as SV20.2 judges it: single seeds jump. At its own LR it is
drawn where that is another than that of standard vectors.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.axes import judging_alone
from analysis.drawing.designs import OPTIMIZERS
from analysis.drawing.pairs import draw_pairs, numbers_of
from analysis.drawing.style import shade
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = {
    "sv_unified": ("STANDARD *", "UNIFIED *", "UNIFIED_TUNED *"),
    "sv_unified/muon": "SV20.2",
}
OWN = "AdamW, own LR"
PAIRS = {
    "Muon": ("MUON_UNIFIED", "MUON_STANDARD", OPTIMIZERS["Muon"], "s"),
    "AdamW": ("UNIFIED", "STANDARD", OPTIMIZERS["AdamW"], "o"),
    OWN: ("UNIFIED_TUNED", "STANDARD", shade(OPTIMIZERS["AdamW"], 0.35), "^"),
}

MESSAGE = "The unified design gains with both optimizers, in 8 of Muon's 24 seeds over 0.1 nats"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: panel, name, seed, share (of the steps), value (nats per token)."""
    table = tables["sv_unified"]
    runs = table.trained.drop_duplicates("arm").set_index("arm")["description"]
    rates = {arm: runs[arm]["settings"]["optimizer"]["lr"] for arm in ("UNIFIED_TUNED", "STANDARD")}
    same = len(set(rates.values())) == 1
    left_out = {"Muon", OWN} if same else {"Muon"}
    pairs = {name: pair for name, pair in PAIRS.items() if name not in left_out}
    muon = numbers_of(tables["sv_unified/muon"], {"Muon": PAIRS["Muon"]})
    muon = judging_alone(muon, criteria_of("sv_unified")["SV20.2"])
    return pd.concat([muon, numbers_of(table, pairs)], ignore_index=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels."""
    return draw_pairs(numbers, context, PAIRS, MESSAGE, robust={"Muon"})
