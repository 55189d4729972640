"""Planted records of `make bench`: I1, I1.2, I1.3, I1b and SV22."""

import functools
import json
import tempfile
from pathlib import Path

import pytest

from analysis.claims import bench
from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from lrm.errors import UserError
from lrm.store.files import write_listed
from tests.worlds.planted import check_breaks, judged, noise, part

LARGE, TINY = "20M 8x512", "tiny 8x64"
SHORT, LONG = "20M 4x512", "20M 32x512"
SIZES = {LARGE: "4096 tokens", SHORT: "2048 tokens"}
# Tokens per second over those of the second variant, at both sizes.
RATIOS = {
    ("forward", "plain"): {LARGE: 0.996, TINY: 0.981, SHORT: 0.994, LONG: 0.998},
    ("optimizer", "plain"): {LARGE: 0.998, TINY: 0.97, SHORT: 0.995, LONG: 0.999},
    ("muon, forward", "muon"): {LARGE: 0.994, TINY: 0.979, SHORT: 0.993, LONG: 0.997},
    ("muon, optimizer", "muon"): {LARGE: 0.997, TINY: 0.96, SHORT: 0.996, LONG: 0.996},
    ("optimizer", "forward"): {LARGE: 1.03, TINY: 1.06},
    ("muon, optimizer", "muon, forward"): {LARGE: 1.04, TINY: 1.07},
    ("unified", "standard"): {"Llama 20M 8x512": 0.98, "Llama tiny 16x128": 0.97},
}
NAMES = {"AdamW": ("forward", "optimizer", "plain"),
         "Muon": ("muon, forward", "muon, optimizer", "muon")}  # fmt: skip


@functools.cache
def record(changes=(), pairs=60, outlier=None, without=()):
    """A record of these ratios; ``changes``: (variant, against, configuration, ratio).

    ``outlier``: the ratio of one pair of each row. Rows of the variants in ``without`` miss.
    """
    changed, rows = {tuple(change[:3]): change[3] for change in changes}, []
    for (variant, against), planted in RATIOS.items():
        for place, usual in planted.items():
            ratio = changed.get((variant, against, place), usual)
            ratios = [ratio + noise(variant, place, n, size=1e-3) for n in range(pairs)]
            if outlier:
                ratios[0] = outlier
            if (variant, against) not in without:
                sides = {"of": {"variant": variant}, "against": {"variant": against}}
                rows.append({"row": "any", "configuration": place, **sides, "ratios": ratios})
    # What other rows say is no part of it.
    other = {"of": {"variant": "suite"}, "against": {"variant": "plain"}}
    rows.append({"row": "other", "configuration": LARGE, **other, "ratios": [3.0] * pairs})
    return {"rows": rows}


BREAKS = {
    "I1": {
        f"{kind} with {optimizer}": {"changes": ((variant, none, LARGE, 0.96),)}
        for optimizer, (forward, inside, none) in NAMES.items()
        for kind, variant in (("forward", forward), ("optimizer", inside))
    },
    "I1.2": {
        f"(a) with {optimizer} at {size.split()[0]}:": {"changes": ((forward, none, size, 0.95),)}
        for optimizer, (forward, _, none) in NAMES.items()
        for size in (LARGE, TINY)
    }
    | {
        f"(b) with {optimizer} at {size.split()[0]}:": {"changes": ((inside, forward, size, 0.95),)}
        for optimizer, (forward, inside, _) in NAMES.items()
        for size in (LARGE, TINY)
    },
    "I1.3": {
        f"{kind} with {optimizer}, {where}:": {"changes": ((variant, none, place, 0.94),)}
        for optimizer, (forward, inside, none) in NAMES.items()
        for kind, variant in (("(a)", forward), ("(b)", inside))
        for place, where in (*SIZES.items(), (TINY, TINY))
        if kind == "(b)" or place != TINY
    },
    "I1b": {
        f"{kind} with {optimizer}, 16384": {"changes": ((variant, none, LONG, 0.94),)}
        for optimizer, (forward, inside, none) in NAMES.items()
        for kind, variant in (("(a)", forward), ("(b)", inside))
    },
    "SV22": {
        f"{place.split()[1]}: time": {"changes": (("unified", "standard", place, 0.95),)}
        for place in RATIOS["unified", "standard"]
    },
}


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_has_a_record_that_breaks_it_alone(claim):
    check_breaks(claim, record, BREAKS[claim])


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("I1", "forward with AdamW", 0.996),
        ("I1", "optimizer with AdamW", 0.998),
        ("I1", "forward with Muon", 0.994),
        ("I1", "optimizer with Muon", 0.997),
        ("I1.2", "(a) with AdamW at 20M", 0.004),
        ("I1.2", "(a) with Muon at tiny", 0.021),
        ("I1.2", "(b) with AdamW at tiny", 0.06),
        ("I1.2", "(b) with Muon at 20M", 0.04),
        ("I1.3", "(a) with AdamW, 4096", 0.996),
        ("I1.3", "(b) with AdamW, 4096", 0.998),
        ("I1.3", "(a) with Muon, 4096", 0.994),
        ("I1.3", "(b) with Muon, 2048", 0.996),
        ("I1.3", "(b) with AdamW, tiny", 0.97),
        ("I1b", "(b) with Muon, 16384", 0.996),
        ("SV22", "20M: time", 1 / 0.98),
        ("SV22", "tiny: time", 1 / 0.97),
    ],
)
def test_what_is_planted_is_estimated(claim, name, value):
    assert part(claim, record(), name).interval.mean == pytest.approx(value, abs=1e-3)


def _of_all(ratio: float, against: tuple[str, ...]):
    return tuple(
        (of, other, place, ratio)
        for of, other in RATIOS
        if other in against
        for place in RATIOS[of, other]
    )


@pytest.mark.parametrize(
    ("claim", "world", "verdict"),
    [
        ("I1", {"changes": _of_all(0.99, ("plain", "muon"))}, HOLDS),
        ("I1.3", {"changes": _of_all(0.98, ("plain", "muon"))}, REFUTED),
        ("I1.3", {"changes": _of_all(0.98, ("muon",))}, PARTLY),
        ("I1.3", {"outlier": 0.3, "pairs": 60}, HOLDS),
        ("I1.3", {"pairs": 59}, OPEN),
        ("I1b", {"changes": _of_all(0.98, ("plain", "muon"))}, REFUTED),
        ("I1b", {"pairs": 59}, OPEN),
        ("I1", {"changes": _of_all(0.975, ("plain", "muon"))}, PARTLY),
        ("I1", {"changes": _of_all(0.95, ("plain", "muon"))}, REFUTED),
        ("I1", {"pairs": 19}, OPEN),
        ("I1", {"outlier": 0.3}, HOLDS),
        ("I1.2", {"outlier": 0.3}, HOLDS),
        ("I1.2", {"pairs": 39}, OPEN),
        ("I1.2", {"changes": _of_all(0.9, ("plain", "muon", "forward", "muon, forward"))}, REFUTED),
    ],
)
def test_verdicts_of_other_records(claim, world, verdict):
    assert judged(claim, record(**world)).verdict == verdict


def test_equal_costs_are_below_what_matters():
    groups = judged("I1.2", record(changes=_of_all(1.0, ("forward", "muon, forward")))).groups
    assert {word for group, word in groups.items() if "less" in group} == {BELOW}
    assert {word for group, word in groups.items() if "less" not in group} == {HOLDS}


def test_other_sizes_decide_nothing_of_what_multipliers_cost():
    """I1.3 is of 4096 tokens; all else is ours, and says so."""
    slow = (("optimizer", "plain", TINY, 0.8), ("muon, forward", "muon", SHORT, 0.9))
    assert judged("I1.3", record(changes=slow)).verdict == HOLDS


def test_the_tiny_models_cost_of_scale_vectors_decides_nothing():
    slow = record(changes=(("unified", "standard", "Llama tiny 16x128", 0.8),))
    assert judged("SV22", slow).verdict == HOLDS
    assert judged("SV22", record(pairs=39)).verdict == OPEN


def test_a_row_that_was_not_measured_leaves_its_own_group_open_alone():
    judgement = judged("I1.2", record(without=(("optimizer", "forward"),)))
    assert {group for group, word in judgement.groups.items() if word == OPEN} == {
        "(b) less than (a) with AdamW at 20M", "(b) less than (a) with AdamW at tiny"
    }  # fmt: skip
    assert len(judged("I1", record(without=(("optimizer", "plain"),))).parts) == 3


@pytest.mark.parametrize(("source", "place"), [("runs", "bench"), ("reference", "reference/bench")])
def test_a_record_is_read_and_a_damaged_one_is_told(source, place):
    """The newest of the user's own, or the published one of that name."""
    with tempfile.TemporaryDirectory() as name:
        assert bench.record(source, Path(name), "cpu") is None
        target = Path(name, place, "cpu.json")
        target.parent.mkdir(parents=True)
        write_listed(target.parent, {target.name: json.dumps({"rows": []}).encode()})
        assert bench.record(source, Path(name), "cpu") == {"rows": []}
        # A younger record of another name is the user's, if there is none of this one.
        write_listed(target.parent, {"other.json": json.dumps({"rows": [1]}).encode()})
        assert bench.record(source, Path(name), "cpu") == {"rows": []}
        # But no record of the suite's other benchmarks.
        assert bench.record(source, Path(name), "mine") is None
        target.write_text("[]")
        with pytest.raises(UserError, match="cpu.json is damaged"):
            bench.record(source, Path(name), "cpu")
