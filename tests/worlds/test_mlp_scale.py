"""Planted worlds of the MLP sweep: M1 to M8 and their second entries."""

import functools
import math
import zlib

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import (
    BELOW,
    HOLDS,
    OPEN,
    PARTLY,
    REFUTED,
    UNJUDGED,
    planned_seeds,
)
from analysis.quantities.mlp_scale import MLP
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables
from tests.worlds.planted import CRITERIA, check_breaks, judged, runs_of

# Judged are 0.5 to 8; what stands at 16 is absurd.
GRID = np.array([0.5, 1.0, 2.0, 8.0, 16.0])
STEPS, DECAY, LR = 1000, 200, 0.01
OPTIMIZERS = ("ADAM", "MUON")
ARMS = ("ADAM", "ADAM_LRM", "MUON", "MUON_LRM")
SEEDS = np.arange(200, 208)
LAYERS = (0, 1, 2)
CLAIMS = list(criteria_of("mlp_scale"))
IN_SSM = ("ssm.z", "ssm.x", "ssm.B", "ssm.C", "ssm.dt")
IN_ATTENTION = ("attention.q", "attention.k", "attention.v")
OUTPUTS = {"MLP": "mlp.down", "SSM": "ssm.out", "attention": "attention.out"}
SPREAD = 0.004  # between seeds, in ln and in nats
TOKENS = np.arange(101)

# What is true, without multipliers unless it says "with"; growth is in ln from S = 1 to 8.
TRUTH = {
    "ADAM": {
        "lost": 0.09, "lost with": 0.02, "gain": 0.006,  # nats at S = 8; at the best S
        "slope": 0.97, "slope of s": -1.06,  # with
        "range MLP with": 0.5, "range SSM with": 0.3, "range attention with": 0.2,
        "deviation": -0.15,
        "MLP": 3.6, "SSM": 2.5, "attention": 1.2,
        "layers MLP": (-0.3, 0.1, 0.2), "layers SSM": (0.25, -0.05, -0.2),
        "SSM matrices": 0.06, "conv1d": 0.3, "D": 0.5, "conv1d with": 0.02, "D with": 0.04,
        "QKV": 0.15, "out": 0.2, "embedding": 0.02, "embedding output": 0.1,
        "escape": 0.2, "rare": 0.05,
    },
    "MUON": {
        "lost": 0.06, "lost with": 0.01, "gain": 0.003,
        "slope": 1.02, "slope of s": -0.95,
        "range MLP with": 0.35, "range SSM with": 0.25, "range attention with": 0.15,
        "deviation": -0.3,
        "MLP": 3.0, "SSM": 1.9, "attention": 1.5,
        "layers MLP": (-0.2, 0.25, -0.05), "layers SSM": (0.15, 0.1, -0.25),
        "SSM matrices": -0.05, "conv1d": 0.2, "D": 0.7, "conv1d with": 0.03, "D with": 0.05,
        "QKV": 0.18, "out": 0.25, "embedding": -0.03, "embedding output": 0.06,
        "escape": 0.15, "rare": -0.04,
    },
}  # fmt: skip
NAMES = {"Adam": "ADAM", "Muon": "MUON"}


@functools.cache
def world(seeds=8, swapped=False, dead=(), unstable=None, multipliers=1.0, **changes):
    """``changes``: other values of ``TRUTH``, named ``ADAM lost``.

    ``swapped``: arms with multipliers are called those without. ``dead``: seeds in which Adam's
    MLP of layer 1 puts out nothing with multipliers at S = 8; its matrices and multipliers fall
    short.
    ``unstable``: a seed that loses 5 nats at S = 8. ``multipliers`` is their size at S = 1.
    """
    truth = {name: dict(values) for name, values in TRUTH.items()}
    for change, value in changes.items():
        optimizer, _, name = change.partition(" ")
        assert name in truth[optimizer], change
        truth[optimizer][name] = value
    rows = []
    for arm in ARMS:
        optimizer, learned = arm[:4], arm.endswith("LRM")
        true = truth[optimizer]
        other = optimizer if learned else f"{optimizer}_LRM"
        for (tensor, stat), (base, curve) in _norms(true, learned, multipliers).items():
            called = other if swapped and "multiplier" not in stat else arm
            layers = LAYERS if callable(curve) else (math.nan,) if tensor == "embedding" else (0, 2)
            for layer in layers:
                share = curve(layer) if callable(curve) else curve
                values = math.log(base * (1 + (0 if math.isnan(layer) else layer))) + share
                values = values[:, None] + _jitter(arm, tensor, stat, layer)
                if (arm, tensor, stat, layer) == ("ADAM_LRM", "mlp.down", "activation_norm", 1):
                    values[3, np.isin(SEEDS, dead)] -= 12.0
                if (arm, layer) == ("ADAM_LRM", 1) and tensor in MLP and stat != "activation_norm":
                    values[3, np.isin(SEEDS, dead)] -= 1.0
                values[-1] = 9.0  # out of range
                rows.append((called, tensor, layer, stat, STEPS - DECAY, np.exp(values)))
                if layer != 2:  # after the decay all is otherwise
                    rows.append((called, tensor, layer, stat, STEPS, np.exp(-2 * values)))
        called = other if swapped else arm
        losses = _losses(true, learned)[:, None] + _jitter(arm, "loss") / 3 + _jitter("loss")[:1]
        if unstable:
            losses[3, np.isin(SEEDS, unstable)] += 5.0
        rows.append((called, "model", math.nan, "validation_loss", STEPS, losses))
        rows.append((called, "model", math.nan, "validation_loss", 700, 9.0 - losses))
    scalars = _tidy(rows)
    scalars = scalars[scalars["seed"] < SEEDS[0] + seeds]
    sizes = dict.fromkeys((*IN_SSM, *IN_ATTENTION), [8, 4]) | {"ssm.dt": [2, 4]}
    rules = [{"tensor": f"{name}@0", "multiplier": None, "shape": shape, "lr": 0.1}
             for name, shape in sizes.items()]  # fmt: skip
    rules.append({"tensor": "mlp.up@0", "multiplier": "scalar", "shape": [1], "lr": LR})
    settings = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
    runs = runs_of(ARMS, SEEDS[:seeds], settings, rules=rules)
    vectors = _vectors(truth, swapped)
    return Tables(runs, scalars, vectors[vectors["seed"] < SEEDS[0] + seeds])


def _up(growth, below=0.0):
    """ln over S of what grows by ``growth`` from S = 1 to 8 and has another slope below."""
    x = np.log(GRID)
    return np.where(x > 0, growth * x / math.log(8), below * x)


def _over(change):
    """ln over S of what changes by ``change`` from S = 0.5 to 8."""
    return change * np.log(GRID) / math.log(16)


def _norms(true, learned, multipliers):
    """(tensor, stat) -> size at S = 1 in layer 0, and ln over S (of a layer)."""
    norm, output = "weight_norm", "activation_norm"
    # The three matrices and the layers differ; their mean is the truth.
    apart = dict(zip(MLP, (-0.1, 0.04, 0.06), strict=True))
    tilt = dict(zip(LAYERS, (-0.02, -0.03, 0.05), strict=True))
    x, found = np.log(GRID), {}
    for number, name in enumerate(MLP):
        slope = true["slope"] + apart[name]
        curve = slope * x
        if not learned:
            curve = curve + _up(true["deviation"], below=0.3)
        found[name, norm] = 0.1 + 0.02 * number, lambda at, c=curve: c + tilt[at] * x
        if learned:
            slope_of_s = true["slope of s"] - apart[name]
            size = multipliers * (1.25, 0.8, 1.0)[number] / 6 ** (1 / 3)  # layers: × 1, 2, 3
            found[name, "scalar_multiplier_norm"] = (
                size,
                lambda at, c=slope_of_s * x: c + tilt[at] * x,
            )
    for block, tensor in OUTPUTS.items():
        if learned:
            curve = _over(true[f"range {block} with"])
            found[tensor, output] = 0.02, lambda at, c=curve: c
        else:
            shares = dict(zip(LAYERS, true.get(f"layers {block}", (0, 0, 0)), strict=True))
            found[tensor, output] = (
                0.01,
                lambda at, g=true[block], s=shares: _up(g * (1 + s[at]), below=-0.1),
            )
    found["embedding", output] = 0.3, _up(0.0 if learned else true["embedding output"], 0.4)
    for number, name in enumerate((*IN_SSM, "ssm.out")):
        growth = 0.0 if learned else true["SSM matrices"]
        found[name, norm] = 0.1 + 0.01 * number, _up(growth, 0.4)
    for name in IN_ATTENTION:
        found[name, norm] = 0.2, _up(0.0 if learned else true["QKV"], -0.4)
    found["attention.out", norm] = 0.2, _up(0.0 if learned else true["out"], -0.4)
    found["embedding", norm] = 0.1, _up(0.0 if learned else true["embedding"], 0.4)
    for name in ("conv1d", "D"):
        growth = true[f"{name} with" if learned else name]
        tensor = "ssm.conv" if name == "conv1d" else "ssm.D"
        found[tensor, norm] = 0.5, _up(growth, -0.4)
    return found


def _losses(true, learned):
    """The best S is 1 without multipliers, 2 with; at 16 the loss would be lowest."""
    if learned:
        bowl = np.array([0.004, 0.003, 0.0, true["lost with"], -1.0])
        return 3.5 - true["gain"] + bowl
    return 3.5 + np.array([0.007, 0.0, 0.002, true["lost"], -1.0])


@functools.cache
def _jitter(*key):
    """Noise (S, seed) that belongs to ``key``."""
    generator = np.random.default_rng(zlib.crc32(repr(key).encode()))
    return SPREAD * generator.standard_normal((len(GRID), len(SEEDS)))


def _tidy(rows):
    """The tidy table of (arm, tensor, layer, stat, step, values (S, seed))."""
    size = len(GRID) * len(SEEDS)
    names = ("arm", "tensor", "layer", "stat", "step")
    columns = {}
    for name, entries in zip(names, list(zip(*rows, strict=True))[:-1], strict=True):
        text = name in ("arm", "tensor", "stat")
        columns[name] = np.repeat(np.array(entries, dtype=object if text else None), size)
    columns["S"] = np.tile(np.repeat(GRID, len(SEEDS)), len(rows))
    columns["seed"] = np.tile(np.tile(SEEDS, len(GRID)), len(rows))
    columns["value"] = np.concatenate([row[-1].ravel() for row in rows])
    return pd.DataFrame(columns).assign(kind="train")


def _vectors(truth, swapped):
    """Rows of the embedding: token i is more frequent than i - 1; the first is never seen."""
    frequency = TOKENS / 100
    twin = 0.05 + 0.05 * frequency
    tenth = np.maximum(TOKENS - 1, 0) // 10 / 9  # 0 for the rarest tenth, 1 for the most frequent
    rows = [
        ("brownian", "ADAM_LRM", 0, 1.0, STEPS, "frequency", frequency),
        ("brownian", "ADAM_LRM", 0, 1.0, STEPS, "row_norms", twin),
    ]
    for arm in ARMS:
        true, learned = truth[arm[:4]], arm.endswith("LRM") != swapped
        for place, s in enumerate(GRID):
            for seed, jitter in zip(SEEDS, _jitter(arm, "rows")[place], strict=True):
                grown = true["rare"] + true["escape"] * tenth**2
                above = 0.1 + jitter + _up(1.0, below=0.5)[place] * (-grown if learned else grown)
                add = ("train", arm, seed, s)
                rows.append((*add, STEPS // 2, "row_norms", twin * np.exp(-above)))
                rows.append((*add, STEPS, "row_norms", twin * np.exp(above)))
    columns = ["kind", "arm", "seed", "S", "step", "stat", "value"]
    return pd.DataFrame(rows, columns=columns).assign(tensor="embedding")


def both(breaks):
    """The breaks of one optimizer for Adam and Muon: ``{}`` stands for its name."""
    return {
        piece.format(name): {
            (k if k == "also" else k.format(arm)): (
                tuple(one.format(name) for one in v) if k == "also" else v
            )
            for k, v in changes.items()
        }
        for name, arm in NAMES.items()
        for piece, changes in breaks.items()
    }


# What each part should measure, given the truth of its optimizer.
VALUES = {
    "M1": {
        "{}, without": lambda t: t["lost"],
        "{}, with mult": lambda t: t["lost with"],
        "{}: excess": lambda t: t["lost with"] - t["lost"] / 2,
    },
    "M2": {"{}": lambda t: t["slope"]},
    "M2.2": {"Adam": lambda t: TRUTH["ADAM"]["slope"]},
    "M3": {
        "{}, with multipliers: ln range of the MLP": lambda t: t["range MLP with"],
        "{}, with multipliers: ln range of the SSM": lambda t: t["range SSM with"],
        "{}, with multipliers: ln range of the att": lambda t: t["range attention with"],
        "{}: ln range": lambda t: t["range MLP with"] - t["MLP"] / 4,
    },
    "M4": {"{}": lambda t: t["slope of s"]},
    "M5a": {"{}": lambda t: t["deviation"]},
    "M5a.2": {"Adam": lambda t: TRUTH["ADAM"]["deviation"]},
    "M5b": {
        "{}: growth of the MLP output (": lambda t: t["MLP"],
        "{}: growth of the MLP output, to": lambda t: t["MLP"],
        "{}: growth of the SSM": lambda t: t["SSM"] / t["MLP"],
        "{}: size": lambda t: abs(t["SSM matrices"]),
    },
    "M5c": {
        "{}: growth of conv1d": lambda t: t["conv1d"],
        "{}: growth of D": lambda t: t["D"],
    },
    "M5c.2": {
        "{}, without multipliers: growth of conv1d": lambda t: t["conv1d"],
        "{}, without multipliers: growth of D": lambda t: t["D"],
        "{}: growth of conv1d": lambda t: t["conv1d"] - t["conv1d with"],
        "{}: growth of D": lambda t: t["D"] - t["D with"],
    },
    "M5d": {
        "{}: growth of the attention output (": lambda t: t["attention"],
        "{}: growth of the attention output less": lambda t: t["attention"] - t["SSM"],
        "{}: growth of ‖W‖ of queries": lambda t: t["QKV"],
        "{}: growth of ‖W‖ of attention's": lambda t: t["out"],
    },
    "M5e": {
        "{}: size": lambda t: abs(t["embedding"]),
        "{}: growth": lambda t: t["embedding output"],
    },
    "M5f": {"{}: growth": lambda t: t["escape"], "{}: size": lambda t: abs(t["rare"])},
    "M6": {
        "{}, without": lambda t: t["lost"],
        "Muon: excess": lambda t: 0.01,
        "Muon: slope of ln ‖W‖": lambda t: 0.05,
        "Muon: slope of ln |s|": lambda t: 0.11,
        "Muon: ln range": lambda t: 0.15,
    },
    "M7": {
        "{} MLP output, growth of the least": lambda t: t["MLP"] * (0.5 + min(t["layers MLP"])),
        "{} MLP output, growth of the most": lambda t: t["MLP"] * (max(t["layers MLP"]) - 0.5),
        "{} SSM output, growth of the least": lambda t: t["SSM"] * (0.5 + min(t["layers SSM"])),
        "{} SSM output, growth of the most": lambda t: t["SSM"] * (max(t["layers SSM"]) - 0.5),
    },
    "M8": {"{}": lambda t: t["gain"]},
    "M8.2": {"{}: best": lambda t: t["gain"], "{}, without": lambda t: t["lost"]},
}
# The entries that are about Adam alone.
ADAM_ALONE = {f"{claim}.2": claim for claim in ("M1", "M3", "M4", "M5b", "M5d", "M7")}
VALUES |= {
    second: {
        piece.format("Adam"): lambda t, of=of: of(TRUTH["ADAM"])
        for piece, of in VALUES[first].items()
    }
    for second, first in ADAM_ALONE.items()
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_was_planted_is_measured(claim):
    judgement = judged(claim, world())
    assert judgement.verdict == HOLDS, judgement.line
    assert judgement.note.startswith("judged at S = 0.5, 1, 2, 8")
    parts = [*judgement.parts, *judgement.contrast]
    seen = {one.name: one.interval.mean for one in parts}
    assert all(one.verdict(judgement.planned) == HOLDS for one in parts)
    for piece, expected in VALUES[claim].items():
        for name, arm in NAMES.items():
            [value] = [value for text, value in seen.items() if piece.format(name) in text]
            assert value == pytest.approx(expected(TRUTH[arm]), abs=0.006), (piece, name)


BREAKS = {
    "M1": both({
        # Where nothing is lost, nothing can be half of it.
        "{}, without": {"{} lost": 0.02, "{} lost with": 0.004},
        "{}, with mult": {"{} lost": 0.12, "{} lost with": 0.04},
        "{}: excess": {"{} lost": 0.045, "{} lost with": 0.026},
    }),
    "M2": both({"{}": {"{} slope": 0.7}}),
    "M2.2": {"Adam": {"ADAM slope": 0.7}},
    "M3": both({
        "{}, with multipliers: ln range of the MLP": {"{} range MLP with": 0.74},
        "{}, with multipliers: ln range of the SSM": {"{} range SSM with": 0.8},
        "{}, with multipliers: ln range of the att": {"{} range attention with": 0.8},
        "{}: ln range": {"{} MLP": 1.0},
    }),
    "M4": both({"{}": {"{} slope of s": -0.7}}),
    "M5a": both({"{}": {"{} deviation": -0.6}}),
    "M5a.2": {"Adam": {"ADAM deviation": -0.6}},
    "M5b": both({
        "{}: growth of the MLP output (": {
            "{} MLP": 0.6, "{} SSM": 0.5, "also": ["{}: growth of the MLP output, to"]},
        "{}: growth of the MLP output, to": {
            "{} MLP": 0.6, "{} SSM": 0.5, "also": ["{}: growth of the MLP output ("]},
        "{}: growth of the SSM": {"{} SSM": 0.5},
        "{}: size": {"{} SSM matrices": 0.3},
    }),
    "M5c": both({
        "{}: growth of conv1d": {"{} conv1d": 0.05},
        "{}: growth of D": {"{} D": 0.05},
    }),
    "M5c.2": both({
        "{}, without multipliers: growth of conv1d": {
            "{} conv1d": -0.1, "{} conv1d with": -0.2},
        "{}, without multipliers: growth of D": {"{} D": -0.1, "{} D with": -0.2},
        "{}: growth of conv1d": {"{} conv1d with": 0.5},
        "{}: growth of D": {"{} D with": 0.9},
    }),
    "M5d": both({
        "{}: growth of the attention output (": {"{} attention": -0.2},
        "{}: growth of the attention output less": {"{} attention": 3.0},
        "{}: growth of ‖W‖ of queries": {"{} QKV": -0.1},
        "{}: growth of ‖W‖ of attention's": {"{} out": -0.1},
    }),
    "M5e": both({
        "{}: size": {"{} embedding": 0.2},
        "{}: growth": {"{} embedding output": 0.6},
    }),
    "M5f": both({
        "{}: growth": {"{} escape": 0.0},
        "{}: size": {"{} rare": -0.2},
    }),
    "M6": {
        "Adam, without": {"ADAM lost": 0.02},
        "Muon, without": {"MUON lost": 0.02},
        "Muon: excess": {"ADAM lost with": 0.08},
        "Muon: slope of ln ‖W‖": {"ADAM slope": 0.8},
        "Muon: slope of ln |s|": {"ADAM slope of s": -0.7},
        "Muon: ln range": {"ADAM range MLP with": 1.2},
    },
    "M7": both({
        "{} MLP output, growth of the least": {"{} layers MLP": (-0.7, 0.35, 0.35)},
        "{} MLP output, growth of the most": {"{} layers MLP": (0.7, -0.35, -0.35)},
        "{} SSM output, growth of the least": {"{} layers SSM": (-0.7, 0.35, 0.35)},
        "{} SSM output, growth of the most": {"{} layers SSM": (0.7, -0.35, -0.35)},
    }),
    "M8": both({"{}": {"{} gain": -0.05}}),
    "M8.2": both({
        "{}: best": {"{} gain": -0.02},
        "{}, without": {"{} lost": 0.005},
    }),
}  # fmt: skip
BREAKS |= {
    second: {piece: changes for piece, changes in BREAKS[first].items() if piece.startswith("Adam")}
    for second, first in ADAM_ALONE.items()
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_part_has_a_world_that_breaks_it_alone(claim):
    seeds = planned_seeds(CRITERIA[claim])
    check_breaks(claim, functools.partial(world, seeds=seeds), BREAKS[claim])


NOTHING = {
    f"{arm} {name}": value
    for arm in OPTIMIZERS
    for name, value in {
        "lost": 0.003, "lost with": 0.0015, "deviation": 0.0, "MLP": 0.0, "SSM": 0.0,
        "attention": 0.0, "SSM matrices": 0.0, "conv1d": 0.0, "D": 0.0, "conv1d with": 0.0,
        "D with": 0.0, "QKV": 0.0, "out": 0.0, "embedding": 0.0, "embedding output": 0.0,
        "escape": 0.0, "rare": 0.0, "slope": 0.0, "slope of s": 0.0,
    }.items()
}  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("M2", REFUTED),
        ("M2.2", REFUTED),
        ("M4", REFUTED),
        ("M5a", BELOW),
        ("M5a.2", BELOW),
        ("M5c", BELOW),
        ("M5c.2", BELOW),
        ("M5f", BELOW),
        # The matrices stay, but nothing has grown to which they could answer.
        ("M5b", OPEN),
        ("M8", HOLDS),
        ("M8.2", OPEN),
    ],
)
def test_where_nothing_happens(claim, verdict):
    """M8 alone holds there: it lacks a contrast, which M8.2 has."""
    judgement = judged(claim, world(**NOTHING))
    if claim == "M5b":
        assert set(judgement.groups.values()) <= {REFUTED, OPEN}
        assert judgement.groups["Adam SSM matrices stay"] == verdict
        return
    assert judgement.verdict == verdict, judgement.line


def test_no_loss_to_mend():
    """Multipliers do not mend what is not broken: half of nothing is undecided."""
    groups = judged("M1", world(**NOTHING)).groups
    for name in NAMES:
        assert groups[f"{name} degrades without multipliers"] == BELOW
        assert groups[f"{name} stays flat with them"] == OPEN


@pytest.mark.parametrize("claim", ["M1", "M5b", "M5c", "M5f"])
def test_arms_that_are_swapped(claim):
    assert HOLDS not in {v for g, v in judged(claim, world(swapped=True)).groups.items()
                         if "matrices" not in g and "stay" not in g}  # fmt: skip


def test_reversed_signs():
    signs = {f"{arm} {name}": -TRUTH[arm][name] for arm in OPTIMIZERS
             for name in ("slope", "conv1d", "D", "QKV", "embedding output", "escape")}  # fmt: skip
    for claim in ("M2", "M5c"):
        assert judged(claim, world(**signs)).verdict == REFUTED
    assert judged("M5e", world(**signs)).groups["Adam embedding output"] == REFUTED
    assert judged("M5f", world(**signs)).verdict == REFUTED


def test_a_dead_layer_is_counted_and_refutes_constancy():
    every = judged("M3", world(dead=tuple(SEEDS)))
    assert every.groups["Adam MLP output"] == REFUTED and every.verdict == PARTLY
    assert "seeds: Adam: layer 1 in 8; Muon: none" in every.note
    some = judged("M3", world(dead=(200, 201, 202)))
    assert some.groups["Adam MLP output"] == OPEN
    assert "Adam: layer 1 in 3" in some.note
    assert "seeds: Adam: none; Muon: none" in judged("M3", world()).note
    assert some.groups["Muon MLP output"] == HOLDS


def test_one_unstable_seed_leaves_means_open():
    for claim in ("M1", "M6"):
        assert OPEN in judged(claim, world(unstable=203)).groups.values()
    assert judged("M1", world(unstable=203)).verdict == OPEN


def test_what_one_optimizer_lacks_costs_the_other_nothing():
    judgement = judged("M1", world(**{"ADAM lost with": 0.05}))
    assert judgement.verdict == PARTLY
    assert judgement.line == (
        "Adam degrades without multipliers, Muon degrades without multipliers, Muon stays flat "
        "with them: yes. Adam stays flat with them: no."
    )
    assert judged("M2", world(**{"ADAM slope": 0.7})).line == "Muon: yes. Adam: no."


def test_the_margins_of_norms_are_ours():
    judgement = judged("M6", world(**{"ADAM range MLP with": 1.2, "ADAM slope": 0.7}))
    assert judgement.verdict == HOLDS
    assert "Beyond the paper: equal slope of the multipliers: yes; equal slope" in judgement.line
    assert judged("M6", world(**{"ADAM lost with": 0.08})).verdict == PARTLY
    more = judged("M5c.2", world(**{"ADAM conv1d with": 0.5}))
    assert more.verdict == HOLDS and "by more than with multipliers: no" in more.line


@pytest.mark.parametrize("claim", CLAIMS)
def test_too_few_seeds(claim):
    few = judged(claim, world(seeds=2))
    assert set(few.groups.values()) == {OPEN}


def test_out_of_reach_is_not_judged():
    judgement = judged("M4", world(multipliers=2.5))
    assert judgement.note == "judged at S = 1, 2, 8"
    assert judged("M4", world(multipliers=40.0)).verdict == UNJUDGED


def test_tokens_in_the_middle_have_their_place_in_the_note():
    note = judged("M5f", world()).note
    assert "Adam, growth from rare to frequent: +0.0" in note
    assert "rarest and most frequent at S = 8: +0.15, +0.35" in note


def test_layers_that_are_off_are_left_out():
    """A dead layer decides M2, M4 and M5a, and not the second entries."""
    dead = world(dead=tuple(SEEDS))
    for first, second in (("M2", "M2.2"), ("M4", "M4.2"), ("M5a", "M5a.2")):
        assert judged(first, dead).groups["Adam"] != HOLDS
        assert judged(first, dead).groups["Muon"] == HOLDS
        assert judged(second, dead).verdict == HOLDS
        assert judged(second, dead).note.endswith("at S = 8: layer 1 in 8 seeds")
        assert judged(second, world()).note.endswith("at S = 8: none")


def test_three_points_suffice():
    """The S that the entries on Adam alone ask for."""
    every = world()
    few = every.scalars[every.scalars["S"].isin([1.0, 2.0, 8.0])]
    for claim in ADAM_ALONE:
        judgement = judged(claim, Tables(every.runs, few, every.vectors))
        assert judgement.verdict == HOLDS and judgement.note.startswith("judged at S = 1, 2, 8")
