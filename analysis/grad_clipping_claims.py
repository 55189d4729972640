"""Judging functions of C0 to C2: multipliers in or out of the norm that clips (section 4.3)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.judging import Judgement, at_least, at_most
from analysis.losses import final_losses

INCLUDED, EXCLUDED, NONE = "INCLUDED", "EXCLUDED", "NONE"
# "Early" is this share of all steps.
EARLY = 0.1


def gradient_norms(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Columns arm, seed, step, quantity, value: L2 norms of gradients before clipping.

    ``quantity`` is ``tensors`` (all but multipliers), ``multipliers`` and ``all``. Probes see
    gradients after clipping; that of the arm whose multipliers are in the norm has scaled all
    alike, and elsewhere it left multipliers alone.
    """
    trained = runs[runs["kind"] == "train"]
    sizes = {
        (row.arm, rule["tensor"], rule["multiplier"] or ""): float(np.prod(rule["shape"]))
        for row in trained.drop_duplicates("arm").itertuples()
        for rule in row.description["rules"]
    }
    whole = frame[frame["stat"] == "global_gradient_norm"].set_index(["arm", "seed", "step"])
    probed = frame[frame["stat"].str.endswith("gradient_norm")]
    probed = probed[probed["stat"] != "global_gradient_norm"]
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
    found = pd.DataFrame(index=squares.index)
    clipping = whole["value"].reindex(squares.index)
    inside = squares.index.get_level_values("arm") == INCLUDED
    after = np.sqrt(squares.sum(axis=1).where(inside, squares["tensors"]))
    factor = clipping / after
    found["tensors"] = np.sqrt(squares["tensors"]) * factor
    found["multipliers"] = np.sqrt(squares["multipliers"]) * factor.where(inside, 1.0)
    found["all"] = np.hypot(found["tensors"], found["multipliers"])
    return found.rename_axis(columns="quantity").stack().rename("value").reset_index()


def early(frame: pd.DataFrame) -> pd.DataFrame:
    """The part of the table that is early in training."""
    return frame[frame["step"].between(1, EARLY * frame["step"].max())]


def c0(frame, runs, criterion) -> Judgement:
    """Loss with multipliers in the norm minus that without multipliers, paired."""
    losses = final_losses(frame)
    gap = losses[INCLUDED] - losses[NONE]
    found = [at_least("included − no multipliers (nats)", gap, -criterion["thresholds"]["margin"])]
    return _clipping(frame, criterion, found)


def c1(frame, runs, criterion) -> Judgement:
    """Early in training: multipliers' share of the squared norm, and how much is clipped."""
    limits = criterion["thresholds"]
    norms = early(gradient_norms(frame, runs))
    included = norms[norms["arm"] == INCLUDED].pivot_table("value", ["seed", "step"], "quantity")
    share = (included["multipliers"] / included["all"]) ** 2
    clipped = _clipped(frame)
    # Of all early steps: what is left out of the norm is not in the global one.
    excluded = frame[(frame["arm"] == EXCLUDED) & (frame["stat"] == "global_gradient_norm")]
    largest = early(excluded).groupby("seed")["value"].max()
    found = [
        at_least("multipliers' share of the squared norm", _mean(share), limits["share"]),
        at_least("included: share of steps clipped", clipped[INCLUDED], limits["clipped"]),
        at_most("excluded: largest norm", largest, limits["below"]),
        at_most("excluded: share of steps clipped", clipped[EXCLUDED], limits["free"]),
    ]
    return Judgement(found, criterion["seeds"]["minimum"])


def c2(frame, runs, criterion) -> Judgement:
    """Loss with multipliers in the norm minus that with them left out, paired."""
    losses = final_losses(frame)
    gap = losses[INCLUDED] - losses[EXCLUDED]
    found = [at_least("included − excluded (nats)", gap, criterion["thresholds"]["better"])]
    return _clipping(frame, criterion, found)


def _clipping(frame: pd.DataFrame, criterion: dict, found: list) -> Judgement:
    """A difference of losses means something only where an arm clips."""
    clipped = _clipped(frame)[INCLUDED]
    contrast = [at_least("included: early steps clipped", clipped, criterion["clips"])]
    losses = final_losses(frame)
    means = (losses.sub(losses[NONE], axis=0)).mean()
    note = "minus no multipliers: " + ", ".join(
        f"{arm.lower()} {means[arm]:+.4f}" for arm in (EXCLUDED, INCLUDED)
    )
    return Judgement(found, criterion["seeds"]["minimum"], note, contrast=contrast)


def _clipped(frame: pd.DataFrame) -> pd.DataFrame:
    """Share of early steps that were clipped, seeds in rows and arms in columns."""
    chosen = early(frame[frame["stat"] == "clipped_fraction"])
    return chosen.pivot_table("value", "seed", "arm", aggfunc="mean")


def _mean(values: pd.Series) -> pd.Series:
    return values.groupby("seed").mean()


JUDGES = {"C0": c0, "C1": c1, "C2": c2}
