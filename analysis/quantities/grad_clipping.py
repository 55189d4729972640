"""Norms of gradients, with multipliers' in or out of the norm that clips (section 4.3)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.tables.results import Tables, kept

INCLUDED, EXCLUDED, NONE = "INCLUDED", "EXCLUDED", "NONE"
# "Early" is this share of all steps.
EARLY = 0.1


@kept
def gradient_norms(tables: Tables) -> pd.DataFrame:
    """Columns arm, seed, step, quantity, value: L2 norms of gradients before clipping.

    ``quantity`` is ``tensors`` (all but multipliers), ``multipliers`` and ``all``. Probes see
    gradients after clipping; that of the arm whose multipliers are in the norm has scaled all
    alike, and elsewhere it left multipliers alone.
    """
    sizes = {
        (row.arm, rule["tensor"], rule["multiplier"] or ""): float(np.prod(rule["shape"]))
        for row in tables.trained.drop_duplicates("arm").itertuples()
        for rule in row.description["rules"]
    }
    whole = tables.pick(stat="global_gradient_norm").set_index(["arm", "seed", "step"])
    stats = tables.scalars["stat"].unique()
    probed = tables.pick(stat=tuple(
        stat for stat in stats if stat.endswith("gradient_norm") and not stat.startswith("global")
    ))  # fmt: skip
    axis = probed["stat"].str.extract(r"^(\w+)_multiplier_gradient_norm$")[0].fillna("")
    layer = probed["layer"].map(lambda layer: "" if pd.isna(layer) else f"@{int(layer)}")
    keys = zip(probed["arm"], probed["tensor"] + layer, axis, strict=True)
    size = np.array([sizes[key] for key in keys])
    parts = probed.assign(
        square=size * probed["value"] ** 2,
        part=np.where(axis != "", "multipliers", "tensors"),
    )
    squares = parts.pivot_table("square", ["arm", "seed", "step"], "part", aggfunc="sum")
    squares = squares.reindex(columns=["tensors", "multipliers"]).fillna(0.0)
    clipping = whole["value"].reindex(squares.index)
    inside = squares.index.get_level_values("arm") == INCLUDED
    after = np.sqrt(squares.sum(axis=1).where(inside, squares["tensors"]))
    factor = clipping / after
    norms = np.sqrt(squares[["tensors", "multipliers"]])
    norms["tensors"] *= factor
    norms["multipliers"] *= factor.where(inside, 1.0)
    norms["all"] = np.hypot(norms["tensors"], norms["multipliers"])
    return norms.rename_axis(columns="quantity").stack().rename("value").reset_index()


def early(frame: pd.DataFrame) -> pd.DataFrame:
    """The part of the table that is early in training."""
    return frame[frame["step"].between(1, EARLY * frame["step"].max())]


def clipped(tables: Tables) -> pd.DataFrame:
    """Share of early steps that were clipped, seeds in rows and arms in columns."""
    chosen = early(tables.pick(stat="clipped_fraction"))
    return chosen.pivot_table("value", "seed", "arm", aggfunc="mean")
