"""Planted worlds of the unified design: SV16 to SV21, and X3."""

import functools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, OPEN
from analysis.quantities.designs import at_share, course_of_gap
from analysis.quantities.recall import OTHER, RECALLED, final_losses_among, gap_among
from analysis.quantities.unified import constant_share, sizes, slopes
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables
from tests.worlds.designs import SEEDS, checks
from tests.worlds.planted import frame, judged, noise

# By ending of the arms' names: width and steps.
SIZES = {"_HALF": (32, 200), "": (64, 400), "_DOUBLE": (128, 800)}
# The loss after the decay less that of standard vectors at the same size.
GAPS = {
    "UNIFIED": -0.05,
    "UNIFIED_TUNED": -0.06,
    "UNIFIED_HALF": -0.04,
    "UNIFIED_DOUBLE": -0.06,
    "MOE_UNIFIED": -0.05,
    "MUON_UNIFIED": -0.05,
    "WSD_UNIFIED": -0.05,
}
WIDTHS = {"_HALF": "width 32", "": "width 64", "_DOUBLE": "width 128"}
BREAKS = {
    "SV16": {f"at {name} (nats)": {f"UNIFIED{ending}": 0.06} for ending, name in WIDTHS.items()}
    | {"its own LR": {"UNIFIED_TUNED": 0.06}},
    "SV17": {
        f"at half the steps, {name}": {f"early{ending}": -0.2} for ending, name in WIDTHS.items()
    }
    | {
        f"gap at the end, {name} (nats)": {f"end{ending}": 0.1, f"early{ending}": 0.2}
        for ending, name in WIDTHS.items()
    },
    "SV18": {
        "gap at the largest": {"UNIFIED_DOUBLE": -0.01, "also": ["exponent"]},
        "exponent": {"UNIFIED_HALF": -0.09},
        "gap at the smallest size (nats)": {"UNIFIED_HALF": 0.05},
    },
    "SV19": {"experts": {"MOE_UNIFIED": 0.05}},
    "SV20": {"Muon": {"MUON_UNIFIED": 0.05}},
    "SV20.2": {"Muon (nats)": {"MUON_UNIFIED": 0.05}, "no pair seen before": {"copied": 0.05}},
    "SV21": {
        "at half of it": {"middle": -0.2},
        "gap at the end −": {"last": 0.1},
        "gap at the end of the stable stage (nats)": {"stable": 0.05, "middle": 0.2},
    },
    "X3": {
        "gap of multipliers at the end −": {"rises": -0.01},
        "that change": {"last": 0.04},
        "gap of multipliers at the end of the stable stage (nats)": {"freed": 0.05},
        "gap of unified at the end of the stable stage (nats)": {"stable": 0.05},
    },
}
MEASURED = {
    "SV16": {"at width 32": -0.04, "at width 128": -0.06, "own LR": -0.06},
    "SV17": {"at half the steps, width 64": -0.06, "gap at the end, width 128": -0.08},
    "SV18": {"gap at the largest": -0.04, "gap at the smallest size (nats)": -0.04},
    "SV19": {"experts": -0.05},
    "SV20": {"Muon": -0.05},
    "SV20.2": {"Muon (nats)": -0.05, "no pair seen before": -0.03},
    "SV21": {
        "at half of it": -0.04,
        "gap at the end −": -0.02,
        "gap at the end of the stable stage (nats)": -0.06,
    },
    "X3": {
        "gap of multipliers at the end −": 0.02,
        "that change": 0.04,
        "gap of multipliers at the end of the stable stage (nats)": -0.05,
        "gap of unified at the end of the stable stage (nats)": -0.06,
    },
}


@functools.cache
def world(
    seeds=SEEDS, spread=0.003, middle=-0.02, stable=-0.06, last=-0.02, freed=-0.05, rises=0.02,
    copied=-0.03, **changes,
):  # fmt: skip
    """The losses, each with the changes ``<arm>=`` to ``GAPS``, and training losses.

    ``early<ending>`` and ``end<ending>`` are gaps of the training loss; ``middle`` and ``stable``
    those of WSD, and ``last`` what comes to them in the decay; ``freed`` and ``rises`` are the same
    of multipliers. ``copied`` is the gap with Muon on tokens that end no pair seen before.
    """
    rows, runs = [], []
    for ending, (width, steps) in SIZES.items():
        early, end = changes.get(f"early{ending}", -0.02), changes.get(f"end{ending}", -0.08)
        shares = {0.5: early, 1.0: end}
        for design in ("STANDARD", "UNIFIED"):
            arm = design + ending
            rows += trained(seeds, arm, arm, steps, shares, spread)
            runs += [run(arm, seed, width, steps, steps - 50) for seed in seeds]
            rows += ended(seeds, arm, width, steps, changes, spread)
    for kind in ("MOE", "MUON", "WSD"):
        for design in ("STANDARD", "UNIFIED"):
            arm = f"{kind}_{design}"
            rows += ended(seeds, arm, 64, 400, changes, spread)
            shares = {0.4: middle, 0.8: stable, 1.0: stable + last}
            rows += trained(seeds, arm, design, 400, shares, spread)
            runs += [run(arm, seed, 64, 400, 80 if kind == "WSD" else 350) for seed in seeds]
    shares = {0.4: freed, 0.8: freed, 1.0: freed + rises}
    rows += trained(seeds, "WSD_MULTIPLIERS", "MULTIPLIERS", 400, shares, spread)
    runs += [run("WSD_MULTIPLIERS", seed, 64, 400, 80) for seed in seeds]
    rows += ended(seeds, "UNIFIED_TUNED", 64, 400, changes, spread)
    runs += [run("UNIFIED_TUNED", seed, 64, 400, 350) for seed in seeds]
    for arm, value in (("MUON_UNIFIED", copied), ("MUON_STANDARD", 0.0)):
        rows += among_others(seeds, arm, value, spread)
    return Tables(pd.DataFrame(runs), frame(rows))


def among_others(seeds, arm, gap, spread):
    """Losses of other tokens; before the decay and among recalled ones the other way round."""
    for seed in seeds:
        value, loss = gap + noise(seed, arm, "other", size=spread), 4 + noise(seed, size=0.1)
        for stat, step, sign in (("other_loss", 400, 1), ("other_loss", 200, -1),
                                 ("recall_loss", 400, -1)):  # fmt: skip
            at = {"arm": arm, "seed": seed, "tensor": "model", "stat": stat, "step": step}
            yield {**at, "value": loss + sign * value}


def run(arm, seed, width, steps, decay):
    """One whose matrices have 100 · width^1.5 entries, and vectors that do not count."""
    settings = {
        "model": {"hidden_size": width},
        "train": {"steps": steps},
        "schedule": {"decay_steps": decay},
        "probes": {"every": 20},
    }
    rules = [
        {"multiplier": None, "shape": [100, round(width**1.5)]},
        {"multiplier": "row", "shape": [10**6]},
    ]
    description = {"settings": settings, "rules": rules}
    return {"kind": "train", "arm": arm, "seed": seed, "description": description}


def ended(seeds, arm, width, steps, changes, spread):
    """Losses after the decay, and before it the other way round; they fall as width^−0.1."""
    for seed in seeds:
        value = changes.get(arm, GAPS.get(arm, 0.0)) + noise(seed, arm, size=spread)
        loss = 5 * width**-0.1 * np.exp(noise(seed, size=0.02))
        at = {"arm": arm, "seed": seed, "tensor": "model", "stat": "validation_loss"}
        yield {**at, "step": steps // 2, "value": loss - value}
        yield {**at, "step": steps, "value": loss + value}


def trained(seeds, arm, design, steps, shares, spread):
    """Training losses at every 20th step; gaps of ``shares`` stand just before these alone."""
    for seed in seeds:
        for step in range(20, steps + 1, 20):
            gap = shares.get(step / steps, 0.3)
            value = 5 - step / steps + noise(seed, step, size=0.1)
            behind = design.startswith("STANDARD")
            ahead = 0.0 if behind else gap + noise(seed, arm, step, size=spread)
            at = {"arm": arm, "seed": seed, "step": step, "tensor": "model", "stat": "train_loss"}
            yield {**at, "value": value + ahead}


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


@pytest.mark.parametrize(
    ("claim", "same"),
    [
        ("SV16", {arm: 0.0 for arm in GAPS}),
        ("SV17", {f"early{ending}": -0.08 for ending in SIZES}),
        ("SV19", {"MOE_UNIFIED": 0.0}),
        ("SV20", {"MUON_UNIFIED": 0.0}),
    ],
)
def test_no_difference_is_below_what_matters(claim, same):
    assert judged(claim, world(**same, spread=0.001)).verdict == BELOW
    assert judged(claim, world(**same, spread=0.07)).verdict == OPEN


def test_a_gap_that_stands_still_does_not_grow():
    groups = judged("SV21", world(middle=-0.06, spread=0.001)).groups
    assert groups["grows while the LR is constant"] == BELOW


def test_runs_that_do_not_tell_recalled_tokens_apart():
    tables = world(spread=0.0)
    assert gap_among(tables, OTHER, "MUON_UNIFIED", "MUON_STANDARD").to_numpy() == pytest.approx(
        -0.03
    )
    assert final_losses_among(tables, RECALLED).columns.tolist() == [
        "MUON_STANDARD",
        "MUON_UNIFIED",
    ]
    old = tables.scalars[~tables.scalars["stat"].isin((OTHER, RECALLED))]
    with pytest.raises(NothingFound, match="none of these runs tells recalled tokens apart"):
        final_losses_among(Tables(tables.runs, old), OTHER)


def test_what_sizes_and_courses_are_read_from():
    tables = world(spread=0.0)
    assert sizes(tables).to_dict("list") == {
        "parameters": [100 * round(width**1.5) for width in (32, 64, 128)], "width": [32, 64, 128]
    }  # fmt: skip
    gaps = course_of_gap(tables, "WSD_UNIFIED", "WSD_STANDARD")
    assert gaps.columns[0] == 0.05 and gaps.columns[-1] == 1.0
    for share, gap in ((0.39, -0.02), (0.4, -0.02), (0.41, 0.3), (0.8, -0.06), (1.0, -0.08)):
        assert at_share(gaps, share).mean() == pytest.approx(gap)
    assert constant_share(tables, "WSD_UNIFIED") == pytest.approx(0.8)
    # Parameters grow as d^1.5, and the loss falls as d^−0.1.
    assert slopes(tables)["STANDARD"].to_numpy() == pytest.approx(1 / 15, rel=1e-3)
