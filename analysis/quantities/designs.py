"""What the experiments on scale vectors compare (second paper): losses of two designs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.losses import final_losses, in_bins
from analysis.tables.results import Tables

BRANCHES = ("attention.q", "attention.k", "attention.v")


def gap(tables: Tables, arm: str, against: str) -> pd.Series:
    """Loss after the decay of ``arm`` less that of ``against``, in nats per token, by seed."""
    losses = final_losses(tables)
    both = losses[losses["arm"].isin((arm, against))]
    by_arm = both.pivot(index="seed", columns="arm", values="value")
    return by_arm[arm] - by_arm[against]


def scale_gap(tables: Tables, arm: str, size: float) -> pd.Series:
    """Loss after the decay of ``arm`` at S = ``size`` less that at S = 1, in nats, by seed."""
    losses = final_losses(tables)
    by_size = losses[losses["arm"] == arm].pivot(index="seed", columns="S", values="value")
    return by_size[size] - by_size[1.0]


def train_gap(tables: Tables, arm: str, against: str, share: float) -> pd.Series:
    """Training loss of ``arm`` less that of ``against`` after ``share`` of the steps, by seed.

    Both see the same batches. It is the mean over the steps between two probes, as published losses
    are, of which the second stands at ``share`` of the steps or next behind it.
    """
    settings = tables.runs.loc[tables.runs["arm"] == arm, "description"].iloc[0]["settings"]
    every = settings["probes"]["every"]
    losses = in_bins(tables.pick(arm=(arm, against), stat="train_loss"), every)
    wanted = -(-share * losses["step"].max() // every) * every
    means = losses[losses["step"] == wanted].pivot_table("value", "seed", "arm")
    return means[arm] - means[against]


def excess_growth(tables: Tables, arm: str) -> pd.DataFrame:
    """How much larger each branch's matrix is than noise makes it, over training.

    ln(‖W‖ / ‖W‖ of its Brownian motion), means over layers (and over draws, of ln), in which the
    same schedule acts. Rows (seed, step), columns ``BRANCHES``; the step 0 is left out.
    """
    norms = tables.pick(stat="weight_norm", tensor=BRANCHES)
    norms = norms[norms["step"] > 0].assign(value=lambda rows: np.log(rows["value"]))
    own = norms[(norms["kind"] == "train") & (norms["arm"] == arm)]
    noise = norms[norms["kind"] == "brownian"]
    measured = own.groupby(["seed", "step", "tensor"])["value"].mean().unstack("tensor")
    expected = noise.groupby(["step", "tensor"])["value"].mean().unstack("tensor")
    steps = measured.index.get_level_values("step")
    measured, steps = measured[steps.isin(expected.index)], steps[steps.isin(expected.index)]
    return measured[list(BRANCHES)] - expected.loc[steps, list(BRANCHES)].to_numpy()


def branch_spread(growth: pd.DataFrame) -> pd.Series:
    """By seed the largest distance between two branches of ``excess_growth`` at one step."""
    return (growth.max(axis=1) - growth.min(axis=1)).groupby("seed").max()


def branch_pattern(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """By seed the correlation of two ``excess_growth``, each less its mean over branches.

    Over steps and branches: 1 where the same branches grow and decay at the same times.
    """
    centred = [each.sub(each.mean(axis=1), axis=0).stack() for each in (one, other)]
    both = pd.concat(centred, axis=1, keys=("one", "other")).dropna()
    return both.groupby("seed").apply(lambda rows: rows["one"].corr(rows["other"]))
