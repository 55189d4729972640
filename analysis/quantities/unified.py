"""The unified design of scale vectors against standard vectors, over sizes and over training.

A gap is the loss of the unified design less that of standard vectors, in nats per token, by seed;
below 0 the unified design is ahead.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.quantities.designs import gap
from analysis.quantities.losses import final_losses
from analysis.tables.results import Tables, kept

STANDARD, UNIFIED = "STANDARD", "UNIFIED"


def named(ending: str) -> tuple[str, str]:
    """The arms whose names have this ending, unified first."""
    return f"{UNIFIED}{ending}", f"{STANDARD}{ending}"


@kept
def sizes(tables: Tables) -> pd.DataFrame:
    """The sizes of which both designs were trained, from the smallest.

    Index: the ending of their names. Columns ``parameters``, those of the standard design, and
    ``width``.
    """
    runs = tables.trained.drop_duplicates("arm").set_index("arm")["description"]
    found = {}
    for arm, description in runs.items():
        ending = arm.removeprefix(STANDARD)
        if arm.startswith(STANDARD) and UNIFIED + ending in runs:
            shapes = (rule["shape"] for rule in description["rules"] if not rule["multiplier"])
            count = sum(map(math.prod, shapes))
            found[ending] = (count, description["settings"]["model"]["hidden_size"])
    table = pd.DataFrame.from_dict(found, orient="index", columns=["parameters", "width"])
    return table.sort_values("parameters")


def constant_share(tables: Tables, arm: str) -> float:
    """The share of its steps after which the LR of ``arm`` begins to fall."""
    settings = tables.runs.loc[tables.runs["arm"] == arm, "description"].iloc[0]["settings"]
    return 1 - settings["schedule"]["decay_steps"] / settings["train"]["steps"]


@kept
def slopes(tables: Tables) -> pd.DataFrame:
    """By seed and design the exponent b of loss ∝ parameters^(−b), least squares over sizes."""
    logs = np.log(sizes(tables)["parameters"].astype(float))
    losses = final_losses(tables)
    found = {}
    for design in (STANDARD, UNIFIED):
        arms = {design + ending: ending for ending in logs.index}
        own = losses[losses["arm"].isin(arms)]
        table = own.assign(ending=own["arm"].map(arms)).pivot(
            index="seed", columns="ending", values="value"
        )
        table = np.log(table[list(logs.index)].astype(float))
        found[design] = -table.apply(lambda row: np.polyfit(logs, row, 1)[0], axis=1)
    return pd.DataFrame(found)


def size_gaps(tables: Tables) -> dict[str, pd.Series]:
    """The gap of the loss after the decay at each size, by the ending of the arms' names."""
    return {ending: gap(tables, *named(ending)) for ending in sizes(tables).index}
