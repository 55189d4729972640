"""Planted worlds of the scales over depth and width: D1 to D3, W1 to W3, and second entries."""

import functools
import re
import zlib

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.quantities.scale_diversity import AXES, BLOCKS, GROUPS, INTERNAL
from analysis.tables.results import Tables
from tests.worlds.planted import COLUMNS, check_breaks, judged, part, verdicts

SEEDS, DEPTH = range(200, 224), 8
LAYERS = np.arange(DEPTH)
STEPS, DECAY = 400, 100
END = STEPS - DECAY
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
ROWS = {"mlp.gate": 128, "attention.q": 32, "attention.k": 16, "attention.v": 16,
        "ssm.z": 96, "ssm.x": 96, "ssm.B": 16, "ssm.C": 16, "ssm.dt": 3}  # fmt: skip
D_IN = 64
# One sign or the other, without a slope over eight layers or the last four, and another such
# pattern that has nothing in common with it in the last four.
ZIGZAG = np.array([1, -1, -1, 1, 1, -1, -1, 1])
OTHER = np.array([1, 1, -1, -1, 1, 1, -1, -1])
# Rise of 1 from the first layer to the last.
RISE = LAYERS / (DEPTH - 1) - 0.5
# What another order of the data adds to every rise.
AGAIN = 0.1


def normal(*key, size):
    generator = np.random.default_rng(zlib.crc32(repr(key).encode()))
    return generator.standard_normal(size)


def draws(*key, spread, size):
    """|multiplier| of Brownian motion, with exactly this sd of its logarithm."""
    logs = normal("brownian", *key, size=size)
    return np.exp(spread * (logs - logs.mean()) / logs.std(ddof=1))


def brownian(spread, step=END):
    """Of the scalar many draws, of the vectors many entries."""
    kinds = [("SCALAR", "scalar", "weight_norm_draws"), ("VECTOR", "row", "values"),
             ("VECTOR", "column", "values")]  # fmt: skip
    rows = [
        ("brownian", arm, 0, step, f"mlp.gate.{axis}", 0, stat,
         draws(axis, spread=spread, size=2000))
        for arm, axis, stat in kinds
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def runs():
    rules = [
        {"tensor": f"{tensor}@{layer}", "multiplier": None, "shape": [rows, D_IN]}
        for tensor, rows in ROWS.items()
        for layer in LAYERS
    ]
    description = {"settings": SETTINGS, "rules": rules}
    return pd.DataFrame([{"kind": "train", "arm": "NONE", "seed": 200, "description": description}])


@functools.cache
def depth(
    outputs=(0.9, 0.6, 0.4),
    multipliers=(0.5, 0.35, 0.45),
    zigzag=(0.5, 0.1, 0.12),
    apart=0.0,
    out=(0.4, 0.4, 0.0),
    dt=(0.4, 0.45),
    walk=0.04,
    own=0.0,
    jitter=0.02,
    dead=(),
    unstable=False,
    swapped=False,
    seeds=SEEDS,
):
    """What multipliers do over depth: attention, SSM, MLP.

    ``outputs``, ``multipliers``: rise of ln ratio and of ln |s_out|; ``zigzag``: size of the
    pattern in ln ratio, on which orders of the data lie ``apart`` to either side. ``out``: size of
    the pattern in attention's ln |s_out| in either order, and of another pattern in the second.
    ``dt``: of the pattern in ln |s_dt| in either order, ``own``: of one that each seed has for
    itself. ``walk``: sd of Brownian motion; ``jitter``: of everything's noise. ``dead``: layers of
    attention that are switched off in two seeds.
    """
    n, series, logarithms = len(seeds), [], []

    def add(arm, tensor, stat, logs):
        series.append((arm, tensor, stat))
        logarithms.append(logs + jitter * normal(arm, tensor, stat, size=(n, DEPTH)))

    base = {block: 0.3 * normal("base", block, size=(n, DEPTH)) for block in BLOCKS}
    names = {name for tensors in INTERNAL.values() for name in tensors} | set(BLOCKS.values())
    flat = np.zeros((n, DEPTH))
    for block, tensor in BLOCKS.items():
        add("SCALAR" if swapped else "NONE", tensor, "activation_norm", base[block])
    for order, arm in enumerate(("SCALAR", "SCALAR_ORDER")):
        logs = dict.fromkeys(sorted(names), flat)
        for number, (block, tensor) in enumerate(BLOCKS.items()):
            ratio = (outputs[number] + AGAIN * order) * RISE + zigzag[number] * ZIGZAG - 1.0
            logs[tensor] = flat + (multipliers[number] + AGAIN * order) * RISE
            if block == "attention":
                ratio = ratio + apart * (-1) ** order * OTHER
                logs[tensor] = logs[tensor] + out[order] * ZIGZAG + out[2] * order * OTHER
            ratio = np.tile(ratio, (n, 1))
            if block == "attention":
                ratio[:2, list(dead)] = -14.0
                ratio[0] += 40.0 * RISE if unstable else 0.0
            place = "NONE" if swapped and not order else arm
            add(place, tensor, "activation_norm", base[block] + ratio)
        logs["ssm.dt"] = dt[order] * ZIGZAG + own * normal("own", size=(n, DEPTH))
        for tensor, log in logs.items():
            add(arm, tensor, "scalar_multiplier_norm", log)
    # What does not belong to the end of the constant stage falls over depth.
    steps, signs = (END // 2, END, STEPS), (-1.0, 1.0, -2.0)
    values = np.exp(np.multiply.outer(signs, logarithms))  # by step, series, seed, layer
    at = [index.ravel() for index in np.indices(values.shape)]
    arms, tensors, stats = (np.array(names)[at[1]] for names in zip(*series, strict=True))
    table = {"kind": "train", "arm": arms, "seed": np.array(seeds)[at[2]],
             "step": np.array(steps)[at[0]], "tensor": tensors, "layer": at[3], "stat": stats,
             "value": values.ravel()}  # fmt: skip
    return Tables(runs(), pd.DataFrame(table), brownian(walk))


def test_d1():
    assert part("D1", depth(), "rise").interval.mean == pytest.approx(1.9 / 3, abs=0.02)
    check_breaks("D1", depth, {"rise": {"outputs": (-0.9, 0.6, 0.1)}})
    assert judged("D1", depth(swapped=True)).verdict == REFUTED
    assert judged("D1", depth(outputs=(0.0, 0.0, 0.0))).verdict == BELOW
    note = judged("D1", depth()).note
    assert "attention +0.90 (median +0.90), outputs 2.7 times smaller" in note
    assert "MLP +0.41 (median +0.40), outputs 2.7" in note


def test_each_part_of_d1_2_has_a_world_that_breaks_it_alone():
    breaks = {}
    for number, block in enumerate(BLOCKS):
        for what, planted in (("outputs", [0.9, 0.6, 0.4]), ("multipliers", [0.5, 0.35, 0.45])):
            planted[number] = -0.4
            name = "ln(output norm" if what == "outputs" else "ln |s_out|"
            breaks[f"{block}: rise of {name}"] = {what: tuple(planted)}
    check_breaks("D1.2", depth, breaks)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("attention: rise of ln(", 0.9),
        ("SSM: rise of ln(", 0.6),
        ("MLP: rise of ln(", 0.4),
        ("attention: rise of ln |", 0.5),
        ("SSM: rise of ln |", 0.35),
        ("MLP: rise of ln |", 0.45),
    ],
)
def test_d1_2_measures_the_mean_of_both_orders(name, planted):
    measured = part("D1.2", depth(), name).interval.mean
    assert measured == pytest.approx(planted + AGAIN / 2, abs=0.015)


def test_d1_2_bears_dead_layers_and_knows_flat_ones():
    for layers in ((0,), (7,), (2, 6)):
        assert judged("D1.2", depth(dead=layers)).verdict == HOLDS
    flatter = {"outputs": (0.3, 0.3, 0.3), "zigzag": (0.1, 0.1, 0.1), "dead": (7,)}
    assert judged("D1", depth(**flatter, seeds=SEEDS[:8])).verdict == OPEN
    assert judged("D1.2", depth(**flatter)).verdict == HOLDS
    assert judged("D1.2", depth(unstable=True)).groups["attention outputs"] == OPEN
    flat = judged("D1.2", depth(outputs=(-0.05,) * 3, multipliers=(-0.05,) * 3))
    assert flat.verdict == BELOW
    assert judged("D1.2", depth(outputs=(0.9, 0.6, -0.4))).verdict == PARTLY
    assert judged("D1.2", depth(seeds=SEEDS[:15])).verdict == OPEN


D2_BREAKS = {
    "sd over the second half": {"zigzag": (0.1, 0.02, 0.02), "outputs": (0.1, 0.1, 0.1)},
    "sd between data orders": {"apart": 0.5},
    "Brownian motion": {"walk": 0.5},
    "MLP's": {"zigzag": (0.5, 0.1, 0.9)},
    "SSM's": {"zigzag": (0.5, 0.9, 0.12)},
    "other order's ln |s_out|": {"out": (-0.4, -0.4, 0.0)},
    "ln |s_out| between data orders": {"out": (0.4, 0.12, 0.38)},
}


def test_each_part_of_d2_has_a_world_that_breaks_it_alone():
    check_breaks("D2", depth, D2_BREAKS)


def test_d2_measures_what_is_planted():
    def sd(rise, zigzag):
        return np.std((rise * RISE + zigzag * ZIGZAG)[4:], ddof=1)

    world = judged("D2", depth(apart=0.1))
    seen = {p.name: p.interval.mean for p in world.parts}
    own = np.std((0.9 * RISE + 0.5 * ZIGZAG + 0.1 * OTHER)[4:], ddof=1)
    between = np.std((-0.1 * RISE + 0.2 * OTHER)[4:], ddof=1)
    for name, value in {
        "sd over the second half": own,
        "sd between data orders": own - between,
        "Brownian motion": own - 0.08,
        "MLP's": own - sd(0.4, 0.12),
        "SSM's": own - sd(0.6, 0.1),
    }.items():
        [measured] = [v for k, v in seen.items() if name in k]
        assert measured == pytest.approx(value, abs=0.03), name
    assert part("D2", depth(), "other order's").interval.mean == pytest.approx(0.96, abs=0.04)
    opposed = depth(out=(0.4, -0.4, 0.0))
    # The first order's ratio goes against the second's multiplier, and the reverse not.
    assert part("D2", opposed, "other order's").interval.mean == pytest.approx(0.0, abs=0.1)
    # Either order's ratio has a part that only the other order's multiplier has.
    crossed = depth(apart=0.5, out=(0.4, 0.12, 0.38))
    assert part("D2", crossed, "other order's").interval.mean == pytest.approx(0.8, abs=0.1)
    assert judged("D2", depth()).note.endswith("ln |s|: 0.040")


D2_2_BREAKS = {
    "ratio, over 0.2": {
        "zigzag": (0.1, 0.02, 0.02),
        "outputs": (0.1, 0.1, 0.1),
        "out": (0.08, 0.08, 0.0),
        "multipliers": (0.05,) * 3,
    },
    "over that without": {"out": (-0.4, -0.4, 0.0)},
    "Brownian motion": {"walk": 0.5},
    "between the data orders": {
        "apart": 0.9,
        "out": (0.4, 0.4, 0.0),
        "also": ("over that without",),
    },
}


def test_each_part_of_d2_2_has_a_world_that_breaks_it_alone():
    check_breaks("D2.2", depth, D2_2_BREAKS)


def test_d2_2_measures_what_is_planted():
    world = depth(outputs=(0.0,) * 3, multipliers=(-AGAIN / 2,) * 3, jitter=1e-4)
    own, out = 0.5, 0.4
    size = np.std(ZIGZAG[4:], ddof=1)
    seen = {p.name: p.interval.mean for p in judged("D2.2", world).parts}
    for name, value in {
        "ratio, over 0.2": np.log(own * size / 0.2),
        "over that without": np.log(own / (own - out)),
        "Brownian motion": np.log(own * size / 0.08),
        "between the data orders": 1.0,
    }.items():
        [measured] = [v for k, v in seen.items() if name in k]
        assert measured == pytest.approx(value, abs=0.03), name


def test_the_papers_statement_of_d2_2_is_apart_from_ours():
    assert judged("D2.2", depth(**D2_2_BREAKS["Brownian motion"])).verdict == HOLDS
    against = judged("D2.2", depth(out=(-0.4, -0.4, 0.0)))
    assert against.verdict == PARTLY
    assert against.groups["out multipliers amplify it"] == REFUTED
    assert judged("D2.2", depth(seeds=SEEDS[:23])).verdict == OPEN


def test_the_papers_statement_of_d2_is_apart_from_ours():
    for name in ("sd between data orders", "Brownian motion", "MLP's", "SSM's"):
        assert judged("D2", depth(**D2_BREAKS[name])).verdict == HOLDS
    assert judged("D2", depth(zigzag=(0.05, 0.0, 0.0), outputs=(0.0,) * 3)).verdict == PARTLY
    assert judged("D2", depth(seeds=SEEDS[:7])).verdict == OPEN


@pytest.mark.parametrize("world", range(4))
def test_random_walks_are_rarely_heard(world):
    """Even though s_out is a part of the ratio that it is set beside."""
    walk = {"zigzag": (0.0,) * 3, "out": (0.0,) * 3, "outputs": (0.0,) * 3, "dt": (0.0, 0.0)}
    silent = depth(**walk, multipliers=(0.0,) * 3, jitter=0.2 + 0.01 * world, walk=0.2)
    for claim in ("D1", "D1.2", "D2"):
        assert judged(claim, silent).verdict != HOLDS
    assert judged("D3.2", silent).groups["the same layers in other seeds and data"] != HOLDS


def test_each_part_of_d3_has_a_world_that_breaks_it_alone():
    breaks = {"sd over layers": {"walk": 0.8}, "correlation": {"dt": (0.4, -0.4)}}
    check_breaks("D3", depth, breaks)
    measured = part("D3", depth(), "sd over layers").interval.mean
    assert measured == pytest.approx(np.log(0.4 * (8 / 7) ** 0.5 / 0.04), abs=0.02)
    assert judged("D3", depth(walk=0.42)).groups["more than Brownian motion"] == BELOW
    # Only ours was judged.
    assert judged("D3", depth()).verdict == OPEN
    note = judged("D3", depth()).note
    assert re.search(r"dt 0\.42\d, z 0\.0[12]\d, .* of Brownian motion 0\.040$", note)


def test_each_part_of_d3_2_has_a_world_that_breaks_it_alone():
    breaks = {
        "sd over layers": {"dt": (0.1, 0.9)},
        "above 0": {"dt": (0.4, -0.4), "also": ["of an sd of 0.2"]},
        "of an sd of 0.2": {"dt": (0.4, 0.05)},
    }
    check_breaks("D3.2", depth, breaks)


def test_d3_2_measures_what_all_seeds_have_in_common():
    shared = 0.4 * 0.45 * 8 / 7
    assert part("D3.2", depth(), "above 0").interval.mean == pytest.approx(shared, abs=0.01)
    assert part("D3.2", depth(), "of an sd").interval.mean == pytest.approx(shared, abs=0.01)
    # Patterns that each seed has for itself repeat in the other order of the data alone.
    each = judged("D3.2", depth(dt=(0.0, 0.0), own=0.4))
    assert each.verdict == HOLDS
    assert each.groups["the same layers in other seeds and data"] != HOLDS
    assert each.groups["strongly the same layers"] == REFUTED
    assert verdicts("D3", depth(dt=(0.0, 0.0), own=0.4))[
        "correlation of ln |s_dt| between data orders"
    ] == HOLDS  # fmt: skip
    little = judged("D3.2", depth(dt=(0.08, 0.08)))
    assert little.verdict == REFUTED
    assert little.groups["the same layers in other seeds and data"] == BELOW


NAMES = list(GROUPS)


@functools.cache
def width(
    plain=(0.1, 0.1, 0.1),
    learned=(0.5, 0.55, 0.6),
    walk=(0.1, 0.1, 0.1),
    repeat=(1.0, 1.0, 1.0),
    drift=(0.0, 0.0, 0.0),
    noise=0.25,
    dead=False,
    swapped=False,
    step=END,
    seeds=SEEDS[:8],
):
    """Rows and columns of attention input, SSM input and MLP gate, in two layers.

    ``plain``: relative spread without multipliers; ``learned`` and ``walk``: sd of ln |multiplier|
    that is learned, of which the other order of the data learns ``repeat`` times as much, and that
    is of the run; columns learn a tenth more. ``noise``: sd of Brownian motion's ln. ``drift``:
    change of ln ‖W‖ over the constant stage.
    """
    rows, scalars = [], []
    kind = {tensor: NAMES.index(g) for g, tensors in GROUPS.items() for tensor in tensors}
    for tensor, count in ROWS.items():
        g = kind[tensor]
        for layer in (0, 1):
            for number, seed in enumerate(seeds):
                at = ("train", tensor, layer, seed)
                for when in (END // 2, END * 3 // 4, END):
                    value = 0.1 * np.exp(drift[g] * when / END)
                    scalars.append(("train", "NONE", seed, when, tensor, layer, "weight_norm",
                                    value))  # fmt: skip
                for axis, size in (("rows", count), ("columns", D_IN)):
                    word = AXES[axis]
                    more = 1.1 if axis == "columns" else 1.0
                    base, taught, *walks = normal(*at, axis, size=(4, size))
                    alone = 0.1 * np.exp(plain[g] * base)
                    if dead and not number:
                        alone[0] = 1e-9
                    arms = {"NONE": [(f"{word}_norms", alone)]}
                    for order, arm in enumerate(("VECTOR", "VECTOR_ORDER")):
                        log = (
                            more * learned[g] * repeat[g] ** order * taught + walk[g] * walks[order]
                        )
                        effective = 0.2 * np.exp(0.1 * base + log)
                        arms[arm] = [
                            (f"{word}_multiplier", np.exp(log)),
                            (f"effective_{word}_norms", effective),
                        ]
                    if swapped:
                        arms["NONE"] = [(f"{word}_norms", arms["VECTOR"][1][1])]
                        arms["VECTOR"][1] = (f"effective_{word}_norms", alone)
                    rows += [
                        ("train", arm, seed, step, tensor, layer, stat, value)
                        for arm, values in arms.items()
                        for stat, value in values
                    ]
    vectors = pd.concat([pd.DataFrame(rows, columns=COLUMNS), brownian(noise, step)])
    scalars = pd.DataFrame(scalars, columns=COLUMNS)
    return Tables(runs(), scalars, vectors.reset_index(drop=True))


def one(number, value, rest):
    """``rest`` for every group but this one."""
    return tuple(value if i == number else r for i, r in enumerate(rest))


def test_each_part_of_w1_has_a_world_that_breaks_it_alone():
    breaks = {}
    for number, group in enumerate(NAMES):
        breaks[f"{group}: relative spread"] = {"plain": one(number, 0.4, (0.1,) * 3)}
        breaks[f"{group}: |Δ"] = {"drift": one(number, 2.0, (0.0,) * 3)}
    check_breaks("W1", width, breaks)


@pytest.mark.parametrize(("group", "plain"), [("attention", 0.14), ("SSM", 0.16), ("MLP", 0.2)])
def test_w1_measures_what_is_beyond_noise(group, plain):
    world = width(plain=(0.14, 0.16, 0.2), drift=(0.1, 0.2, 0.4))
    beyond = (plain**2 - 1 / (2 * D_IN)) ** 0.5
    measured = part("W1", world, f"{group} input: rel" if group != "MLP" else "MLP gate: rel")
    assert measured.interval.mean == pytest.approx(beyond, rel=0.1)
    change = {"attention": 0.025, "SSM": 0.05, "MLP": 0.1}[group]
    moved = part("W1", world, f"{group} input: |Δ" if group != "MLP" else "MLP gate: |Δ")
    assert moved.interval.mean == pytest.approx(change)
    assert "sd: attention input 0.1" in judged("W1", world).note


def test_norms_that_still_move_say_nothing_of_their_group_alone():
    groups = judged("W1", width(drift=(0.0, 2.0, 0.0))).groups
    assert groups == {"attention input": HOLDS, "SSM input": OPEN, "MLP gate": HOLDS}


def breaks_of_width(again):
    breaks = {}
    for number, group in enumerate(NAMES):
        breaks[f"{group}: ln of the {{axis}}' spread over that"] = {
            "plain": one(number, 2.0, (0.1,) * 3)
        }
        breaks[f"{group}: ln of the {{axis}}' spread over Brownian"] = {
            "learned": one(number, 0.15, (0.5, 0.55, 0.6)),
            "walk": one(number, 0.05, (0.1,) * 3),
        }
        breaks[f"{group}: correlation"] = {"repeat": one(number, again, (1.0,) * 3)}
    return breaks


@pytest.mark.parametrize(
    ("claim", "again"), [("W2", 0.0), ("W3", -1.0), ("W2.2", 0.0), ("W3.2", 0.0)]
)
def test_each_part_of_w2_and_w3_has_a_world_that_breaks_it_alone(claim, again):
    axis = "rows" if claim.startswith("W2") else "columns"
    breaks = {name.format(axis=axis): v for name, v in breaks_of_width(again).items()}
    check_breaks(claim, width, breaks)


@pytest.mark.parametrize(("axis", "claim"), [("rows", "W2"), ("columns", "W3")])
def test_spreads_and_what_repeats_are_measured(axis, claim):
    """Of rows whose logarithms are normal, the relative spread is sqrt(exp(sd²) − 1)."""
    world = width(plain=(0.2, 0.1, 0.15), walk=(0.2, 0.3, 0.4), noise=0.3)
    for number, group in enumerate(NAMES):
        learned = (0.5, 0.55, 0.6)[number] * (1.1 if axis == "columns" else 1.0)
        run = (0.2, 0.3, 0.4)[number]
        square = learned**2 + run**2

        def relative(square):
            return np.log(np.exp(square) - 1) / 2

        for over, other in (("that without", (0.2, 0.1, 0.15)[number] ** 2),
                            ("Brownian", 0.1**2 + 0.3**2)):  # fmt: skip
            measured = part(claim, world, f"{group}: ln of the {axis}' spread over {over}")
            planted = relative(square + 0.01) - relative(other)
            assert measured.interval.mean == pytest.approx(planted, abs=0.12)
        repeated = learned**2 / square
        measured = part(claim, world, f"{group}: correlation").interval.mean
        assert measured == pytest.approx(repeated, abs=0.07)
        gap = part(f"{claim}.2", world, f"{group}: correlation").interval.mean
        assert gap == pytest.approx(repeated - (1 - 0.3**2 / square) / 2, abs=0.07)


def test_a_pattern_need_not_repeat_more_than_its_spread_allows():
    """As much noise as Brownian motion, and as much that is learned: r = ½ can be had at most."""
    world = width(learned=(0.35,) * 3, walk=(0.45,) * 3, noise=0.45)
    groups = {claim: judged(claim, world).groups for claim in ("W2", "W2.2")}
    for group in NAMES:
        assert groups["W2"][f"{group} repeats in other data"] == REFUTED
        assert groups["W2.2"][f"{group} repeats in other data"] == HOLDS


def test_a_pattern_that_noise_outweighs_must_still_repeat_by_a_tenth():
    held = width(learned=(0.0,) * 3, walk=(0.1,) * 3, noise=0.6)
    measured = part("W2.2", held, "SSM input: correlation").interval.mean
    assert measured == pytest.approx(-0.1, abs=0.05)


@pytest.mark.parametrize("claim", ["W2", "W3", "W2.2", "W3.2"])
def test_the_papers_statement_of_breadth_is_apart_from_ours(claim):
    """Multipliers that walk broaden; that is the paper's statement, and no more."""
    walks = judged(claim, width(learned=(0.0,) * 3, walk=(0.25,) * 3, noise=0.25))
    assert walks.verdict == HOLDS
    ours = {group: word for group, word in walks.groups.items() if group not in NAMES}
    assert len(ours) == 6 and HOLDS not in ours.values()
    assert judged(claim, width(swapped=True)).verdict == REFUTED
    still = judged(claim, width(learned=(0.0,) * 3, walk=(0.02,) * 3))
    assert still.groups["MLP gate"] == BELOW
    assert judged(claim, width(plain=(0.1, 0.1, 2.0))).verdict == PARTLY


def test_too_few_seeds():
    for claim, enough in (("W1", 3), ("W2", 3), ("W2.2", 8)):
        assert judged(claim, width(seeds=SEEDS[: enough - 1])).verdict == OPEN


def test_notes_tell_of_dead_rows_and_of_the_step():
    assert "dead: NONE 18" in judged("W1", width(dead=True)).note
    assert "dead: NONE 18, VECTOR 0, ABM 0" in judged("W2", width(dead=True)).note
    assert "read after the decay" not in judged("W2", width()).note
    assert judged("W2", width(step=STEPS)).note.endswith("read after the decay")
