"""Planted worlds of weight decay of scale vectors: SV5 to SV7b.2, SV5b, SV6b, SV15 and SV15.2."""

import functools

import numpy as np
import pytest

from analysis.claims.judging import BELOW, OPEN
from analysis.claims.sv_decay import SHORT
from analysis.quantities.vector_decay import KINDS, SIDES, curvature, growth, room, sizes
from tests.worlds.designs import SEEDS, arms, checks, losses
from tests.worlds.planted import judged, noise, runs_of

DECAYS = ("NONE", "INPUT", "OUTPUT", "ALL")
# What each arm loses where every part holds, in nats: together decay on both sides costs less than
# the sum, which the mean of the two differences halves.
EFFECTS = {"NONE": 0.0, "INPUT": -0.05, "OUTPUT": 0.06, "ALL": 0.02}
GAPS = {f"{kind}_{decay}": EFFECTS[decay] for kind in KINDS for decay in DECAYS}
GAPS |= {"DNP_OR_NONE": 0.0, "DNP_OR_INPUT": -0.05, "DNP_OR_OUTPUT": 0.03, "DNP_OR_ALL": 0.02}
GAPS |= {"DNP_INPUT": 0.0, "DNP_ABSORBED": -0.01, "DNP_NEEDED": 0.05}
BLOCKS = "input vectors but the final one"
ROOM = "1/λ over the largest vector that does not decay"


def broken(changes, kinds=tuple(KINDS)):
    """For each kind a world that breaks its loss, and one in which its vectors have no room."""
    for kind in kinds:
        name = KINDS[kind]
        yield f"without, {name} (nats)", {f"{kind}_{decay}": gap for decay, gap in changes.items()}
        yield f"{ROOM}, {name}", {"free": {f"{kind}_NONE": 5.0}}


BEST_SETTING = {
    "− on none": {"DNP_OR_NONE": -0.1},
    "− on output": {"DNP_OR_OUTPUT": -0.1},
    "− on all": {"DNP_OR_ALL": -0.1},
    ROOM: {"free": {"DNP_OR_NONE": 5.0}},
}
SPLIT = {
    "v and up": {"DNP_ABSORBED": 0.05},
    "q, k and gate": {"DNP_NEEDED": -0.05},
    ROOM: {"free": {"DNP_INPUT": 5.0}},
}
BREAKS = {
    "SV5": dict(broken({"INPUT": 0.1, "ALL": 0.11})),
    "SV5b": dict(broken({"INPUT": 0.1, "ALL": 0.11}, SHORT)),
    "SV6": dict(broken({"OUTPUT": -0.06, "ALL": -0.1})),
    "SV6b": dict(broken({"OUTPUT": -0.06, "ALL": -0.1}, SHORT)),
    "SV7": {
        "input vectors without decay": {"grown": 0.0, "also": [BLOCKS]},
        "input vectors with decay": {"held": 0.4, "also": [BLOCKS]},
        "final one, without decay": {"grown": 0.0, "also": ["input vectors without"]},
        "final one, with decay": {"held": 0.4, "also": ["input vectors with decay"]},
        "curvature without decay": {"curved": -0.6, "flat": -1.2},
        "curvature with decay": {"flat": 0.4},
        "output vectors: ln": {"shrunk": 0.0},
        "curvature at the end": {"offset": 0.9},
        ROOM: {"free": {"LONG_NONE": 5.0}},
    },
    "SV7b": SPLIT,
    "SV7b.2": SPLIT,
    "SV15": BEST_SETTING,
    "SV15.2": BEST_SETTING,
}
MEASURED = {
    "SV5": {"without, Muon (nats)": -0.045, ROOM + ", AdamW": 5.0},
    "SV5b": {"without, Muon (nats)": -0.045},
    "SV6": {"without, Muon (nats)": 0.065},
    "SV6b": {"without, AdamW (nats)": 0.065},
    "SV7": {
        "input vectors without": 0.4,
        "input vectors with decay": 0.0,
        "curvature without": 0.5,
        "curvature with decay": 0.0,
        "output vectors": -0.3,
        "curvature at the end": -0.5,
    },
    "SV7b": {"v and up": -0.01, "q, k": 0.05},
    "SV7b.2": {"v and up": -0.01, "q, k": 0.05},
    "SV15": {"on none": -0.05, "on output": -0.08, "on all": -0.07},
    "SV15.2": {"on none": -0.05, "on output": -0.08, "on all": -0.07},
}


def world(seeds=SEEDS, spread=0.003, free=None, **changes):
    """The losses, each with the changes ``<arm>=`` to ``GAPS``, sizes of vectors and curvatures.

    ``free`` has sizes of the largest vector of an arm, 2 in the others.
    """
    return _world(seeds, spread, tuple((free or {}).items()), **changes)


@functools.cache
def _world(seeds, spread, free, grown=0.4, held=0.0, shrunk=-0.3, curved=0.5, flat=0.0, offset=0.0,
           **changes):  # fmt: skip
    rows = [row for seed in seeds for arm in GAPS for row in largest(seed, arm, dict(free))]
    growths = {
        ("LONG_NONE", "input"): grown,
        ("LONG_INPUT", "input"): held,
        ("LONG_NONE", "output"): 0.2,
        ("LONG_OUTPUT", "output"): 0.2 + shrunk,
    }
    for seed in seeds:
        for (arm, side), size in growths.items():
            rows += vectors(seed, arm, side, size, spread)
        for arm, rise, start in (("NONE", curved, 0.0), ("INPUT", flat, offset)):
            levels = {0: -3.0, 50: start, 300: 9.0, 400: start + rise}
            for step, level in levels.items():
                value = np.exp(2 + level + noise(seed, arm, step, size=spread))
                rows.append(row(f"LONG_{arm}", seed, step, "model", "curvature", value))
    runs = runs_of(
        GAPS,
        seeds,
        {"train": {"steps": 400}, "schedule": {"decay_steps": 350}},
        rules=[
            {"tensor": "attention.q@0", "multiplier": None, "weight_decay": 0.5},
            {"tensor": "norm.final", "multiplier": "row", "weight_decay": 0.1},
            {"tensor": "norm.attention.q@0", "multiplier": "row", "weight_decay": 0.0},
        ],
    )
    runs = runs.assign(run=runs["arm"] + runs["seed"].astype(str))
    found = losses(arms(GAPS, changes), seeds, spread, rows, runs)
    found.scalars["run"] = found.scalars["arm"] + found.scalars["seed"].astype(str)
    return found


def row(arm, seed, step, tensor, stat, value, layer=np.nan):
    at = {"arm": arm, "seed": seed, "step": step, "tensor": tensor, "layer": layer}
    return {**at, "stat": stat, "value": value}


def largest(seed, arm, free):
    """Before the end another vector is larger, and so is a matrix at the end."""
    at = (arm, seed)
    size = free.get(arm, 2.0)
    inside = "column_multiplier_norm" if arm.startswith("DNP_OR") else None
    tensor = "attention.v" if inside else "norm.attention.v"
    for step, value in ((0, 1.0), (300, 9.0), (400, size)):
        if inside:  # a direction has a size of 1; the magnitude beside it counts
            yield row(*at, step, tensor, inside, 1.0, layer=1)
            yield row(*at, step, tensor, "column_magnitude_multiplier_norm", value, layer=1)
            yield row(*at, step, tensor, inside, 1.5, layer=0)
            continue
        yield row(*at, step, tensor, "effective_norm", value, layer=1)
        yield row(*at, step, tensor, "effective_norm", value / 3, layer=0)
        yield row(*at, step, "attention.q", "effective_norm", 50.0, layer=0)


def vectors(seed, arm, side, size, spread):
    """Some tensors are large and others small: their root mean square grows by ``size``."""
    names = SIDES[side]
    for step in (0, 200, 400):
        scale = np.exp(size * (step == 400) + noise(seed, arm, side, step, size=spread))
        for number, name in enumerate(names):
            # Two and two, so that those of blocks grow alike; a third one is the final vector.
            square = 1.0 if step == 0 or number == 2 == len(names) - 1 else (1.75, 0.25)[number % 2]
            value = scale * np.sqrt(square)
            yield row(arm, seed, step, name, "effective_norm", value, layer=0)


test_breaks, test_differences, test_planned = checks(world, BREAKS, MEASURED)


@pytest.mark.parametrize(
    ("claim", "same"),
    [
        ("SV5", {f"{kind}_{decay}": 0.06 * (decay in ("OUTPUT", "ALL"))
                 for kind in KINDS for decay in DECAYS}),
        ("SV6", {f"{kind}_{decay}": -0.05 * (decay in ("INPUT", "ALL"))
                 for kind in KINDS for decay in DECAYS}),
        ("SV15", {f"DNP_OR_{decay}": 0.0 for decay in DECAYS}),
    ],
)  # fmt: skip
def test_no_difference_is_below_what_matters(claim, same):
    assert judged(claim, world(**same)).verdict == BELOW
    assert judged(claim, world(**same, spread=0.05)).verdict == OPEN


def test_what_vectors_and_curvatures_are_read_from():
    tables = world(spread=0.0)
    assert sizes(tables, "LONG_NONE", "input").to_numpy() == pytest.approx(
        np.tile([1, 1, np.exp(0.4)], (len(SEEDS), 1))
    )
    assert growth(tables, "LONG_OUTPUT", "output").mean() == pytest.approx(-0.1)
    assert curvature(tables, "LONG_INPUT").mean().to_dict() == pytest.approx({"begin": 2, "end": 2})
    assert room(tables, "DNP_OR_NONE", "DNP_OR_ALL").mean() == pytest.approx(5.0)


def test_without_room_nothing_is_decided():
    assert judged("SV15", world(free={"DNP_OR_NONE": 5.0})).verdict == OPEN
