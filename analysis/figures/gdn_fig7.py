"""Figure 7 of the third paper: which learning rate (LR) is best at each width, under SGD.

As figure 3, for three recipes: SP, muP as it was before the paper, and the paper's.
"""

from __future__ import annotations

import pandas as pd

from analysis.drawing.transfer import MUP, ONE_LR, of_recipes
from analysis.figures.gdn_fig3 import panels
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"gdn_transfer_sgd": ("SP *", "ORIGINAL *", "PAPER *")}
LOOKS = {
    "SP": (*ONE_LR, "SP"),
    "ORIGINAL": ("#B8860B", "^", "earlier muP"),
    "PAPER": (*MUP, "the paper's recipe"),
}
MESSAGE = (
    "Under SGD muP before the paper and the paper's recipe cannot be told apart;\n"
    "the best LR moves a little with every recipe"
)


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """As ``of_recipes``."""
    return of_recipes(tables["gdn_transfer_sgd"], LOOKS)


def draw(numbers: pd.DataFrame, context: Context):
    """Three recipes and their best LRs."""
    said = "at the smallest $d$ recipes are one model"
    return panels(numbers, context, LOOKS, MESSAGE, said)
