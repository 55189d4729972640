"""Planted worlds of the projector's norm scale: P0 to P7."""

import functools
import math

import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, judged, noise, runs_of

GRID = [1 / 32, 1 / 8, 1 / 2, 2.0, 8.0, 32.0]
LOW, HIGH = 1 / 8, 8.0
STEPS, STAGE_END, EARLY = 2600, 2180, 1635
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": STEPS - STAGE_END}}
ARMS, LEARNED = ("FPN", "SPN", "VPN"), ("SPN", "VPN")
SEEDS = tuple(range(12))
# Nats above the loss at S = 2.
RISES = {
    "FPN": dict(zip(GRID, (0.9, 0.26, 0.03, 0.0, 0.15, 0.8), strict=True)),
    "SPN": dict(zip(GRID, (0.2, 0.06, 0.02, 0.0, 0.03, 0.1), strict=True)),
    "VPN": dict(zip(GRID, (0.3, 0.08, 0.01, 0.0, 0.05, 0.2), strict=True)),
}
BEST = {"FPN": 3.550, "SPN": 3.545, "VPN": 3.538}
LOGITS = {"FPN": 0.25, "SPN": 0.012, "VPN": 0.02}
WEIGHTS = {"FPN": 1.03, "SPN": 0.98, "VPN": 0.985}
AT_ONE = {"FPN": 0.1, "SPN": 0.1, "VPN": 0.102}
MULTIPLIERS = {"SPN": (0.6, -0.98), "VPN": (0.55, -0.93)}
# In logs over the last quarter of the constant stage; the second at S < 1.
DRIFTS = {"FPN": (0.02, 0.09), "SPN": (0.03, 0.05), "VPN": (-0.04, -0.06)}
# In logs to Brownian motion at step 500 and after the decay.
PATHS = {"SPN": {LOW: 0.05, HIGH: 0.2}, "VPN": {LOW: 0.07, HIGH: 0.25}}
NOISE = {"SPN": ("norm.final.scalar", 1.3, 0.2), "VPN": ("norm.final", 1.25, 0.05)}


@functools.cache
def world(
    loss=(),
    best=(),
    logits=(),
    weights=(),
    factors=(),
    pulled=2.2,
    multipliers=(),
    drifts=(),
    paths=(),
    brownian=(),
    spread=(),
    unstable=(),
    lr=0.006,
    seeds=SEEDS,
):
    """The paper's: FPN alone suffers and is pulled above, c goes as 1/S.

    Changes are tuples of (arm, …, new value): ``loss`` by S above S = 2, ``best`` at S = 2,
    exponents in S of ``logits``, ``weights`` and ``multipliers`` (with their value at 1),
    ``factors`` of ‖W‖ by S, ``drifts`` and ``paths`` by S, norm and ``spread`` over draws of the
    multipliers' ``brownian`` motion by S. ``unstable``: (arm, S, seeds, what they lose).
    """  # fmt: skip
    loss = {(arm, s): value for arm, s, value in loss}
    best, logits, weights = BEST | dict(best), LOGITS | dict(logits), WEIGHTS | dict(weights)
    multipliers = MULTIPLIERS | {arm: (one, power) for arm, one, power in multipliers}
    keyed = [{(arm, s): value for arm, s, value in changes}
             for changes in (factors, drifts, paths, brownian, spread)]  # fmt: skip
    factors, drifts, paths, brownian, spread = keyed
    rows = []
    for arm in ARMS:
        for s in GRID:
            above = loss.get((arm, s), RISES[arm][s])
            size = AT_ONE[arm] * s ** weights[arm]
            if arm == "FPN" and s < 1:
                size = pulled * AT_ONE["SPN"] * s ** WEIGHTS["SPN"]
            size *= factors.get((arm, s), 1.0)
            drift = drifts.get((arm, s), DRIFTS[arm][s < 1] if LOW <= s <= HIGH else 0.9)
            ratio = paths.get((arm, s), PATHS.get(arm, {}).get(s, 0.5))
            one, power = multipliers.get(arm, (1.0, 0.0))
            # The norm of the logits where nothing is judged says nothing.
            logit = 3.0 * s ** logits[arm] if LOW <= s <= HIGH else 40.0
            for seed in seeds:
                jitter = math.exp(noise(arm, s, seed, size=0.01))
                final = best[arm] + above + noise(seed, size=0.01)
                final += noise(arm, s, seed, "loss", size=1e-3)
                for name, at, members, lost in unstable:
                    final += lost * (name == arm and at == s and seed in members)
                own = ("train", arm, seed, s)
                rows += [
                    (*own, STAGE_END, "model", "validation_loss", 5.0 - above),
                    (*own, STEPS, "model", "validation_loss", final),
                    (*own, EARLY, "projector", "centred_norm", 9.0 / s),
                    (*own, STAGE_END, "projector", "centred_norm", logit * jitter),
                    (*own, STEPS, "projector", "centred_norm", 9.0 / s),
                    (*own, 500, "projector", "weight_norm", 0.1 * s * math.exp(ratio)),
                    (*own, EARLY, "projector", "weight_norm", size * jitter * math.exp(-drift)),
                    (*own, STAGE_END, "projector", "weight_norm", size * jitter),
                    (*own, STEPS, "projector", "weight_norm", 0.1 * s * math.exp(ratio)),
                    (*own, EARLY, "norm.final", "effective_norm", 1.0),
                    (*own, STAGE_END, "norm.final", "effective_norm", one * s**power * jitter),
                    (*own, STEPS, "norm.final", "effective_norm", 1.0),
                ]
    for arm, (tensor, size, deviation) in NOISE.items():
        for s in GRID:
            own = ("brownian", arm, 0, s)
            for step in (500, EARLY, STAGE_END, STEPS):
                late = 1.0 if step == STAGE_END else 7.0
                if arm == "VPN":
                    rows.append((*own, step, "projector", "weight_norm", 0.1 * s))
                drawn, wide = brownian.get((arm, s), size), spread.get((arm, s), deviation)
                rows.append((*own, step, tensor, "weight_norm", drawn * late))
                rows.append((*own, step, tensor, "weight_norm_sd", wide * late))
    columns = ["kind", "arm", "seed", "S", "step", "tensor", "stat", "value"]
    rules = [
        {"tensor": "projector", "trainable": True, "lr": 0.5},
        {"tensor": "norm.final", "trainable": True, "lr": lr},
    ]
    runs = runs_of(ARMS, seeds, SETTINGS, rules=rules)
    return Tables(runs, pd.DataFrame(rows, columns=columns).assign(layer=math.nan))


def _losses(flat: bool) -> dict[str, dict]:
    """Worlds that break one part about losses each: of P1, or without ``flat`` of P1.2."""
    breaks = {}
    for s in (LOW, HIGH):
        where = f"at S = {s:g}" if flat else f"from S = 2 to {s:g}"
        frozen = "FPN: excess loss" if flat else "FPN: rise of the loss"
        little = tuple((arm, s, 0.005) for arm in LEARNED)
        breaks[f"{frozen} {where}"] = {"loss": (("FPN", s, 0.03), *little)}
        for arm in LEARNED:
            [other] = set(LEARNED) - {arm}
            if flat:
                high = (("FPN", s, 0.5), (arm, s, 0.2))
                breaks[f"{arm}: excess loss {where}"] = {"loss": high}
            more = (("FPN", s, 0.14), (arm, s, 0.09), (other, s, 0.05))
            breaks[f"{arm}: loss minus 0.5 of FPN's {where}"] = {"loss": more}
    return breaks


BREAKS = {
    "P0": {
        "at small S": {"drifts": (("VPN", 0.5, -0.4),)},
        "at large S": {"drifts": (("FPN", 2.0, 0.4),)},
    },
    "P1": _losses(flat=True),
    "P1.2": _losses(flat=False),
    "P2": {
        "FPN: ln(": {"logits": (("FPN", 0.09),)},
        "SPN: ln(": {"logits": (("SPN", 0.09),)},
        "VPN: ln(": {"logits": (("VPN", 0.09),)},
        "SPN: range minus": {"logits": (("FPN", 0.11), ("SPN", 0.06))},
        "VPN: range minus": {"logits": (("FPN", 0.11), ("VPN", 0.06))},
    },
    "P3": {
        "SPN: slope": {"weights": (("SPN", 1.3),)},
        "VPN: slope": {"weights": (("VPN", 1.3),)},
        "FPN: slope": {"weights": (("FPN", 1.4),)},
        "over SPN's": {"factors": (("SPN", LOW, 1.55),)},
        "over VPN's": {"factors": (("VPN", LOW, 1.55),)},
    },
    "P4": {
        "SPN: slope": {"multipliers": (("SPN", 0.6, -0.8),)},
        "VPN: slope": {"multipliers": (("VPN", 0.55, -1.2),)},
    },
    "P5": {
        f"{arm}: distance of ‖W‖ from Brownian motion's at S = {s:g},": {
            "paths": ((arm, s, lost),)
        }
        for arm in LEARNED
        for s, lost in ((LOW, 0.25), (HIGH, 0.6))
    },
    "P6": {
        f"{arm}: |ln(‖c‖ / Brownian motion's)| at S = {s:g}": {
            "brownian": ((arm, s, size),), "spread": ((arm, s, 0.01),)
        }
        for arm, s, size in (("SPN", LOW, 2.5), ("VPN", LOW, 2.2), ("SPN", HIGH, 0.15),
                             ("VPN", HIGH, 0.15))
    } | {
        f"{arm}: the same at S = {s:g}, in sd": {"spread": ((arm, s, size),)}
        for arm, s, size in (("SPN", LOW, 0.7), ("VPN", LOW, 0.7), ("SPN", HIGH, 1.5),
                             ("VPN", HIGH, 1.5))
    },
    "P7": {
        "best FPN − best SPN": {"best": (("SPN", 3.59),)},
        "best FPN − best VPN": {"best": (("VPN", 3.59),)},
        "at S = 0.125": {"loss": (("FPN", LOW, 0.03),)},
        "at S = 8": {"loss": (("FPN", HIGH, 0.03),)},
    },
}  # fmt: skip


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_has_a_world_that_breaks_it_alone(claim):
    check_breaks(claim, world, BREAKS[claim])


def _root_mean_square(*values):
    return math.sqrt(sum(value**2 for value in values) / len(values))


LN8, LN102 = math.log(8), math.log(1.02)
ESTIMATES = {
    "P0": {
        "at small S": 0.09,
        "at large S": 0.04,
    },
    "P1": {
        "FPN: excess loss at S = 0.125": 0.26,
        "SPN: excess loss at S = 8": 0.03,
        "VPN: loss minus 0.5 of FPN's at S = 0.125": 0.08 - 0.13,
    },
    "P1.2": {
        "FPN: rise of the loss from S = 2 to 8": 0.15,
        "SPN: loss minus 0.5 of FPN's from S = 2 to 0.125": 0.06 - 0.13,
    },
    "P2": {
        "FPN: ln(": 0.25 * 2 * LN8,
        "VPN: range minus": (0.02 - 0.125) * 2 * LN8,
    },
    "P3": {
        "SPN: slope": 0.98,
        "VPN: slope": 0.985,
        "FPN: slope": 1.03,
        "over SPN's": 2.2,
        "over VPN's": 2.2 / 1.02 * 8**0.005,
    },
    "P4": {
        "SPN: slope": -0.98,
        "VPN: slope": -0.93,
    },
    "P5": {
        "SPN: distance of ‖W‖ from Brownian motion's at S = 0.125,": _root_mean_square(
            0.05, 0.02 * LN8 - 0.05, 0.02 * LN8, 0.05
        ),
        "VPN: distance of ‖W‖ from Brownian motion's at S = 8": _root_mean_square(
            0.25, LN102 - 0.015 * LN8 + 0.04, LN102 - 0.015 * LN8, 0.25
        ),
    },
    "P6": {
        "SPN: |ln(‖c‖ / Brownian motion's)| at S = 8": math.log(1.3 / 0.6) + 0.98 * LN8,
        "VPN: |ln(‖c‖ / Brownian motion's)| at S = 0.125": math.log(0.55 / 1.25) + 0.93 * LN8,
        "SPN: the same at S = 0.125": (math.log(0.6 / 1.3) + 0.98 * LN8) / (0.2 / 1.3),
    },
    "P7": {
        "best SPN": 0.005,
        "best VPN": 0.012,
    },
}


@pytest.mark.parametrize("claim", ESTIMATES)
def test_what_is_planted_is_estimated(claim):
    parts = judged(claim, world()).parts
    for piece, value in ESTIMATES[claim].items():
        [mean] = [one.interval.mean for one in parts if piece in one.name]
        assert mean == pytest.approx(value, abs=0.015, rel=0.02), piece


def test_signs_and_rises_are_said():
    assert judged("P6", world()).note == (
        "judged at S = 0.125, 0.5, 2, 8; ‖c‖ over Brownian motion's: SPN at S = 0.125 times 3.6, "
        "VPN at S = 0.125 times 3, SPN at S = 8 times 0.06, VPN at S = 8 times 0.064"
    )
    assert "VPN to S = 8 +0.05" in judged("P1.2", world()).note


NOTHING = {"loss": tuple((arm, s, 0.0) for arm in ARMS for s in GRID)}
REVERSED = {"loss": tuple(
    (arm, s, 0.0 if arm == "FPN" else 0.3) for arm in ARMS for s in (LOW, HIGH)
)}  # fmt: skip
ONE_SIDE = {"loss": (("FPN", HIGH, 0.01), ("SPN", HIGH, 0.0), ("VPN", HIGH, 0.0))}
UNSTABLE = {"unstable": (("FPN", HIGH, (3,), 0.6),)}
FOLLOWS_DATA = {"weights": tuple((arm, 0.0) for arm in ARMS)}
# Multipliers that only walk at random keep their norm at every S.
AT_RANDOM = {"multipliers": (("SPN", 1.3, 0.0), ("VPN", 1.25, 0.0))}
SWAPPED = {"logits": (("FPN", 0.012), ("SPN", 0.25), ("VPN", 0.25))}


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        ("P1", NOTHING, BELOW),
        ("P1.2", NOTHING, BELOW),
        ("P1", REVERSED, REFUTED),
        ("P1.2", REVERSED, REFUTED),
        ("P1", ONE_SIDE, PARTLY),
        ("P1.2", ONE_SIDE, PARTLY),
        ("P1", UNSTABLE, HOLDS),
        ("P1.2", UNSTABLE, HOLDS),
        ("P7", UNSTABLE, HOLDS),
        ("P7", NOTHING, OPEN),
        ("P7", {"loss": (("SPN", 32.0, -0.3),)}, HOLDS),
        ("P2", SWAPPED, REFUTED),
        ("P3", FOLLOWS_DATA, REFUTED),
        ("P3", {"pulled": 1.0}, PARTLY),
        ("P4", AT_RANDOM, REFUTED),
        ("P6", AT_RANDOM, REFUTED),
        ("P5", {"paths": (("SPN", LOW, 0.4), ("VPN", LOW, 0.5))}, PARTLY),
    ],
)
def test_verdicts_of_other_worlds(claim, changes, verdict):
    assert judged(claim, world(**changes)).verdict == verdict


def test_what_is_pulled_at_small_s_and_what_follows_are_told_apart():
    assert judged("P3", world(pulled=1.0)).line == (
        "SPN follows S, VPN follows S, FPN follows S: yes. FPN is pulled above at small S: no."
    )


def test_points_out_of_reach_are_not_judged():
    """A multiplier that cannot travel far enough says nothing about its claim."""
    assert judged("P4", world()).note == "judged at S = 0.125, 0.5, 2, 8"
    assert judged("P4", world(lr=0.0015)).note == "judged at S = 0.5, 2, 8, 32"
    assert judged("P4", world(lr=0.5)).verdict == "not judged"


@pytest.mark.parametrize("claim", BREAKS)
def test_too_few_seeds_are_open(claim):
    few = range(2) if claim in ("P0", "P2", "P3", "P4", "P5", "P6") else range(7)
    assert judged(claim, world(seeds=few)).verdict == OPEN
