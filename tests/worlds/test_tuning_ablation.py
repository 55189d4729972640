"""Planted worlds of the tuning ablation: T1 to T7."""

import functools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.quantities.tuning_ablation import ARMS, OPTIMIZERS, TIERS
from analysis.tables.find import NothingFound
from analysis.tables.trials import TunedTables
from tests.worlds.planted import check_breaks, judged, noise, part, verdicts

SEEDS = range(100, 106)
STEPS, STAGE_END, EVERY = 300, 240, 5
SETTINGS = {
    "train": {"steps": STEPS},
    "schedule": {"decay_steps": STEPS - STAGE_END},
    "probes": {"every": EVERY},
}
# Losses after the decay as the paper has them, above a common one.
WITHOUT = (0.080, 0.040, 0.040, 0.040)
WITH = (0.040, 0.010, 0.010, 0.010)
SCALARS = 0.060
# FLOPs that each stage of the search adds.
SPENT = {"none": (1.0, 2.0, 2.0, 2.0), "vector": (1.2, 1.8, 2.0, 2.0), "scalar": (1.1,)}
SEARCHES = {
    ("Adam", "none"): "ADAM", ("Adam", "vector"): "ADAM_LRM", ("Adam", "scalar"): "ADAM_SCALAR",
    ("Muon", "none"): "MUON", ("Muon", "vector"): "MUON_LRM", ("Muon", "scalar"): "MUON_SCALAR",
}  # fmt: skip
# Of the gap: at the end of the constant stage, and how the training's one comes to be.
BEFORE, EARLY, FIRST = 1.25, 0.5, 3.0


@functools.cache
def world(
    adam_without=WITHOUT,
    adam_with=WITH,
    adam_scalar=SCALARS,
    muon_without=WITHOUT,
    muon_with=WITH,
    muon_scalar=SCALARS,
    adam_before=BEFORE,
    muon_before=BEFORE,
    adam_early=EARLY,
    muon_early=EARLY,
    sign=1.0,
    adam_spent=(),
    muon_spent=(),
    log=True,
    size=0.001,
    seeds=6,
    unstable=None,
    swapped=False,
    same=(),
):
    """Losses after the decay by tier, and what became of the gap on the way.

    ``before``: the gap of the validation loss at the end of the constant stage, over that after the
    decay. ``early``: that of the training loss in the second sixth, over that in the last; in the
    first it is large and in the decay negative, and neither counts. ``sign`` multiplies the gap of
    the training loss. ``spent``: FLOPs of stages, (multipliers, stage, FLOPs). ``unstable``: a seed
    that loses 2 nats in all arms with multipliers. ``swapped``: arms without and with multipliers
    have each other's names. ``same``: arms with the settings of the tier before.
    """
    levels = {
        ("Adam", "none"): adam_without, ("Adam", "vector"): adam_with,
        ("Adam", "scalar"): (adam_scalar,), ("Muon", "none"): muon_without,
        ("Muon", "vector"): muon_with, ("Muon", "scalar"): (muon_scalar,),
    }  # fmt: skip
    change = {"Adam": (adam_before, adam_early), "Muon": (muon_before, muon_early)}
    exchanged = {"none": "vector", "vector": "none"} if swapped else {}
    names = {configuration: arm for arm, configuration in ARMS.items()}
    rows, runs = [], []
    steps = np.arange(1, STEPS + 1)
    for (optimizer, kind, tier), arm in names.items():
        said = exchanged.get(kind, kind)
        place = TIERS.index(tier)
        level = levels[optimizer, said][place]
        mean = np.mean(levels[optimizer, "none"]) - np.mean(levels[optimizer, "vector"])
        before, early = change[optimizer]
        has = said == "vector"
        for seed in SEEDS[:seeds]:
            own = noise(seed, size=0.03) + noise(arm, seed, size=size)
            own += 2.0 if has and seed == unstable else 0.0
            runs.append(
                {"kind": "train", "arm": arm, "seed": seed, "description": description(arm, same)}
            )
            # Before the decay arms without multipliers are worse by what the gap had more.
            more = 0.0 if has else (before - 1.0) * mean
            for step, loss in ((STAGE_END, 3.3 + level + more), (STEPS, 3.2 + level)):
                rows.append([arm, seed, [step], "validation_loss", [loss + own]])
            sixth = -(-6 * steps // STAGE_END)
            share = np.select([sixth == 1, sixth == 2, sixth == 6], [FIRST, early, 1.0],
                              np.where(sixth > 6, -2.0, 0.7))  # fmt: skip
            batch = np.random.default_rng(seed).normal(0, 0.1, STEPS)
            gap = 0.0 if has else sign * share * mean
            rows.append([arm, seed, steps, "train_loss", 3.5 + gap + batch + own])
    frame = pd.DataFrame(rows, columns=["arm", "seed", "step", "stat", "value"])
    frame = frame.explode(["step", "value"], ignore_index=True)
    frame = frame.astype({"step": int, "value": float})
    frame = frame.assign(kind="train", tensor="model", layer=np.nan)
    frame["run"] = frame["arm"] + " " + frame["seed"].astype(str)
    return TunedTables(
        pd.DataFrame(runs), frame, trials=_log(adam_spent, muon_spent) if log else _none
    )


def description(arm, same=()):
    """Settings that differ from arm to arm, but for those that have the tier's before."""
    tier = ARMS[arm][2]
    if arm in same:
        arm = arm.removesuffix(tier) + TIERS[TIERS.index(tier) - 1]
    return {"settings": {**SETTINGS, "optimizer": {"lr": arm}}}


def _none():
    raise NothingFound(
        "there is no log of tuning_search at tiny; run make tune SEARCH=tuning_search SCALE=tiny"
    )


def _log(adam=(), muon=()):
    """Two trials a stage of every search, the second a repetition on another seed."""
    said = {"Adam": adam, "Muon": muon}
    rows = []
    for (optimizer, kind), arm in SEARCHES.items():
        for stage, flops in zip(TIERS, SPENT[kind], strict=False):
            changes = {(k, s): f for k, s, f in said[optimizer]}
            flops = changes.get((kind, stage), flops)
            for seed in (0, 1):
                rows.append({"id": f"{arm} {stage} {seed}", "arm": arm, "stage": stage,
                             "seed": seed, "outcome": "finished", "loss": 3.0, "tokens": 10,
                             "flops": flops / 2})  # fmt: skip
    return pd.DataFrame(rows)


def at(optimizer, **tiers):
    """A world's change of the losses of an optimizer's arms: without=(NONE, LR, LRWD, FULL), …"""
    return {f"{optimizer}_{key}": value for key, value in tiers.items()}


def breaks(claim):
    """By part what breaks it alone, for both optimizers."""
    found = {}
    for key, name in (("adam", "Adam"), ("muon", "Muon")):
        found |= BREAKS[claim](key, name)
    return found


BREAKS = {
    "T1": lambda key, name: {
        f"{name} NONE: ": at(key, **{"with": (0.079, *WITH[1:])}),
        f"{name} LR: ": at(key, **{"with": (0.04, 0.041, 0.01, 0.01)}),
        f"{name} LRWD: ": at(key, **{"with": (0.04, 0.01, 0.041, 0.01)}),
        f"{name} FULL: ": at(key, **{"with": (0.04, 0.01, 0.01, 0.041)}),
        f"{name}, one scalar": at(key, scalar=0.081),
    },
    "T2": lambda key, name: {
        # Both are nearly as bad as untuned without multipliers, where all else is better.
        f"{name}: NONE without − NONE with": at(
            key, without=(0.05, 0.028, 0.028, 0.028), **{"with": (0.045, 0.01, 0.01, 0.01)}
        ),
        f"{name}: NONE with − tuned": at(
            key, without=(0.12, 0.04, 0.04, 0.04), **{"with": (0.07, 0.01, 0.01, 0.01)}
        ),
        f"{name}: tuned without − LR": at(key, **{"with": (0.05, 0.038, 0.01, 0.01)})
        | {"also": (f"{name}: NONE with − LR",)},
        f"{name}: NONE with − LR": at(
            key, without=(0.08, 0.055, 0.055, 0.055), **{"with": (0.041, 0.039, 0.01, 0.01)}
        ),
        f"{name}: NONE without − FULL": at(key, without=(0.08, 0.02, 0.02, 0.08)),
    },
    "T3": lambda key, name: {
        f"{name}: LR − LRWD": at(key, **{"with": (0.06, 0.03, 0.005, 0.03)}),
        f"{name}: LR − FULL": at(key, **{"with": (0.06, 0.03, 0.03, 0.005)}),
        f"{name} weight decay: NONE": at(key, **{"with": (0.015, 0.01, 0.01, 0.01)})
        | {"also": (f"{name} start: NONE",)},
        f"{name} start: NONE": at(key, **{"with": (0.01, 0.01, 0.01, 0.01)})
        | {"also": (f"{name} weight decay: NONE",)},
    },
    "T4": lambda key, name: {
        f"{name}: gap late − early": {f"{key}_early": 1.2},
        f"{name}: gap before": {f"{key}_before": 0.9},
        f"{name}: gap after": {f"{key}_before": 2.5},
        f"{name}: gap late in": {"sign": -1.0, f"{key}_early": 2.0,
                                 f"{'muon' if key == 'adam' else 'adam'}_early": 2.0,
                                 "also": ("gap late in",)},
    },
    "T5": lambda key, name: {
        f"{name}: LR − LRWD": at(key, without=(0.08, 0.04, 0.015, 0.04)),
        f"{name}: LR − FULL": at(key, without=(0.08, 0.04, 0.04, 0.015)),
        f"{name} weight decay: NONE": at(key, without=(0.045, 0.04, 0.04, 0.04))
        | {"also": (f"{name} forward factors: NONE",)},
        f"{name} forward factors: NONE": at(key, without=(0.04, 0.04, 0.04, 0.04))
        | {"also": (f"{name} weight decay: NONE",)},
    },
    "T6": lambda key, name: {
        f"{name}: NONE with − LR with": at(key, **{"with": (0.04, 0.035, 0.01, 0.01)}),
    },
    "T7": lambda key, name: {
        f"{name}: FLOPs of the search, NONE": {f"{key}_spent": (("vector", "NONE", 3.6),
                                                                ("vector", "LR", -0.7))},
        f"{name}: FLOPs of the search, LR": {f"{key}_spent": (("vector", "LR", 2.4),)},
        f"{name}: loss, NONE with": at(key, **{"with": (0.051, 0.01, 0.01, 0.01)}),
        f"{name}: loss, LR with": at(key, **{"with": (0.04, 0.051, 0.01, 0.01)}),
        f"{name}: NONE without": at(key, without=(0.045, 0.02, 0.02, 0.04))
        | {"also": (f"{name} with a tuned LR: NONE",)},
        f"{name} with a tuned LR: NONE": at(key, without=(0.04, 0.02, 0.02, 0.04))
        | {"also": (f"{name}: NONE without",)},
    },
}  # fmt: skip


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_decides(claim):
    check_breaks(claim, world, breaks(claim))


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("T1", "Adam NONE:", 0.04),
        ("T1", "Muon LR:", 0.03),
        ("T1", "Adam, one scalar", 0.02),
        ("T2", "Muon: NONE without − NONE with", 0.04),
        ("T2", "Adam: NONE with − tuned", 0.0),
        ("T2", "Adam: tuned without − LR", 0.03),
        ("T2", "Adam: NONE without − FULL", 0.04),
        ("T3", "Adam weight decay: NONE", 0.03),
        ("T4", "Adam: gap late − early", 0.0325 * (1 - EARLY)),
        ("T4", "Muon: gap before", 0.0325 * (BEFORE - 1)),
        ("T4", "Muon: gap after", 0.0325 * (1 - BEFORE / 2)),
        ("T4", "Muon: gap late in", 0.0325),
        ("T6", "Muon", 0.03),
        ("T7", "Adam: FLOPs of the search, NONE", 1.2 / 7.0),
        ("T7", "Muon: FLOPs of the search, LR", 3.0 / 7.0),
        ("T7", "Adam: loss, LR", -0.03),
    ],
)
def test_parts_estimate_what_was_planted(claim, name, value):
    assert part(claim, world(), name).interval.mean == pytest.approx(value, abs=0.0015)


def test_optimizers_tiers_and_quantities_have_verdicts_of_their_own():
    paper = [f"{name} {tier}" for name in OPTIMIZERS.values() for tier in TIERS]
    scalars = [f"{name}, one scalar a matrix" for name in OPTIMIZERS.values()]
    assert list(judged("T1", world()).groups) == [*paper, *scalars]
    half = world(adam_with=WITHOUT)
    assert judged("T1", half).verdict == PARTLY
    assert judged("T3", half).groups["Adam start"] == HOLDS
    assert judged("T6", half).groups == {"Adam": HOLDS, "Muon": HOLDS}
    assert judged("T4", world()).groups == dict.fromkeys(
        ["Adam grows", "Adam shrinks in the decay", "Muon grows", "Muon shrinks in the decay"],
        HOLDS,
    )
    # What is ours leaves the paper's statement alone.
    assert judged("T1", world(adam_scalar=0.1, muon_scalar=0.1)).verdict == HOLDS
    dear = world(adam_spent=(("vector", "LR", 9.0),), muon_spent=(("vector", "LR", 9.0),))
    assert judged("T7", dear).verdict == HOLDS
    assert "Beyond the paper: Adam with a tuned LR, Muon with a tuned LR: no" in (
        judged("T7", dear).line
    )


def test_no_effect_of_multipliers():
    same = {"adam_with": WITHOUT, "muon_with": WITHOUT}
    assert judged("T1", world(**same)).verdict == BELOW
    assert judged("T2", world(**same)).verdict == REFUTED
    assert judged("T7", world(**same)).verdict == REFUTED
    # A gap of nothing does not grow.
    assert set(judged("T4", world(**same)).groups.values()) <= {OPEN, BELOW}


def test_a_gain_that_is_too_small_to_matter():
    small = world(adam_with=tuple(level - 0.004 for level in WITHOUT))
    groups = judged("T1", small).groups
    assert {groups[f"Adam {tier}"] for tier in TIERS} == {BELOW}
    assert {groups[f"Muon {tier}"] for tier in TIERS} == {HOLDS}


def test_tuning_that_gains_nothing_opens_what_compares_with_it():
    """Also where the search has kept nothing, so that tiers differ by exactly 0."""
    for size in (0.001, 0.0):
        none = world(adam_without=(0.04,) * 4, muon_without=(0.04,) * 4, size=size)
        for claim in ("T2", "T5", "T7"):
            assert judged(claim, none).verdict == OPEN, claim
            assert set(judged(claim, none).groups.values()) == {OPEN}
        assert judged("T3", none).verdict == HOLDS
        never = world(adam_with=(0.01,) * 4, muon_with=(0.01,) * 4, size=size)
        assert judged("T3", never).verdict == OPEN
        assert judged("T6", never).verdict == BELOW
        assert judged("T5", never).verdict == HOLDS


def test_tuning_of_another_kind_refutes():
    """Weight decay gains what the LR does not: the need for a gain is met by it."""
    other = {"with": (0.05, 0.05, 0.01, 0.01)}
    groups = judged("T3", world(**at("adam", **other))).groups
    assert groups["Adam weight decay"] == groups["Adam start"] == REFUTED
    groups = judged("T5", world(adam_without=(0.08, 0.08, 0.04, 0.04))).groups
    assert groups["Adam weight decay"] == groups["Adam forward factors"] == REFUTED
    assert groups["Muon weight decay"] == HOLDS


def test_the_reverse():
    reverse = {"adam_without": WITH, "adam_with": WITHOUT, "muon_without": WITH,
               "muon_with": WITHOUT}  # fmt: skip
    assert judged("T1", world(**reverse)).verdict == REFUTED
    for claim in ("T2", "T4", "T7"):
        assert judged(claim, world(**reverse)).verdict != HOLDS, claim
    worse = world(adam_with=(0.01, 0.04, 0.04, 0.04), muon_with=(0.01, 0.04, 0.04, 0.04))
    assert judged("T6", worse).verdict == REFUTED
    less = world(adam_early=1.5, muon_early=1.5, adam_before=0.8, muon_before=0.8)
    groups = judged("T4", less).groups
    assert set(groups.values()) == {REFUTED}


@pytest.mark.parametrize(
    ("claim", "name", "changes", "word"),
    [
        ("T1", "Adam, one scalar", {"adam_scalar": 0.1}, REFUTED),
        ("T1", "Adam, one scalar", {"adam_scalar": 0.084}, BELOW),
        ("T2", "NONE without − NONE with", {"adam_with": (0.1, 0.01, 0.01, 0.01)}, REFUTED),
        ("T2", "NONE with − tuned", {"adam_with": (0.07, 0.01, 0.01, 0.01)}, REFUTED),
        ("T2", "NONE with − tuned", {"adam_with": (0.01, 0.01, 0.01, 0.01)}, REFUTED),
        ("T2", "tuned without − LR with", {"adam_with": (0.08, 0.06, 0.01, 0.01)}, REFUTED),
        ("T2", "tuned without − LR with", {"adam_with": (0.08, 0.036, 0.01, 0.01)}, BELOW),
        ("T2", "NONE with − LR with", {"adam_with": (0.04, 0.06, 0.01, 0.01)}, REFUTED),
        ("T2", "NONE without − FULL", {"adam_without": (0.04, 0.04, 0.04, 0.08)}, REFUTED),
        ("T2", "NONE without − FULL", {"adam_without": (0.044, 0.04, 0.04, 0.04)}, BELOW),
        ("T3", "start: NONE", {"adam_with": (0.01, 0.04, 0.04, 0.04)}, REFUTED),
        ("T3", "start: NONE", {"adam_with": (0.014, 0.01, 0.01, 0.01)}, BELOW),
    ],
)
def test_what_refutes_a_part(claim, name, changes, word):
    found = {
        k: v for k, v in verdicts(claim, world(**changes)).items() if "Adam" in k and name in k
    }
    assert list(found.values()) == [word]


def test_the_middle_tier_is_a_signed_difference():
    above = part("T2", world(adam_with=(0.05, *WITH[1:])), "Adam: NONE with − tuned")
    assert above.interval.mean == pytest.approx(0.01, abs=0.0015)


def test_a_gap_that_vanishes_in_the_decay():
    groups = judged("T4", world(adam_before=3.0)).groups
    assert groups["Adam grows"] == HOLDS and groups["Adam shrinks in the decay"] == REFUTED
    assert groups["Muon shrinks in the decay"] == HOLDS


def test_a_gap_that_grows_from_harm_to_less_harm():
    harm = world(sign=-1.0, adam_early=2.0, muon_early=2.0)
    groups = judged("T4", harm).groups
    assert groups["Adam grows"] == groups["Muon grows"] == OPEN


def test_arms_that_are_swapped():
    for claim in ("T1", "T2", "T4", "T7"):
        assert judged(claim, world(swapped=True)).verdict != HOLDS, claim
    assert judged("T1", world(swapped=True)).groups["Muon LR"] == REFUTED


def test_one_unstable_seed_leaves_a_mean_open():
    for claim in ("T1", "T2", "T7"):
        assert judged(claim, world(unstable=103)).verdict == OPEN, claim
    # It is in every arm with multipliers alike, and their differences do not have it.
    assert judged("T6", world(unstable=103)).verdict == HOLDS


@pytest.mark.parametrize("claim", BREAKS)
def test_too_few_seeds(claim):
    assert set(verdicts(claim, world(seeds=5)).values()) == {OPEN}
    assert judged(claim, world(seeds=5)).verdict == OPEN


def test_t7_without_a_log_of_the_search():
    """What it costs is open, and the note says what is missing; losses are judged."""
    without = judged("T7", world(log=False))
    assert without.verdict == OPEN
    assert without.note.startswith("there is no log of tuning_search at tiny")
    seen = verdicts("T7", world(log=False))
    assert seen["Adam: loss, NONE with − FULL without"] == HOLDS
    assert seen["Adam: FLOPs of the search, NONE with / FULL without"] == OPEN


def test_t7_wants_half_the_cost():
    dear = world(adam_spent=(("vector", "NONE", 3.6),))
    assert judged("T7", dear).groups["Adam"] == REFUTED
    assert judged("T7", dear).groups["Muon"] == HOLDS


def test_tiers_in_which_the_search_kept_nothing_are_named():
    unchanged = world(same=("ADAM_LRM_LRWD", "MUON_FULL"))
    assert judged("T3", unchanged).note == ("the search kept nothing in Adam LRWD: no new runs")
    assert judged("T5", unchanged).note == ("the search kept nothing in Muon FULL: no new runs")
    assert judged("T6", unchanged).note == judged("T5", world()).note == ""
    assert "Adam LR" in judged("T6", world(same=("ADAM_LRM_LR",))).note


def test_the_note_has_the_gap_before_and_after_the_decay():
    note = judged("T4", world()).note
    assert note.startswith("gap over the decay: Adam +0.04") and "Muon +0.04" in note
    assert note.count("to +0.03") == 2


def test_what_a_missing_arm_lacks_is_open():
    """No mean over tiers is taken over those that are there alone."""
    whole = world()
    lacking = TunedTables(whole.runs, whole.scalars[whole.scalars["arm"] != "ADAM_LRM_LRWD"],
                     trials=_log())  # fmt: skip
    seen = verdicts("T4", lacking)
    assert {seen[name] for name in seen if "Adam" in name} == {OPEN}
    assert {seen[name] for name in seen if "Muon" in name} == {HOLDS}
    assert verdicts("T3", lacking)["Adam weight decay: NONE − tuned"] == OPEN
    assert verdicts("T1", lacking)["Adam NONE: loss without − with"] == HOLDS
