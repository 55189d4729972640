"""The tuning ablation (section 5.1): losses by tier of tuning, what tuning costs, learned scales.

A configuration is an optimizer, a kind of multipliers and a tier: what is tuned beside the base LR.
A gap is the loss without multipliers minus that with them, so that a gain is positive.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.losses import in_bins
from analysis.quantities.norms import at_step
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables, kept
from analysis.tables.trials import TunedTables
from lrm.plan.config import ScheduleConfig, validate
from lrm.plan.schedule import lr_factors

OPTIMIZERS = {"ADAM": "Adam", "MUON": "Muon"}
# Nothing, LR of groups, their weight decay too, and forward factors too.
TIERS = ("NONE", "LR", "LRWD", "FULL")
TUNED = TIERS[1:]
WITHOUT, SCALAR, WITH = "none", "scalar", "vector"
_INFIXES = {WITHOUT: "", SCALAR: "_SCALAR", WITH: "_LRM"}
# What stands behind it where the search set the multipliers' LR apart (tuning_apart).
_APART = "_APART"
_LEVELS = ["optimizer", "multipliers", "tier"]
# Optimizer, multipliers and tier of each arm. Scalars are tuned in full where the LR is apart.
ARMS, APART = (
    {
        f"{optimizer}{infix}{apart if infix else ''}_{tier}": (name, kind, tier)
        for optimizer, name in OPTIMIZERS.items()
        for kind, infix in _INFIXES.items()
        for tier in (TIERS if kind != SCALAR or apart else TIERS[:1])
    }
    for apart in ("", _APART)
)
# Optimizer and kind of multipliers of arms of ``APART``, all tuned, in which the LM head has what
# it lacks there: scalars none, vectors a scalar.
OTHER_HEADS = {
    f"{optimizer}{infix}{_APART}_{head}": (name, kind)
    for optimizer, name in OPTIMIZERS.items()
    for infix, kind, head in (("_SCALAR", SCALAR, "NO_HEAD"), ("_LRM", WITH, "HEAD"))
}
# The constant stage is read in so many parts.
PARTS = 6
_MULTIPLIER_NORMS = ("row_multiplier_norm", "column_multiplier_norm", "scalar_multiplier_norm")


def arms_of(tables: Tables) -> dict[str, tuple[str, str, str]]:
    """``APART`` where there are runs of its own arms, else ``ARMS``."""
    return APART if tables.runs["arm"].isin(APART.keys() - ARMS.keys()).any() else ARMS


def losses(tables: Tables) -> pd.DataFrame:
    """Validation losses after the decay: seeds in rows; optimizer, multipliers, tier in columns."""
    return _validation_losses(tables, np.inf)


def losses_with_other_heads(tables: Tables) -> pd.DataFrame:
    """Those after the decay of ``OTHER_HEADS``: seeds in rows, (optimizer, multipliers) in columns.

    nan where an arm is missing.
    """
    rows = at_step(tables.pick(kind="train", stat="validation_loss"), np.inf)
    table = rows.pivot(index="seed", columns="arm", values="value").reindex(columns=OTHER_HEADS)
    table.columns = pd.MultiIndex.from_tuples(OTHER_HEADS.values(), names=_LEVELS[:2])
    return table


def losses_before_decay(tables: Tables) -> pd.DataFrame:
    """The same at the end of the constant stage."""
    return _validation_losses(tables, tables.stage_end)


@kept
def _validation_losses(tables: Tables, step: float) -> pd.DataFrame:
    rows = at_step(tables.pick(kind="train", stat="validation_loss"), step)
    return _by_configuration(tables, rows.pivot(index="seed", columns="arm", values="value"))


def _by_configuration(tables: Tables, table: pd.DataFrame) -> pd.DataFrame:
    """A table with arms in columns as one with their configurations there; nan where missing."""
    arms = arms_of(tables)
    table = table.reindex(columns=list(arms))
    table.columns = pd.MultiIndex.from_tuples(arms.values(), names=_LEVELS)
    return table


@kept
def gaps(tables: Tables, probes: int = 1) -> pd.DataFrame:
    """Gaps of the training loss, paired by batch: (seed, step) × (optimizer, tier).

    Each is a mean over a window of ``probes`` intervals between probes, which ends at ``step``.
    Published losses are such means over one interval, so that both give the same numbers.
    """
    every = tables.settings["probes"]["every"]
    rows = in_bins(tables.pick(kind="train", stat="train_loss"), every)
    table = rows.pivot_table("value", ["seed", "step"], "arm", aggfunc="mean")
    if probes > 1:
        steps = table.index.get_level_values("step")
        windows = pd.Index(-(-steps // (probes * every)) * probes * every, name="step")
        table = table.groupby([table.index.get_level_values("seed"), windows]).mean()
    table = _by_configuration(tables, table)
    with_them = table.xs(WITH, axis=1, level="multipliers")
    return table.xs(WITHOUT, axis=1, level="multipliers") - with_them


def gap_in(tables: Tables, optimizer: str, part: int) -> pd.Series:
    """Mean gap over tiers in one of six parts of the constant stage (1 is the first), by seed.

    Read from the intervals between probes that lie inside as a whole; nan where none does.
    """
    every, end = tables.settings["probes"]["every"], tables.stage_end
    table = gaps(tables)[optimizer].mean(axis=1, skipna=False)
    steps = table.index.get_level_values("step")
    low, high = (part - 1) * end / PARTS, part * end / PARTS
    inside = table[(steps - every >= low) & (steps <= high)]
    return inside.groupby("seed").mean().reindex(table.index.unique("seed"))


@kept
def costs(tables: TunedTables) -> pd.DataFrame:
    """What the search had spent when it had found each tier: trials, tokens and flops.

    Rows are optimizer, multipliers and tier. A search that is not in the log has nan, and so has a
    tier without runs, which it may not have reached. Raises NothingFound where there is no log.
    """
    spent = tables.trials.assign(trials=1).groupby(["arm", "stage"])[["trials", "tokens", "flops"]]
    by_stage = spent.sum()
    # The search has one arm for all tiers; a stage that needed no trial has no line in the log.
    searched = {
        arm: stages.droplevel("arm").reindex(TIERS, fill_value=0).cumsum()
        for arm, stages in by_stage.groupby("arm")
    }
    found, trained = {}, set(tables.runs["arm"])
    for name, configuration in arms_of(tables).items():
        arm, _, tier = name.rpartition("_")
        if arm in searched and name in trained:
            found[configuration] = searched[arm].loc[tier]
    every = pd.MultiIndex.from_tuples(arms_of(tables).values(), names=_LEVELS)
    return pd.DataFrame(found, by_stage.columns, every).T


def kept_nothing(tables: Tables, optimizer: str, multipliers: str, tier: str) -> bool:
    """Whether the search kept nothing in a tier, so that its runs are those of the tier before.

    Not so where one of the two has no runs, because no search has come so far.
    """
    runs = tables.trained.drop_duplicates("arm").set_index("arm")["description"]
    arms = {configuration: arm for arm, configuration in arms_of(tables).items()}
    pair = [arms[optimizer, multipliers, TIERS[TIERS.index(tier) - back]] for back in (0, 1)]
    if not set(pair) <= set(runs.index):
        return False
    now, then = runs[pair]
    return now["settings"] == then["settings"]


@kept
def scales(tables: Tables) -> pd.DataFrame:
    """What tuning and what training find for each tensor: its forward factor, its multipliers.

    Columns: optimizer, seed, tensor, layer, tuned, learned. ``tuned`` is the forward factor of FULL
    without multipliers over that of NONE. ``learned`` is the product of the root mean squares of
    the multipliers of LRWD, where they begin at 1, at the end of the constant stage. Raises
    NothingFound where an arm that it reads has no runs.
    """
    runs = tables.trained.drop_duplicates("arm").set_index("arm")["description"]
    read = [f"{optimizer}_{tier}" for optimizer in OPTIMIZERS for tier in ("NONE", "FULL")]
    if lacking := [arm for arm in read if arm not in runs.index]:
        raise NothingFound(f"no runs of {', '.join(lacking)}; make tune finds what they train")
    parts = []
    for optimizer, name in OPTIMIZERS.items():
        tuned, plain = (
            {r["tensor"]: r["forward"] for r in runs[arm]["rules"] if r["multiplier"] is None}
            for arm in (f"{optimizer}_FULL", f"{optimizer}_NONE")
        )
        vectors = [arm for arm, found in arms_of(tables).items() if found == (name, WITH, "LRWD")]
        norms = tables.pick(kind="train", arm=tuple(vectors), stat=_MULTIPLIER_NORMS)
        norms = at_step(norms[norms["value"].notna()], tables.stage_end)
        keys = ["seed", "tensor", "layer"]
        learned = norms.groupby(keys, dropna=False)["value"].prod().rename("learned").reset_index()
        names = pd.Series(
            [
                tensor if pd.isna(layer) else f"{tensor}@{int(layer)}"
                for tensor, layer in zip(learned["tensor"], learned["layer"], strict=True)
            ],
            dtype=object,
        )
        learned["tuned"] = names.map(tuned) / names.map(plain)
        parts.append(learned.assign(optimizer=name))
    columns = ["optimizer", "seed", "tensor", "layer", "tuned", "learned"]
    return pd.concat(parts, ignore_index=True)[columns]


def agreement(found: pd.DataFrame) -> pd.DataFrame:
    """Correlation over tensors of ln ``learned`` with ln ``tuned``: optimizers in columns, by seed.

    ``found`` are ``scales``. It is nan where all tensors have one factor.
    """

    def correlation(rows: pd.DataFrame) -> float:
        if rows["tuned"].nunique() < 2 or rows["learned"].nunique() < 2:
            return np.nan
        return float(np.corrcoef(np.log(rows["tuned"]), np.log(rows["learned"]))[0, 1])

    groups = found.groupby(["seed", "optimizer"])[["tuned", "learned"]]
    return groups.apply(correlation).unstack()


@kept
def noise_product(tables: Tables, optimizer: str, draws: int = 4096) -> float:
    """What ``learned`` of ``scales`` would be if gradients of multipliers were pure noise.

    AdamW moves independent multipliers from 1, with the settings and steps of LRWD; the product of
    the root mean squares of two such sets.
    """
    runs = tables.trained.drop_duplicates("arm").set_index("arm")["description"]
    arm = next(a for a, found in arms_of(tables).items() if found == (optimizer, WITH, "LRWD"))
    settings = runs[arm]["settings"]
    own, adam = settings["multipliers"], settings["optimizer"]
    schedule = validate(ScheduleConfig, settings["schedule"], "schedule")
    factors = lr_factors(schedule, settings["train"]["steps"])[: tables.stage_end]
    normal = np.random.default_rng(0).standard_normal
    values, first, second = np.ones(draws), np.zeros(draws), np.zeros(draws)
    for step, lr in enumerate(own["lr"] * factors, start=1):
        gradient = normal(draws)
        first += (1 - adam["beta1"]) * (gradient - first)
        second += (1 - adam["beta2"]) * (gradient**2 - second)
        moved = first / (1 - adam["beta1"] ** step) / np.sqrt(second / (1 - adam["beta2"] ** step))
        values -= lr * (own["weight_decay"] * values + moved)
    return float(np.mean(values**2))
