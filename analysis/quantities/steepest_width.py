"""Stability criteria over the width while models train (*Beyond MuP 3*).

Criteria are those of ``lrm.optim.criteria``: of layers, and of the update of a step. Values are by
seed, of geometric means over the tensors of a kind and over layers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept

# Of each kind the beginnings of its tensors' names.
KINDS = {
    "embedding": ("embedding",),
    "linear layers": ("attention.", "mlp."),
    "head": ("projector",),
    "gains": ("norm.",),
}
STATS = {"layers": "criterion", "updates": "update_criterion"}


@kept
def course(tables: Tables, of: str, kind: str, arm: str, u: float) -> pd.DataFrame:
    """Rows: seed, width, step, value, of ``layers`` or ``updates`` while the arm trains at u."""
    rows = tables.pick(arm=arm, u=u, stat=STATS[of])
    rows = rows[rows["tensor"].astype(str).str.startswith(KINDS[kind]) & (rows["value"] > 0)]
    logs = np.log(rows["value"]).groupby([rows["seed"], rows["width"], rows["step"]]).mean()
    return np.exp(logs).rename("value").reset_index()


def moments(tables: Tables, of: str) -> dict[str, int]:
    """Steps at which criteria are compared: the first that was measured, the middle, the last.

    The middle is the last probe of the first half.
    """
    steps = sorted(tables.pick(stat=STATS[of])["step"].unique())
    last = tables.settings["train"]["steps"]
    middle = max(step for step in steps if step <= max(last / 2, steps[0]))
    first = "at the start" if steps[0] == 0 else f"after {steps[0]:g} steps"
    return {first: steps[0], "halfway": middle, "at the end": last}


def exponent(tables: Tables, of: str, kind: str, arm: str, u: float, step: int) -> pd.Series:
    """Of the width at a step; nan where a run of the seed had ended before."""
    rows = course(tables, of, kind, arm, u)
    every = tables.pick(arm=arm, u=u)
    at = rows[rows["step"] == step].pivot(index="seed", columns="width", values="value")
    at = at.reindex(index=sorted(every["seed"].unique()), columns=sorted(every["width"].unique()))
    return at.apply(lambda row: log_slope(row.index, row), axis=1)


def of_width(tables: Tables, kind: str, arm: str, u: float, width: float, step: int) -> pd.Series:
    """The criterion of layers of a kind at a step."""
    rows = course(tables, "layers", kind, arm, u)
    return rows[(rows["step"] == step) & (rows["width"] == width)].set_index("seed")["value"]


def input_norm(tables: Tables, arm: str, u: float, width: float, step: int) -> pd.Series:
    """The mean norm of what the head reads, behind the final norm's gain."""
    rows = tables.pick(arm=arm, u=u, width=width, stat="activation_norm", tensor="norm.final")
    return rows[rows["step"] == step].set_index("seed")["value"]
