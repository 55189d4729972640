"""Planted worlds of BM0 to BM0d: steepest descent by layer."""

import functools
from itertools import product

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN
from analysis.quantities.steepest_theory import DIRECTIONS, GRADIENTS, HEADS, LAYERS
from analysis.tables.results import Tables
from lrm.noise.steepest import directions
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, runs_of

SEEDS = range(200, 210)
CLAIMS = ("BM0", "BM0b", "BM0c", "BM0d")
EXACT = ("own_error", "diagonal_error")


def rows():
    stats = {"own_error": 1e-15, "largest_other": 0.85, "largest_random": 0.99}
    for layer, kind in product(LAYERS, GRADIENTS):
        more = {"diagonal_error": 1e-16} if layer == "gain" else {}
        if (layer, kind) == ("head", "softmax"):
            more = {"difference_gain": 0.1, "difference_row": 1.0}
            more |= {f"difference_{name}": 0.8 for name in DIRECTIONS if name != "row"}
        for stat, value in (stats | more).items():
            yield {"arm": "DIRECTIONS", "tensor": f"{layer}.{kind}", "stat": stat, "value": value}
    heads = {"lower": 10.0, "upper": 14.0, "supremum": 11.0, "dependence": 0.6, "update": 0.6}
    for head, (stat, value) in product(HEADS, heads.items()):
        yield {"arm": "HEAD", "tensor": head, "stat": stat, "value": value}
    for kind in ("independent", "near"):
        yield {"arm": "HEAD", "tensor": kind, "stat": "lse", "value": 0.9}


@functools.cache
def world(stat=None, tensor=None, factor=1.0, add=0.0, seeds=SEEDS):
    """Rows of ``stat`` (and ``tensor``) are scaled and shifted."""
    plain = frame({"step": 60, **row} for row in rows())
    table = pd.concat([plain.assign(seed=seed) for seed in seeds], ignore_index=True)
    sizes = [noise(*key, size=0.004) for key in zip(table["seed"], table["stat"], strict=True)]
    fixed = table["stat"].isin(["lower", "upper"])
    table["value"] *= 1 + np.where(fixed, 0.0, sizes)
    chosen = table["stat"] == stat
    if tensor:
        chosen &= table["tensor"] == tensor
    table.loc[chosen, "value"] = factor * table.loc[chosen, "value"] + add
    runs = runs_of(("DIRECTIONS", "HEAD"), seeds, {}).assign(kind="theory")
    return Tables(runs, table.assign(kind="theory"), pd.DataFrame())


def of_layer(layer):
    return {
        f"{layer}: |slope": {"stat": "own_error", "tensor": f"{layer}.rare", "add": 1e-6},
        f"{layer}: largest slope of another": {
            "stat": "largest_other", "tensor": f"{layer}.low_rank", "add": 0.2},
        f"{layer}: largest slope of random": {
            "stat": "largest_random", "tensor": f"{layer}.heavy", "add": 0.05},
    }  # fmt: skip


BREAKS = {
    "BM0": {piece: change for layer in LAYERS for piece, change in of_layer(layer).items()},
    "BM0b": {"largest entry": {"stat": "diagonal_error", "tensor": "gain.rare", "add": 1e-3}},
    "BM0c": {
        "lse(a)": {"stat": "lse", "tensor": "near", "add": 0.2},
        "least of five heads": {"stat": "supremum", "tensor": "shifted", "add": -1.5},
        "largest of five heads": {"stat": "supremum", "tensor": "trained", "add": 3.5},
        "between two inputs": {"stat": "dependence", "tensor": "medium", "factor": 2.0},
        "by an update": {"stat": "update", "tensor": "large", "factor": 2.0},
    },
    "BM0d": {
        "by how much ascent": {"stat": "difference_gain", "factor": 0.4},
        "four other directions": {"stat": "difference_sign", "add": 0.3},
    },
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_part_is_broken_by_a_world(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize("claim", CLAIMS)
def test_fewer_seeds_leave_it_open(claim):
    assert judged(claim, world()).verdict == HOLDS
    assert judged(claim, world(seeds=range(200, 209))).verdict == OPEN
    assert CRITERIA[claim]["seeds"]["judge"] == "200-209"


def test_what_is_judged_is_what_is_computed():
    assert list(directions.LAYERS) == list(LAYERS)
    assert list(directions.GRADIENTS) == list(GRADIENTS)
    assert list(directions.DIRECTIONS) == list(DIRECTIONS)


def test_below_what_matters():
    """A gain of a hundredth or less is said to be that, and not refuted."""
    found = judged("BM0d", world(stat="difference_gain", factor=0.02))
    assert found.groups["not the steepest for D"] == "below what matters"
