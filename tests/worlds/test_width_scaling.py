"""Planted worlds of norms and multipliers over the width: WS1 to WS6 but WS5."""

import functools
import itertools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.quantities import width_scaling as ws
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, judged, part

SEEDS, WIDTHS = range(200, 216), (16, 32, 64, 128, 256)
STEPS, DECAY = 400, 100
END = STEPS - DECAY
HALF, THREE_QUARTERS = END // 2, END * 3 // 4
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
LEARN = (ws.LEARNED, ws.FROM_ONE, ws.DRIFT)
ARMS = (*LEARN, ws.FIXED, ws.SCALED)
TENSORS = tuple(dict.fromkeys(name for names in ws.MATRICES.values() for name in names))
WEIGHT, SCALAR, OUTPUT = "weight_norm", "scalar_multiplier_norm", "activation_norm"
MEASURED_AT = {WEIGHT: (0, THREE_QUARTERS, END, STEPS), SCALAR: (0, END, STEPS),
               OUTPUT: (0, END, STEPS)}  # fmt: skip
WRITERS = tuple(name for names in ws.FREE_IN_STREAM.values() for name in names)
# Exponents of ‖W‖ by tensor, of |s|, and of outputs; levels differ by tensor as well.
NORMS = {
    "embedding": 0.01,
    "projector": -0.03,
    **dict.fromkeys(ws.MATRICES["attention"], 0.02),
    **dict.fromkeys(ws.MATRICES["SSM"], 0.03),
    **dict.fromkeys(ws.MATRICES["MLP"], -0.02),
}
SCALES = {"projector": -0.8, "ssm.dt": -0.75, "attention.q": -0.85, "attention.k": -0.65}
OUTPUTS = {"projector": 0.02, "ssm.dt": -0.03, "attention.q": 0.04, "attention.k": 0.01,
           "mlp.gate": 0.2, "embedding": 0.3, "attention.out": 0.4, "ssm.out": 0.35,
           "mlp.down": 0.45}  # fmt: skip
# Of the fixed factors by arm: level and exponent.
FACTORS = {ws.LEARNED: (2.0, -0.3), ws.FROM_ONE: (0.5, 0.0)}


def run_id(arm, width, seed):
    return f"{arm} {width} {seed}"


@functools.cache
def runs():
    rows = []
    for arm, width, seed in itertools.product(ARMS, WIDTHS, SEEDS):
        level, exponent = FACTORS.get(arm, (1.0, 0.0))
        factor = level * (width / 64) ** exponent
        rules = [{"tensor": f"{tensor}@{layer}", "forward": factor, "multiplier": None}
                 for tensor in SCALES for layer in (0, 1)]  # fmt: skip
        rules.append({"tensor": "projector.scalar", "forward": 9.0, "multiplier": "scalar"})
        row = {"run": run_id(arm, width, seed), "kind": "train", "arm": arm, "seed": seed,
               "width": width, "description": {"settings": SETTINGS, "rules": rules}}  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)


def planted(arm, tensor, stat, step):
    """(level, exponent) of a statistic in the faithful world."""
    place = TENSORS.index(tensor)
    if stat == WEIGHT:
        if step == 0:
            return 0.1, 0.0
        early = {HALF: 0.3, THREE_QUARTERS: 0.02}.get(step, 0.0) + (0.4 if step > END else 0.0)
        sign = -1.2 if arm == ws.FROM_ONE else 1.0
        return 0.05 * (1 + place) * np.exp(early), sign * NORMS[tensor] + 0.75 * early
    if stat == SCALAR:
        level, exponent = FACTORS.get(arm, (1.0, 0.0))
        if step == 0:
            return 1.0 / level, -exponent
        return (3.0 + place) / level, SCALES.get(tensor, -0.5) - exponent + (step > END) * 0.3
    # Before training y = α s d ‖W‖ with α = c d^(−½).
    if step == 0:
        return 64**0.5 * 0.1, 0.5
    exponent = OUTPUTS.get(tensor, 0.1)
    if arm in (ws.FIXED, ws.SCALED):
        exponent = (0.5 if arm == ws.FIXED else -0.3) * (1 + place / 40)
    # At width 64 α is 0.3.
    level = 0.3 * 64 * 0.05 * (1 + place) * (3.0 + place)
    if arm == ws.DRIFT and step == HALF and tensor != "projector":
        level *= np.exp(-0.1 - place / 100)
    return level, exponent + (0.3 if step > END else 0.0)


@functools.cache
def base():
    """The faithful world's scalars, without noise, and the noise."""
    rows = []
    for arm, stat, tensor in itertools.product(ARMS, MEASURED_AT, TENSORS):
        steps = MEASURED_AT[stat] if arm in ws.STARTS else ()
        if stat == OUTPUT:
            of_figure_10 = tensor in (*WRITERS, "projector")
            steps = {*steps, END, *((HALF,) if of_figure_10 and arm in LEARN else ())}
        rows += _series(arm, tensor, stat, sorted(steps))
    names = ["arm", "tensor", "stat", "step", "width", "layer", "value"]
    frame = pd.DataFrame(rows, columns=names).merge(pd.DataFrame({"seed": SEEDS}), how="cross")
    frame["kind"] = "train"
    widths = frame["width"].astype(str)
    frame["run"] = frame["arm"] + " " + widths + " " + frame["seed"].astype(str)
    deviates = np.random.default_rng(0).standard_normal(len(frame))
    frame["value"] *= np.exp(2e-3 * deviates)
    return frame


def _series(arm, tensor, stat, steps):
    """Rows of one statistic; layers differ, and their geometric mean is what is planted."""
    layers = {np.nan: 1.0} if tensor in ("embedding", "projector") else {0: 1.0}
    if tensor in ("attention.q", "attention.k", "mlp.down", "ssm.dt"):
        layers = {0: 1.5, 1: 1 / 1.5}
    rows = []
    for step in steps:
        level, exponent = planted(arm, tensor, stat, step)
        for width, (layer, apart) in itertools.product(WIDTHS, layers.items()):
            value = level * (width / 64) ** exponent * apart
            rows.append((arm, tensor, stat, step, width, layer, value))
    return rows


@functools.cache
def world(*changes, **named):
    """The faithful world with some values changed.

    Each of ``changes``: (stat, tensors, arms, step, exponent, logarithm), and optionally a width
    (the change is of that width alone) or ``"seed"`` (of seed 203 alone). The values are
    multiplied by (d / 64)^exponent · e^logarithm. ``step`` None stands for every step.
    """
    frame = base()
    values = np.log(frame["value"].to_numpy())
    for stat, tensors, arms, step, exponent, logarithm, *only in (*changes, *named.values()):
        chosen = (frame["stat"] == stat) & frame["tensor"].isin(tensors) & frame["arm"].isin(arms)
        if step is not None:
            chosen &= frame["step"] == step
        if only:
            chosen &= (frame["seed"] == 203) if only == ["seed"] else frame["width"].isin(only)
        chosen = chosen.to_numpy()
        values[chosen] += exponent * np.log(frame["width"].to_numpy()[chosen] / 64) + logarithm
    tables = Tables(runs(), frame.assign(value=np.exp(values)))
    if changes or named:
        tables.kept.update(_untouched((*changes, *named.values())))
    return tables


def _untouched(changes):
    """What the judges found in the faithful world and no change touches: it need not be redone."""

    def is_touched(arguments):
        tensors = next(argument for argument in arguments if isinstance(argument, tuple))
        return any(
            stat in arguments and set(arms) & set(arguments) and set(of) & set(tensors)
            for stat, of, arms, *_ in changes
        )

    kept = world().kept
    return {
        key: value
        for key, value in kept.items()
        if not is_touched((*key[1], *dict(key[2]).values()))
    }


def start_of(arm):
    return ws.STARTS[arm]


def norm_breaks(both):
    """Of WS1, or with ``both`` starts of WS1.2."""
    breaks = {}
    for group, tensors in ws.MATRICES.items():
        for arm in (ws.LEARNED, ws.FROM_ONE) if both else (ws.LEARNED,):
            name = f"{group}, {start_of(arm)}" if both else group
            of = (WEIGHT, tensors, (arm,))
            breaks[f"{name}: exponent"] = {"a": (*of, None, 0.2, 0.0)}
            # All move alike by so much that no width does by more than the other contrast allows.
            moved = {"a": (*of, THREE_QUARTERS, 0.0, 0.15)}
            breaks[f"{name}: change of ‖W‖ in ln"] = moved | {"also": (f"{name}: largest",)}
            shifted = {"a": (*of, THREE_QUARTERS, 0.06, 0.0)}
            breaks[f"{name}: change of the exponent"] = shifted | {"also": (f"{name}: largest",)}
            if both:
                breaks[f"{name}: largest"] = {"a": (*of, THREE_QUARTERS, 0.0, 0.12, 64)}
    return breaks


def quantity_breaks():
    """Of WS2."""
    breaks = {}
    for name, tensors in ws.FIXED_BY_MODEL.items():
        for arm, start in ws.STARTS.items():
            breaks[f"{name}, {start}"] = {"a": (OUTPUT, tensors[:1], (arm,), END, 0.4, 0.0)}
        breaks[f"{name}: exponent with"] = {"a": (OUTPUT, tensors[:1], (ws.FIXED,), END, -1.6, 0)}
    return breaks


def learned_breaks():
    """Of WS2.2."""
    breaks = {}
    for name, tensors in ws.FIXED_BY_MODEL.items():
        of = (OUTPUT, tensors[:1])
        breaks[f"{name}: exponent of"] = {"a": (*of, (ws.FROM_ONE, ws.FIXED), END, 0.4, 0.0)}
        breaks[f"{name}: exponent with"] = {"a": (*of, (ws.FIXED,), END, -1.6, 0.0)}
    return breaks


def output_breaks():
    """Of WS2b."""
    breaks = {}
    known = tuple(name for names in ws.FIXED_BY_MODEL.values() for name in names)
    for arm, start in ws.STARTS.items():
        for name, [tensor] in ws.FREE_IN_STREAM.items():
            shift = 0.05 - OUTPUTS[tensor]
            breaks[f"{name}, {start}"] = {"a": (OUTPUT, (tensor,), (arm,), END, shift, 0.0)}
        outputs = {"a": (OUTPUT, ("mlp.down",), (arm,), END, 0.5, 0.0)}
        breaks[f"outputs, {start}"] = outputs
        above = {"a": (OUTPUT, known, (arm,), END, 0.3, 0.0)}
        breaks[f"gate, {start}: exponent less that of logits"] = above
        below = {"a": (OUTPUT, ("mlp.gate",), (arm,), END, 0.3, 0.0)}
        breaks[f"gate, {start}: exponent less that of outputs"] = below
    return breaks


def multiplier_breaks():
    """Of WS3."""
    return {
        f"{name}, {start}": {"a": (SCALAR, ws.ACTIVATIONS[quantity][:1], (arm,), END, shift, 0.0)}
        for name, (quantity, expected) in ws.MULTIPLIERS.items()
        for (arm, start), shift in zip(ws.STARTS.items(), (-0.5 * expected, 0.5 * expected),
                                       strict=True)
    }  # fmt: skip


def alignment_breaks(local):
    """Of WS4, or with ``local`` slopes of WS4.2."""
    breaks = {}
    for name, (quantity, _) in ws.MULTIPLIERS.items():
        tensors = ws.ACTIVATIONS[quantity]
        for arm, start in ws.STARTS.items():
            of = (OUTPUT, tensors, (arm,))
            begins = f"{name}, {start}: "
            if not local:
                breaks[begins + "exponent"] = {"a": (*of, END, 0.3, 0.0)}
                breaks[begins + "ln of α"] = {"a": (*of, 0, 0.0, 2.0, 256)}
                continue
            # What grows from one width on breaks the slope to it alone.
            for low, high in zip(WIDTHS, WIDTHS[1:], strict=False):
                above = [width for width in WIDTHS if width >= high]
                breaks[f"{begins}slope of ln α in ln d, {low} to {high}"] = {
                    f"{width}": (*of, END, 0.0, 0.3, width) for width in above
                }
            for width in (64, 256):
                breaks[f"{begins}ln of α over that of the untrained, width {width}"] = {
                    "a": (*of, 0, 0.0, 3.0, width)
                }
    return breaks


def late_breaks():
    """Of WS6."""
    breaks = {}
    drift = (ws.DRIFT,)
    tensors = {"embedding": "embedding", "attention": "attention.out", "MLP": "mlp.down"}
    for name, tensor in tensors.items():
        of = (OUTPUT, (tensor,), drift)
        breaks[f"{name}: late growth"] = {"a": (*of, HALF, 0.0, 0.4, 32)}
        flat = -OUTPUTS[tensor]
        breaks[f"{name}: ln range"] = {"a": (*of, END, flat, 0.0), "b": (*of, HALF, flat, 0.0)}
    of = (OUTPUT, ("projector",), drift)
    breaks["projector: largest late"] = {"a": (*of, HALF, 0.0, 0.2, 128)}
    breaks["projector: ln range"] = {"a": (*of, END, 0.2, 0.0), "b": (*of, HALF, 0.2, 0.0)}
    return breaks


BREAKS = {
    "WS1": norm_breaks(False),
    "WS1.2": norm_breaks(True),
    "WS2": quantity_breaks(),
    "WS2.2": learned_breaks(),
    "WS2b": output_breaks(),
    "WS3": multiplier_breaks(),
    "WS4": alignment_breaks(False),
    "WS4.2": alignment_breaks(True),
    "WS6": late_breaks(),
}


MEASURED = [
    *[("WS1", f"{group}: exponent", NORMS[names[0]]) for group, names in ws.MATRICES.items()],
    *[("WS1.2", f"{group}, from 1: exponent", -1.2 * NORMS[names[0]])
      for group, names in ws.MATRICES.items()],
    ("WS1", "MLP: change of ‖W‖ in ln", -0.02),
    ("WS1", "SSM: change of the exponent", -0.015),
    ("WS1.2", "MLP, from 1: largest", 0.02 + 0.015 * np.log(4)),
    ("WS2", "logits, from 1", 0.02),
    ("WS2", "Q·K, from ∝ 1/d", 0.05),
    ("WS2", "dt, from 1", -0.03),
    ("WS2.2", "Q·K: exponent of", 0.05),
    ("WS2.2", "dt: exponent of", -0.03),
    ("WS2b", "embedding, from 1", 0.3),
    ("WS2b", "attention output, from ∝ 1/d", 0.4),
    ("WS2b", "SSM output, from 1", 0.35),
    ("WS2b", "outputs, from 1", 0.15),
    ("WS2b", "gate, from ∝ 1/d: exponent less that of logits", 0.2 - 0.04 / 3),
    ("WS2b", "gate, from 1: exponent less that of outputs", 0.2 - 0.375),
    ("WS3", "projector, from ∝ 1/d", 0.8),
    ("WS3", "dt, from 1", 0.75),
    ("WS3", "Q·K, from ∝ 1/d", 0.75),
    ("WS4", "projector, from ∝ 1/d: exponent", 0.02 + 0.8 - 1 + 0.03),
    ("WS4", "dt, from 1: exponent", -0.03 + 0.75 - 1 + 1.2 * 0.03),
    ("WS4", "Q·K, from ∝ 1/d: exponent", (0.05 + 1.5 - 2 - 2 * 0.02) / 2),
    ("WS4.2", "projector, from ∝ 1/d: slope of ln α in ln d, 64 to 128", -0.15),
    ("WS4.2", "Q·K, from ∝ 1/d: slope of ln α in ln d, 16 to 32", -0.245),
    ("WS4.2", "dt, from 1: slope of ln α in ln d, 128 to 256", -0.244),
    ("WS4", "projector, from ∝ 1/d: ln of α", np.log(2.4) + 0.35 * np.log(4)),
    ("WS4.2", "projector, from ∝ 1/d: ln of α over that of the untrained, width 64", np.log(2.4)),
    ("WS4.2", "Q·K, from 1: ln of α over that of the untrained, width 64", np.log(2.4)),
    ("WS6", "embedding: late growth", 0.1),
    ("WS6", "attention: ln range", 0.4 * np.log(16)),
    ("WS6", "MLP: ln range", 0.45 * np.log(16)),
    ("WS6", "projector: ln range", 0.02 * np.log(16)),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "name", "expected"), MEASURED)
def test_what_is_planted_is_measured(claim, name, expected):
    assert part(claim, world(), name).interval.mean == pytest.approx(expected, abs=6e-3)


def test_exponents_without_multipliers_stand_in_the_note():
    assert judged("WS2", world()).note.startswith("s fixed and s ∝ 1/d: logits +0.6")


def test_one_start_is_not_enough():
    only_from_one = world(*((OUTPUT, (name,), (ws.LEARNED,), END, -OUTPUTS[name], 0.0)
                            for [name] in ws.FREE_IN_STREAM.values()))  # fmt: skip
    judgement = judged("WS2b", only_from_one)
    assert judgement.groups == {"from ∝ 1/d": REFUTED, "from 1": HOLDS}
    assert judgement.verdict == PARTLY


def test_what_no_scale_moves_is_open():
    """Logits that are the same with any s say nothing of multipliers; Q·K and dt do."""
    one = (OUTPUT, ("projector",), (ws.FIXED,), END, -1.0, 0.0)
    judgement = judged("WS2", world(one))
    assert judgement.groups == {"logits": OPEN, "Q·K": HOLDS, "dt": HOLDS}
    wrong = judged("WS2", world((OUTPUT, ("projector",), (ws.FROM_ONE,), END, 0.5, 0.0)))
    assert wrong.groups == {"logits": REFUTED, "Q·K": HOLDS, "dt": HOLDS}


def test_width_16_is_left_out_of_ws2_2():
    """Whatever stands there."""
    odd = (OUTPUT, ("attention.q",), (ws.FROM_ONE,), END, 0.0, -3.0, 16)
    assert judged("WS2", world(odd)).groups["Q·K"] == REFUTED
    assert judged("WS2.2", world(odd)).groups == dict.fromkeys(ws.FIXED_BY_MODEL, HOLDS)
    one = (OUTPUT, ("projector",), (ws.FIXED,), END, -1.0, 0.0)
    still = judged("WS2.2", world(one))
    assert still.groups == {"logits": OPEN, "Q·K": HOLDS, "dt": HOLDS} and still.verdict == PARTLY


def test_norms_that_still_move_are_open():
    """One width that wanders leaves WS1 alone, and its own matrices of WS1.2 open."""
    one = (WEIGHT, ws.MATRICES["MLP"], (ws.LEARNED,), THREE_QUARTERS, 0.0, 0.12, 64)
    assert judged("WS1", world(one)).verdict == HOLDS
    groups = judged("WS1.2", world(one)).groups
    assert groups.pop("MLP") == OPEN and set(groups.values()) == {HOLDS}
    all_of_them = (*one[:3], THREE_QUARTERS, 0.0, 0.3)
    assert judged("WS1", world(all_of_them)).groups["MLP"] == OPEN


def test_norms_that_follow_the_width():
    steep = (WEIGHT, TENSORS, LEARN, None, 0.5, 0.0)
    assert judged("WS1", world(steep)).verdict == REFUTED
    assert judged("WS1.2", world((*steep[:4], -0.5, 0.0))).verdict == REFUTED


def test_multipliers_that_stay_where_they_began():
    flat = [(SCALAR, (name,), LEARN[:2], END, -SCALES[name], 0.0) for name in SCALES]
    assert judged("WS3", world(*flat)).verdict == REFUTED
    one = judged("WS3", world((SCALAR, ("projector",), (ws.FROM_ONE,), END, 0.6, 0.0)))
    assert one.groups == {"projector": REFUTED, "dt": HOLDS, "Q·K": HOLDS}


def test_an_alignment_that_was_never_learned_is_open():
    untrained = [(OUTPUT, tensors, LEARN[:2], 0, 0.0, 4.0)
                 for tensors in ws.FIXED_BY_MODEL.values()]  # fmt: skip
    for claim in ("WS4", "WS4.2"):
        assert judged(claim, world(*untrained)).verdict == OPEN


def test_an_alignment_that_stops_falling():
    """At large widths the projector's is flat; one exponent over all widths hides it."""
    flat = [(OUTPUT, ("projector",), LEARN[:2], END, 0.15, 0.0, width) for width in (128, 256)]
    assert judged("WS4", world(*flat)).verdict == HOLDS
    groups = judged("WS4.2", world(*flat)).groups
    assert groups.pop("projector beyond width 64") in (BELOW, REFUTED)
    assert set(groups.values()) == {HOLDS}
    rising = (OUTPUT, ("projector",), LEARN[:2], END, 0.5, 0.0)
    assert judged("WS4.2", world(rising)).groups["projector up to width 64"] == REFUTED


def test_growth_of_the_drifting_arm_alone():
    """Where there is no drifting arm, that with the usual learning rate is read."""
    frame = base()
    without = Tables(runs(), frame[frame["arm"] != ws.DRIFT])
    judgement = judged("WS6", without)
    assert judgement.groups["embedding"] == REFUTED
    assert judgement.groups["projector at rest"] == HOLDS


def test_a_dead_layer_and_an_unstable_seed():
    dead = (OUTPUT, ("attention.out",), (ws.DRIFT,), END, 0.0, -np.inf, 64)
    with np.errstate(divide="ignore", invalid="ignore"):
        groups = judged("WS6", world(dead)).groups
    assert groups.pop("attention") == OPEN and set(groups.values()) == {HOLDS}
    odd = (OUTPUT, ("mlp.down",), (ws.DRIFT,), END, 0.0, 5.0, "seed")
    groups = judged("WS6", world(odd)).groups
    assert groups.pop("MLP") == OPEN and set(groups.values()) == {HOLDS}


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_has_a_world_that_breaks_it_alone(claim):
    check_breaks(claim, world, BREAKS[claim])
