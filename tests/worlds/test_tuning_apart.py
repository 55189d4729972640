"""Planted worlds of the tuning ablation with the multipliers' LR apart: T1.2 to T9."""

import functools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, OPEN, REFUTED
from analysis.quantities.tuning_ablation import APART, ARMS, OTHER_HEADS, TIERS, losses
from analysis.tables.trials import TunedTables
from tests.worlds.planted import check_breaks, frame, judged, noise, part, runs_of, verdicts
from tests.worlds.test_tuning_ablation import world as tied

SEEDS = range(110, 118)
SETTINGS = {"train": {"steps": 300}, "schedule": {"decay_steps": 60}, "probes": {"every": 5}}


@functools.cache
def heads(adam=(0.05, 0.04, 0.02, 0.05, 0.02), muon=(0.05, 0.04, 0.02, 0.05, 0.02), without=()):
    """Losses of FULL: no multipliers, vectors, these with a scalar on the LM head, scalars without
    one there, and scalars. Arms of ``without`` are missing.
    """
    full = {arm: of for arm, of in APART.items() if of[2] == "FULL"}
    places = {(kind, arm in OTHER_HEADS): n for n, (kind, arm) in enumerate((
        ("none", "ADAM_FULL"), ("vector", "ADAM_LRM_APART_FULL"), ("vector", "ADAM_LRM_APART_HEAD"),
        ("scalar", "ADAM_SCALAR_APART_NO_HEAD"), ("scalar", "ADAM_SCALAR_APART_FULL"),
    ))}  # fmt: skip
    levels = {"Adam": adam, "Muon": muon}
    arms = [arm for arm in (*full, *OTHER_HEADS) if arm not in without]
    rows = [
        {"arm": arm, "seed": seed, "step": 300, "tensor": "model", "stat": "validation_loss",
         "value": 3.2 + levels[optimizer][places[kind, arm in OTHER_HEADS]]
                  + noise(seed, size=0.03) + noise(arm, seed, size=0.002)}
        for arm in arms
        for optimizer, kind in [(full.get(arm) or OTHER_HEADS[arm])[:2]]
        for seed in range(118, 126)
    ]  # fmt: skip
    return TunedTables(runs_of(arms, range(118, 126), SETTINGS), frame(rows))


def test_what_a_scalar_on_the_head_gains():
    check_breaks("T9", heads, {
        f"{other}: {piece}": {name: losses_of}
        for name, other in (("adam", "Adam"), ("muon", "Muon"))
        for piece, losses_of in {
            "no multipliers": (0.0, 0.04, 0.02, 0.05, 0.02),
            "vectors −": (0.05, 0.0, 0.02, 0.05, 0.02),
            "scalars but": (0.05, 0.04, 0.02, 0.0, 0.02),
        }.items()
    })  # fmt: skip
    assert part("T9", heads(), "Adam: no multipliers").interval.mean == pytest.approx(
        0.03, abs=3e-3
    )
    level = judged("T9", heads(muon=(0.02, 0.021, 0.02, 0.05, 0.02)))
    assert level.groups["Muon, beside vectors"] == BELOW
    found = verdicts("T9", heads(without=("MUON_LRM_APART_HEAD",)))
    assert sorted(name for name, verdict in found.items() if verdict == OPEN) == [
        "Muon: no multipliers − vectors and a scalar on the LM head",
        "Muon: vectors − vectors and a scalar on the LM head",
    ]


@functools.cache
def world(adam=(0.04, 0.03, 0.0), muon=(0.04, 0.03, 0.0), also=()):
    """Losses of FULL without multipliers, with vectors and with scalars; other tiers lie above."""
    levels = {"Adam": adam, "Muon": muon}
    kinds = ("none", "vector", "scalar")
    rows = [
        {"arm": arm, "seed": seed, "step": 300, "tensor": "model", "stat": "validation_loss",
         "value": 3.2 + levels[optimizer][kinds.index(kind)] + 0.01 * (3 - TIERS.index(tier))
                  + noise(seed, size=0.03) + noise(arm, seed, size=0.002)}
        for arm, (optimizer, kind, tier) in APART.items()
        for seed in SEEDS
    ]  # fmt: skip
    return TunedTables(runs_of(APART, SEEDS, SETTINGS), frame(rows))


def test_each_part_has_a_world_that_breaks_it_alone():
    check_breaks("T8", world, {
        "Adam: no multipliers": {"adam": (-0.02, 0.03, 0.0)},
        "Muon: no multipliers": {"muon": (-0.02, 0.03, 0.0)},
        "Adam: vectors": {"adam": (0.04, -0.02, 0.0)},
        "Muon: vectors": {"muon": (0.04, -0.02, 0.0)},
    })  # fmt: skip
    behind = world(adam=(-0.02, 0.005, 0.0))
    assert judged("T8", behind).groups["Adam, against no multipliers"] == REFUTED
    assert judged("T8", behind).groups["Adam, against vectors"] == BELOW


def test_an_arm_that_is_missing_leaves_its_parts_open():
    whole = world()
    rows = whole.scalars[whole.scalars["arm"] != "MUON_SCALAR_APART_FULL"]
    found = verdicts("T8", TunedTables(whole.runs, rows))
    assert {name for name, verdict in found.items() if verdict == OPEN} == {
        name for name in found if name.startswith("Muon")
    }


@pytest.mark.parametrize("number", range(1, 8))
def test_arms_of_the_second_search_are_read_as_those_of_the_first(number):
    """The same numbers under the other names give the same estimates."""
    first = tied()
    names = {of: arm for arm, of in APART.items()}
    other = {arm: names[of] for arm, of in ARMS.items()}
    searches = {arm.rpartition("_")[0]: new.rpartition("_")[0] for arm, new in other.items()}
    runs, scalars, trials = (
        table.assign(arm=table["arm"].map(renamed))
        for table, renamed in (
            (first.runs, other), (first.scalars, other), (first.trials, searches)
        )
    )  # fmt: skip
    second = TunedTables(runs, scalars, trials=trials)
    assert losses(second)["Adam", "scalar", "FULL"].isna().all()
    one, two = judged(f"T{number}", first), judged(f"T{number}.2", second)
    pairs = zip([*one.parts, *one.contrast], [*two.parts, *two.contrast], strict=True)
    for mine, theirs in pairs:
        assert mine.name == theirs.name
        assert np.isclose(mine.interval.mean, theirs.interval.mean, equal_nan=True)
        assert part(f"T{number}", first, mine.name).interval == mine.interval
    assert pd.notna([each.interval.mean for each in two.parts]).all()
