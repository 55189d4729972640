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


def course_of_gap(tables: Tables, arm: str, against: str) -> pd.DataFrame:
    """Gap of the training loss over training, means between two probes: seeds × shares of steps.

    Both arms see the same batches.
    """
    settings = tables.runs.loc[tables.runs["arm"] == arm, "description"].iloc[0]["settings"]
    losses = tables.pick(kind="train", arm=(arm, against), stat="train_loss")
    losses = in_bins(losses, settings["probes"]["every"])
    means = losses.pivot_table("value", ["seed", "step"], "arm")
    gaps = (means[arm] - means[against]).unstack("step")
    steps = settings["train"]["steps"]
    return gaps.rename(columns=lambda step: min(step / steps, 1.0)).rename_axis(columns="share")


def at_share(gaps: pd.DataFrame, share: float) -> pd.Series:
    """The gap between two probes, of which the second stands at ``share`` or next behind it."""
    columns = gaps.columns.to_numpy()
    return gaps.iloc[:, int(np.searchsorted(columns, share - 1e-9))]


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


def growth_at_start(tables: Tables, arm: str) -> pd.DataFrame:
    """The step 0 that ``excess_growth`` leaves out: what is drawn there differs by chance alone."""
    norms = tables.pick(stat="weight_norm", tensor=BRANCHES)
    norms = norms[norms["step"] == 0].assign(value=lambda rows: np.log(rows["value"]))
    own = norms[(norms["kind"] == "train") & (norms["arm"] == arm)]
    noise = norms[norms["kind"] == "brownian"].groupby("tensor")["value"].mean()
    measured = own.groupby(["seed", "step", "tensor"])["value"].mean().unstack("tensor")
    return measured[list(BRANCHES)] - noise[list(BRANCHES)].to_numpy()


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
