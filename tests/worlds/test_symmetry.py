"""Planted worlds of multipliers along symmetries: S0 to S4 and their second entries."""

import functools
import itertools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.quantities import symmetry
from analysis.tables.results import Tables
from tests.worlds.planted import COLUMNS, CRITERIA, check_breaks, judged, part, runs_of

SEEDS, LAYERS, DRAWS = range(200, 208), range(6), 8
STEPS, DECAY, HEAD, QUERIES, KEYS = 400, 100, 8, 4, 2
END = STEPS - DECAY
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY},
            "model": {"head_dim": HEAD}}  # fmt: skip
ARMS = ("NONE", "FREE", "FREE_ORDER", "LIGHT", "LITERAL")
SIDES = ("row", "column")
# Late changes of ln norms of the embedding and of the outputs of attention, SSM and MLP.
NONE = (0.02, -0.2, -0.05, 0.2)
FREE = (0.6, 0.45, 0.55, 0.7)
LIGHT = (0.03, 0.01, 0.06, -0.02)
LITERAL = (0.5, 0.4, 0.45, 0.55)


def normal(*key):
    """As many deviates as there are rotated pairs; they belong to ``key``."""
    seed = [sum(map(ord, str(word))) * (place + 3) for place, word in enumerate(key)]
    return np.random.default_rng(seed).standard_normal((KEYS, HEAD // 2))


def rows_of(ratio, product):
    """Q's and K's rows whose logarithms by pair have this ratio and this product."""
    halves = ((product + ratio) / 2, (product - ratio) / 2)
    return [
        np.exp(np.repeat(np.concatenate([half, half], axis=1), heads // KEYS, axis=0).ravel())
        for half, heads in zip(halves, (QUERIES, KEYS), strict=True)
    ]


def table(rows):
    return pd.DataFrame(rows, columns=COLUMNS)


@functools.cache
def vectors(still, drift, effective, same, learned, noise, light, walk):
    """By arm the rows of Q and K as the constant stage ends; see ``world``."""
    rows = []

    def add(arm, seed, layer, stat, ratio, product, step=END):
        for tensor, value in zip((symmetry.Q, symmetry.K), rows_of(ratio, product), strict=True):
            rows.append(("train", arm, seed, step, tensor, layer, stat, value))

    sizes = {"FREE": 1.0, "FREE_ORDER": 1.5, "LIGHT": light, "LITERAL": 0.9}
    for seed, layer in itertools.product(SEEDS, LAYERS):
        at = (seed, layer)
        apart = normal("still", *at)
        add("NONE", *at, "row_norms", still * apart, still * normal("product", *at))
        add("NONE", *at, "effective_row_norms", 5 * apart, 0 * apart)
        common = normal("common", *at)
        for arm, size in sizes.items():
            own = normal("other" if arm == "FREE_ORDER" else "own", *at)
            ratio = size * drift * (same * common + (1 - same**2) ** 0.5 * own)
            product = learned * normal("learned", *at) + noise * normal("noise" + arm, *at)
            add(arm, *at, "row_multiplier", ratio, product)
            add(arm, *at, "row_multiplier", 3 * ratio + 2, product, STEPS)
            add(arm, *at, "effective_row_norms", effective * own, product)
            add(arm, *at, "row_norms", 0.5 * own, product)
    for layer in LAYERS:
        walks = [normal("walk", layer, draw) for draw in range(DRAWS)]
        of_draws = [rows_of(walk * one, 0 * one) for one in walks]
        for place, tensor in enumerate((symmetry.Q, symmetry.K)):
            value = np.concatenate([draw[place] for draw in of_draws])
            rows.append(("brownian", "FREE", 0, END, f"{tensor}.row", layer, "values", value))
    return table(rows)


@functools.cache
def scalars(growth, brownian, odd, dead):
    """What is written to the stream: growth in the late half alone, and a fall after it."""
    rows = []
    for (arm, changes), seed in itertools.product(growth, SEEDS):
        for place, (tensor, change) in enumerate(zip(symmetry.WRITERS, changes, strict=True)):
            change = change + (seed - 203.5) * 1e-3 + (odd if seed == 203 and arm == "FREE" else 0)
            courses = {0: -1.0, END // 2: 0.0, END - 10: change / 2, END: change, STEPS: -3.0}
            for layer, (step, logarithm) in itertools.product(
                LAYERS if place else [np.nan], courses.items()
            ):
                value = 0.0 if dead and layer == 1 else np.exp(place + logarithm)
                rows.append(("train", arm, seed, step, tensor, layer, "activation_norm", value))
    for (place, tensor), side in itertools.product(enumerate(symmetry.WRITERS), SIDES):
        # Columns grow more than rows, and what ends the blocks more than the embedding.
        change = brownian / 2 + 0.02 * (place - 1.5) + (0.03 if side == "column" else -0.03)
        for layer, (step, logarithm) in itertools.product(
            LAYERS if place else [np.nan], ((0, -1.0), (END // 2, 0.0), (END, change), (STEPS, 3.0))
        ):
            value = np.exp(logarithm)
            name = f"{tensor}.{side}"
            rows.append(("brownian", "FREE", 0, step, name, layer, "weight_norm", value))
    for tensor in (*symmetry.WRITERS, "attention.q.row"):
        rows += [("brownian", "FREE", 0, step, tensor, 0, "weight_norm", 1.0 + step / 10)
                 for step in (END // 2, END)]  # fmt: skip
    return table(rows)


@functools.cache
def world(
    still=0.06, drift=0.3, effective=0.25, same=0.0, learned=0.5, noise=0.1, light=0.5, walk=0.2,
    none=NONE, free=FREE, light_growth=LIGHT, literal=LITERAL, brownian=0.4, odd=0.0, dead=False,
):  # fmt: skip
    """Rows of Q and K apart by ``still`` without multipliers; ratios of multipliers drift.

    ``effective``: how far effective rows of Q and K lie apart with multipliers; ``same``: how
    much of the drift comes back in another order of the data; ``learned`` and ``noise``: what of
    the products does, and what does not; ``light``: the drift that light weight decay leaves;
    ``walk``: Brownian motion of the ratios. ``none``, ``free``, ``light_growth``, ``literal``: by
    how much what is written to the stream grows in each arm; ``brownian``: of its multipliers'
    Brownian motion. ``odd``: how much more it grows in one seed; ``dead``: a layer writes nothing.
    """
    growth = (("NONE", none), ("FREE", free), ("LIGHT", light_growth), ("LITERAL", literal),
              ("FREE_ORDER", (2.0, 2.0, 2.0, 2.0)))  # fmt: skip
    return Tables(
        runs_of(ARMS, SEEDS, SETTINGS),
        scalars(growth, brownian, odd, dead),
        vectors(still, drift, effective, same, learned, noise, light, walk),
    )


def alike(change):
    return (change,) * 4


APART = {"spread of ln (Q / K)": {"still": 0.2, "effective": 0.5}}
MOVED = {"ln of that spread": {"effective": 0.07}}
BREAKS = {
    "S0": {**APART, **MOVED, "common to the four": {"none": alike(0.1)}},
    "S0.2": {
        **APART, **MOVED,
        "mean over the four": {"none": alike(0.2)},
        "less that without": {"free": alike(0.2)},
    },
    "S1": {
        "relative to Brownian": {"walk": 1.2},
        "difference between two data orders": {"noise": 0.5, "learned": 1.0},
        "correlation of ln (Q / K)": {"same": 0.8},
        "correlation of ln (Q · K)": {"learned": 0.0},
    },
    "S2": {"light weight decay": {"light": 0.95}},
    "S3": {
        "common to the four": {"free": alike(-0.3), "none": alike(-0.5)},
        "less that without": {"none": alike(0.5)},
    },
    "S3.2": {
        "mean over the four": {"free": alike(0.03), "none": alike(-0.2), "brownian": -0.2},
        "less that without": {"none": alike(0.6)},
        "least of the four": {"free": (0.8, -0.1, 0.9, 0.7)},
        "the mean, less": {"brownian": 0.8},
    },
    "S4": {
        "half of": {"free": alike(0.06), "light_growth": alike(0.04)},
        "with light weight decay": {"light_growth": alike(0.1)},
    },
}  # fmt: skip
BREAKS["S4.2"] = BREAKS["S4"]


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_has_a_world_that_breaks_it_alone(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize(
    ("claim", "name", "changes", "expected"),
    [
        ("S0", "spread of ln (Q / K)", {}, 0.06),
        ("S0", "common to the four", {"none": alike(0.1)}, 0.1),
        ("S0", "common to the four", {"none": (-0.4, -0.1, -0.2, -0.3)}, -0.1),
        ("S0.2", "mean over the four", {}, -0.0075),
        ("S0.2", "less that without", {}, 0.5825),
        ("S3", "common to the four", {}, 0.45),
        ("S3", "common to the four", {"free": (0.4, 0.5, 0.6, -0.1)}, 0.0),
        ("S3", "less that without", {"none": alike(0.1)}, 0.35),
        ("S3.2", "mean over the four", {}, 0.575),
        ("S3.2", "less that without", {}, 0.5825),
        ("S3.2", "least of the four", {}, 0.45),
        ("S3.2", "the mean, less", {}, 0.175),
        ("S4", "half of", {}, 0.225),
        ("S4", "with light weight decay", {"light_growth": alike(0.1)}, 0.1),
        ("S4.2", "half of", {}, 0.2675),
        ("S4.2", "with light weight decay", {}, 0.02),
    ],
)
def test_what_is_planted_is_measured(claim, name, changes, expected):
    found = part(claim, world(**changes), name).interval
    assert found.mean == pytest.approx(expected, rel=0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("claim", "name", "changes", "factor"),
    [
        ("S0", "ln of that spread", {"effective": 0.5}, 2.0),
        ("S1", "difference between two", {"noise": 0.05}, 2.0),
        ("S2", "with light weight decay", {"light": 0.25}, 0.5),
    ],
)
def test_logarithms_of_quotients_are_measured(claim, name, changes, factor):
    first, second = (part(claim, w, name).interval.mean for w in (world(), world(**changes)))
    assert second - first == pytest.approx(np.log(factor), abs=0.02)
    assert part("S2", world(), "light").interval.mean == pytest.approx(np.log(0.5), abs=0.05)


def test_drift_is_of_the_first_data_order_relative_to_noise():
    drift = part("S1", world(), "relative to Brownian").interval.mean
    assert drift == pytest.approx(0.3 / 0.2, rel=0.1)


def test_of_the_notes():
    assert judged("S2", world()).note == "literal 2e-3: -0.105"
    assert judged("S0", world()).note.startswith("embedding +0.020, attention.out -0.200")
    assert judged("S3", world()).note.endswith("mlp.down +0.700")
    assert judged("S3.2", world()).note.endswith("Brownian motion +0.400")
    assert judged("S4", world()).note == "without: +0.450, literal 2e-3: +0.400"
    assert judged("S4.2", world()).note == "without: +0.575, literal 2e-3: +0.475"


def test_without_a_contrast_nothing_is_said():
    """Multipliers that move nothing leave the pairs open, and not the stream."""
    for claim in ("S0", "S0.2"):
        still = judged(claim, world(effective=0.07)).groups
        assert still == {"Q against K": OPEN, "residual stream": HOLDS}
    still = judged("S0.2", world(free=NONE)).groups
    assert still == {"Q against K": HOLDS, "residual stream": OPEN}


def test_the_stream_moves_without_multipliers():
    for claim in ("S0", "S0.2"):
        assert judged(claim, world(none=alike(0.2))).groups["residual stream"] == REFUTED
    # What four changes have in common is 0 where they differ in sign, however large.
    assert judged("S0", world(none=(0.9, 0.8, 0.7, -0.01))).groups["residual stream"] == HOLDS
    assert judged("S0.2", world(none=(0.9, 0.8, 0.7, -0.01))).groups["residual stream"] != HOLDS


def test_ratios_that_are_learned_and_products_that_are_noise():
    judgement = judged("S1", world(noise=0.5, learned=1.0))
    assert judgement.verdict == PARTLY
    assert judgement.line.startswith("The ratio drifts: yes. The product is stable: no. Beyond")
    ours = judged("S1", world(same=0.8, learned=0.0))
    assert ours.verdict == HOLDS
    said = "Beyond the paper: the ratio is random, the product is learned: no."
    assert said.lower() in ours.line.lower()


def test_drift_that_light_weight_decay_hardly_changes():
    assert judged("S2", world(light=0.95)).verdict == BELOW
    assert judged("S2", world(light=1.6)).verdict == REFUTED


def test_growth_that_is_brownian_motion():
    """It is the paper's growth, and nothing beyond noise."""
    judgement = judged("S3.2", world(brownian=0.575))
    assert judgement.verdict == HOLDS
    assert judgement.groups["more than noise alone would give"] == BELOW
    assert "Beyond the paper: more than noise alone would give: less" in judgement.line
    assert judged("S3.2", world(brownian=0.8)).verdict == HOLDS


@pytest.mark.parametrize("claim", ["S3", "S3.2"])
def test_growth_without_an_effect_or_reversed(claim):
    assert judged(claim, world(free=NONE)).verdict in (BELOW, REFUTED)
    assert judged(claim, world(free=alike(-0.5))).verdict == REFUTED
    assert judged(claim, world(none=FREE, free=NONE)).verdict == REFUTED
    assert judged(claim, world(odd=5.0)).verdict == OPEN


@pytest.mark.parametrize("claim", ["S4", "S4.2"])
def test_growth_that_is_slowed_alone(claim):
    slowed = judged(claim, world(light_growth=alike(0.1)))
    assert slowed.groups == {"slows the growth": HOLDS, "stops the growth": REFUTED}
    assert slowed.verdict == PARTLY
    assert judged(claim, world(light_growth=FREE, free=LIGHT)).verdict == REFUTED


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("claim", ["S3", "S3.2", "S4", "S4.2"])
def test_a_dead_layer_is_no_verdict(claim):
    assert judged(claim, world(dead=True)).verdict == OPEN


def test_criteria_name_their_seeds():
    for claim in ("S0.2", "S3.2", "S4.2"):
        assert CRITERIA[claim]["seeds"]["planned"] == len(SEEDS)


def test_a_planted_symmetry_is_in_the_ratio_alone():
    change = normal("planted")
    change -= change.mean()
    for place, rows in enumerate((rows_of(0 * change, change), rows_of(change, 0 * change))):
        pairs = symmetry.rotated_pairs(*rows, HEAD)
        assert np.allclose(pairs[place], change) and np.allclose(pairs[1 - place], 0)


def test_independent_noise_is_in_both_alike():
    generator = np.random.default_rng(0)
    rows = (np.exp(0.1 * generator.standard_normal((2, 16))) for _ in range(3000))
    pairs = [symmetry.rotated_pairs(q, k, HEAD) for q, k in rows]
    product, ratio = (np.std([pair[place] for pair in pairs]) for place in (0, 1))
    assert product == pytest.approx(ratio, rel=0.03)
