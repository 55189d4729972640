"""Planted worlds of GD0, GD12 and GD13: exponents of a Gated Delta Network."""

import functools
from itertools import product

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN
from analysis.quantities.gdn_theory import DERIVED, FEW, GATES, MANY, RECIPES
from analysis.tables.results import Tables
from lrm.noise.gated_delta.sizes import MEMORIES
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, runs_of

SEEDS = range(200, 208)
WIDTHS = (32, 64, 128, 256)
CLAIMS = ("GD0", "GD12", "GD13")
EPS = (0.0, 1e-9, 1e-8, 1e-7, 1e-6)
# What is measured, by arm, sequences in a batch, step, stat and tensor, and its exponent.
KEY = ("arm", "sequences", "step", "stat", "tensor")


def powers():
    of_all = {("size", "gdn.state"): -0.45, ("size", "gdn.read"): -0.45,
              ("size", "gdn.state.long"): -0.2, ("size", "gdn.read.long"): -0.2}  # fmt: skip
    derived = {(stat, tensor): power for stat, tensor, power in DERIVED.values()} | of_all
    for recipe, ((stat, tensor), power) in product(RECIPES, derived.items()):
        shift = 0.6 if recipe == "SP" else 0.0
        yield (f"SIZES_{recipe}", np.nan, 4, stat, tensor), power + shift
    for sequences, shift in ((FEW, 0.12), (MANY, -0.12)):
        for tensor in GATES.values():
            yield ("STEP", sequences, 1, "change", tensor), 0.5 + shift
            yield ("STEP", sequences, 1, "own", tensor), 0.5
        yield ("STEP", sequences, 1, "change", "gdn.a_log"), -0.5
        for (lr, more), step in product((("CONSTANT", 0.5), ("SCALED", 0.0)), (1, 10)):
            arm = f"TEN_{lr}"
            for tensor in GATES.values():
                yield (arm, sequences, step, "change", tensor), more
            yield (arm, sequences, step, "change", "gdn.a_log"), -more


def rows():
    for (key, power), width, layer in product(powers(), WIDTHS, (0, 1)):
        planted = dict(zip(KEY, key, strict=True))
        yield planted | {"width": width, "layer": layer, "eps": np.nan, "value": 3.0 * width**power}
    for eps, width in product(EPS, WIDTHS):
        place = {"arm": "READ", "sequences": np.nan, "step": 6, "width": width, "eps": eps}
        for stat in ("loss", "gradient", "weight"):
            yield place | {"tensor": "factor", "stat": stat, "value": max(1e-13, eps)}
            yield place | {"tensor": "rescaled", "stat": stat, "value": 1e-13}
        yield place | {"tensor": "factor", "stat": "first_gradient", "value": (1e3 * eps) ** 0.6}


@functools.cache
def world(power=0.0, add=0.0, seeds=SEEDS, **chosen):
    """Where all columns are as ``chosen`` values are multiplied by width^power, and shifted.

    Of ``by_eps`` the power is that of epsilon.
    """
    by_eps = chosen.pop("by_eps", False)
    plain = frame({"kind": "theory", **row} for row in rows())
    table = pd.concat([plain.assign(seed=seed) for seed in seeds], ignore_index=True)
    keys = zip(table["seed"], table["arm"], table["tensor"], table["width"], strict=True)
    table["value"] *= [1 + noise(*key, size=0.01) for key in keys]
    here = np.ones(len(table), dtype=bool)
    for column, value in chosen.items():
        here &= table[column] == value
    along = table["eps"] if by_eps else table["width"]
    changed = table.loc[here, "value"] * along[here].astype(float) ** power + add
    table.loc[here, "value"] = changed
    runs = runs_of(sorted(plain["arm"].unique()), seeds, {}).assign(kind="theory")
    return Tables(runs, table, pd.DataFrame())


def of_read():
    said = {"loss": "the loss", "gradient": "the gradient", "weight": "the parameters"}
    for stat, name in said.items():
        place = {"arm": "READ", "stat": stat, "add": 1e-8, "width": 64}
        yield f"changes of {name} in six", place | {"tensor": "factor", "eps": 0.0}
        yield f"what is left of that in {name}", place | {"tensor": "rescaled", "eps": 1e-7}
    growth = {"arm": "READ", "stat": "first_gradient", "by_eps": True, "power": -0.5}
    yield "exponent of epsilon", growth


def of_sizes():
    for name, (stat, tensor, _) in DERIVED.items():
        group = f"{name} of short memories" if tensor.endswith(".short") else name
        place = {"stat": stat, "tensor": tensor}
        up = place | {"arm": "SIZES_PAPER", "power": 0.25}
        yield f"{group}: exponent", up
        if name != "⟨q, k⟩":
            yield f"SP, {group}: |", place | {"arm": "SIZES_SP", "power": -0.5}
    for name, tensor in (("S", "gdn.state"), ("o", "gdn.read")):
        place = {"arm": "SIZES_PAPER", "stat": "size"}
        yield f"{name} of all heads", place | {"tensor": tensor, "power": 0.3}
        yield f"{name} of long memories", place | {"tensor": f"{tensor}.long", "power": -0.3}


def of_steps():
    for sequences, batch in ((FEW, "few tokens"), (MANY, "many tokens")):
        place = {"sequences": sequences, "stat": "change"}
        # Away from the other batch, so that the two differ as much or more.
        away = 0.25 if sequences == FEW else -0.25
        for name, tensor in GATES.items():
            own = place | {"tensor": tensor}
            step = own | {"arm": "STEP", "power": away}
            yield f"{batch}, first step: exponent of {name}, constant LR", step
            for lr, said in (("CONSTANT", "constant LR"), ("SCALED", "LR m^-1/2")):
                ten = own | {"arm": f"TEN_{lr}", "step": 10, "power": 0.25}
                yield f"{batch}, ten steps: exponent of {name}, {said}", ten
            scaled = own | {"arm": "TEN_SCALED", "step": 1, "power": -0.25}
            yield f"{batch}, first step: exponent of {name}, LR m^-1/2", scaled
            of_token = own | {"arm": "STEP", "stat": "own", "power": 0.25}
            yield f"{batch}: exponent of a token's own part of {name}", of_token
        of_head = place | {"tensor": "gdn.a_log", "power": 0.25}
        yield f"{batch}, first step: exponent of Δa_log", of_head | {"arm": "STEP"}
        if sequences == FEW:
            ten = of_head | {"arm": "TEN_SCALED", "step": 10}
            yield f"{batch}, ten steps: exponent of Δa_log", ten
    for name, tensor in GATES.items():
        nearer = {"arm": "STEP", "sequences": FEW, "stat": "change", "tensor": tensor}
        yield f"{name}, constant LR: few tokens less", nearer | {"power": -0.15}


BREAKS = {"GD0": dict(of_read()), "GD12": dict(of_sizes()), "GD13": dict(of_steps())}


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_part_is_broken_by_a_world(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize("claim", CLAIMS)
def test_fewer_seeds_leave_it_open(claim):
    assert judged(claim, world()).verdict == HOLDS
    assert judged(claim, world(seeds=range(200, 207))).verdict == OPEN
    assert CRITERIA[claim]["seeds"]["judge"] == "200-207"


@pytest.mark.parametrize("power", [-0.25, 0.25])
def test_exponents_may_lie_on_neither_side(power):
    """Of one quantity, above or below, as of a change."""
    worse = judged(
        "GD12", world(arm="SIZES_PAPER", stat="gradient", tensor="block.in", power=power)
    )
    assert worse.groups["∂h"] != HOLDS
    assert {name for name, verdict in worse.groups.items() if verdict != HOLDS} == {"∂h"}


def test_without_its_contrast_a_quantity_is_open():
    found = judged("GD12", world(arm="SIZES_SP", stat="gradient", tensor="gdn.conv_v", power=-0.6))
    assert found.groups["∂v"] == OPEN and found.groups["∂q̃"] == HOLDS


def test_what_is_judged_is_what_is_measured():
    """Tensors of memories have the names that runs give them."""
    judged_tensors = {tensor for _, tensor, _ in DERIVED.values()}
    memories = {tensor.rpartition(".")[2] for tensor in judged_tensors if tensor.count(".") == 2}
    assert memories <= set(MEMORIES) and "long" in MEMORIES
