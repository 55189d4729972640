"""Scales over depth and width: judging functions and figures 2 and 3."""

import subprocess
import zlib
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import warm
from PIL import Image

from analysis.claims.judges import judge_of
from analysis.claims.judging import NOT, OPEN, PARTLY, REPRODUCED
from analysis.drawing.style import STYLE_FILE
from analysis.figures import fig2, fig3
from analysis.quantities.scale_diversity import (
    AXES,
    BLOCKS,
    GROUPS,
    INTERNAL,
    distributions,
    mixture_spread,
    repeats,
    rise,
    second_half,
)
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

ROOT = Path(__file__).parents[1]
SEEDS, LAYERS = range(100, 108), range(8)
STEPS, DECAY = 400, 100
END = STEPS - DECAY
D_IN = 64
ROWS = {"mlp.gate": 128, "attention.q": 32, "attention.k": 16, "attention.v": 16,
        "ssm.z": 96, "ssm.x": 96, "ssm.B": 16, "ssm.C": 16, "ssm.dt": 3}  # fmt: skip
DEPTH, WIDTH = ("D1", "D2", "D3"), ("W1", "W2", "W3")
COLUMNS = ["kind", "arm", "seed", "step", "tensor", "layer", "stat", "value"]
# What Brownian motion does to a multiplier in these worlds.
NOISE = 0.25


def normal(*key, size=()):
    generator = np.random.default_rng(zlib.crc32(repr(key).encode()))
    return generator.standard_normal(size)


def table_of_runs():
    settings = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
    rules = [
        {"tensor": f"{tensor}@{layer}", "multiplier": None, "shape": [rows, D_IN]}
        for tensor, rows in ROWS.items()
        for layer in LAYERS
    ]
    description = {"settings": settings, "rules": rules}
    return pd.DataFrame([{"kind": "train", "arm": "NONE", "description": description}])


def brownian():
    """64 draws of the scalar, one of the vectors."""
    rows = [
        ("brownian", arm, 0, END, f"mlp.gate.{axis}", 0, stat,
         np.exp(NOISE * normal("brownian", axis, size=size)))
        for arm, axis, stat, size in (
            ("SCALAR", "scalar", "weight_norm_draws", 64),
            ("VECTOR", "row", "values", ROWS["mlp.gate"]),
            ("VECTOR", "column", "values", D_IN),
        )
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def depth_world(rest, pattern, walk=0.05, world=0):
    """Frame, vectors and runs from ln ratio without out multipliers, and ln |s|.

    ``rest(block, layer)`` and ``pattern(tensor, layer, order)`` are what is learned, ``walk`` is
    the random walk of every multiplier, another one in each run. ``world`` draws other noise.
    """
    rows = []

    def add(arm, seed, tensor, layer, stat, log):
        rows.append(("train", arm, seed, END, tensor, layer, stat, np.exp(log)))

    for seed in SEEDS:
        for layer in LAYERS:
            for block, tensor in BLOCKS.items():
                jitter = 0.03 * normal(world, seed, block, layer)
                add("NONE", seed, tensor, layer, "activation_norm", jitter)
            for order, arm in enumerate(("SCALAR", "SCALAR_ORDER")):
                names = {name for tensors in INTERNAL.values() for name in tensors}
                logs = {
                    name: pattern(name, layer, order)
                    + walk * normal(world, seed, order, name, layer)
                    for name in sorted({*names, *BLOCKS.values()})
                }
                for name, log in logs.items():
                    add(arm, seed, name, layer, "scalar_multiplier_norm", log)
                for block, tensor in BLOCKS.items():
                    output = rest(block, layer) + logs[tensor]
                    output += 0.03 * normal(world, seed, order, block, layer)
                    add(arm, seed, tensor, layer, "activation_norm", output)
    return pd.DataFrame(rows, columns=COLUMNS), brownian(), table_of_runs()


def zigzag(layer):
    """One sign or the other, without a slope over the eight layers or over the last four."""
    return (1, -1, -1, 1, 1, -1, -1, 1)[layer]


def faithful_depth():
    """Outputs rise, attention and its out multipliers go up and down together, dt too."""
    return depth_world(
        rest=lambda block, layer: (
            0.1 * layer + (0.3 * zigzag(layer) if block == "attention" else 0)
        ),
        pattern=lambda name, layer, order: (
            {"attention.out": 0.4, "ssm.dt": 0.7}.get(name, 0.0) * zigzag(layer)
        ),
    )


def no_depth(world=0):
    """Nothing is learned; multipliers do their Brownian motion and the outputs follow them."""
    return depth_world(lambda *_: 0.0, lambda *_: 0.0, walk=NOISE, world=world)


def reversed_depth():
    """Outputs fall, the MLP's differ in place of attention's, and nothing repeats."""
    return depth_world(
        rest=lambda block, layer: -0.1 * layer + (0.5 * zigzag(layer) if block == "MLP" else 0),
        pattern=lambda name, layer, order: (
            {"attention.out": 0.1, "ssm.dt": 0.1}.get(name, 0.0) * zigzag(layer) * (-1) ** order
        ),
    )


def width_world(plain, learned, walk, repeat=1.0, drift=0.0, dead=False):
    """Frame, vectors and runs from the spread of NONE's rows and columns and of ln |r| and ln |c|.

    ``walk`` is the random walk of the multipliers in each run, ``repeat`` the factor of what the
    other data order learns.
    """
    rows, scalars = [], []

    def add(arm, seed, tensor, layer, stat, value):
        rows.append(("train", arm, seed, END, tensor, layer, stat, value))

    for seed in SEEDS:
        for layer in LAYERS:
            for tensor, count in ROWS.items():
                key = (seed, layer, tensor)
                for step in (END * 3 // 4, END):
                    late = np.exp(drift * (step - END) / END)
                    scalars.append(
                        ("train", "NONE", seed, step, tensor, layer, "weight_norm", 0.1 * late)
                    )
                for axis, size in (("rows", count), ("columns", D_IN)):
                    name = AXES[axis]
                    base = 0.1 * np.exp(plain * normal(*key, axis, "base", size=size))
                    if dead:
                        base[0] = 1e-9
                    add("NONE", seed, tensor, layer, f"{name}_norms", base)
                    for order, arm in enumerate(("VECTOR", "VECTOR_ORDER")):
                        log = learned * repeat**order * normal(*key, axis, "learned", size=size)
                        log = log + walk * normal(*key, axis, "walk", order, size=size)
                        add(arm, seed, tensor, layer, f"{name}_multiplier", np.exp(log))
                        add(arm, seed, tensor, layer, f"effective_{name}_norms", base * np.exp(log))
    vectors = pd.concat([pd.DataFrame(rows, columns=COLUMNS), brownian()], ignore_index=True)
    return pd.DataFrame(scalars, columns=COLUMNS), vectors, table_of_runs()


def faithful_width(**options):
    """As narrow as noise, then learned and repeated."""
    return width_world(plain=0.09, learned=0.5, walk=0.1, **options)


def no_width():
    """Rows as different without multipliers, which do their Brownian motion."""
    return width_world(plain=0.4, learned=0.0, walk=NOISE)


def reversed_width():
    """Rows and columns that differ, and multipliers that hardly do; the other order opposes."""
    frame, vectors, runs = width_world(plain=0.4, learned=0.05, walk=0.0, repeat=-1.0)
    return frame, narrowed(vectors, ROWS, 0.5), runs


def narrowed(vectors, tensors, power):
    """The effective norms of ``tensors`` to ``power``, which shrinks their spread by it."""
    chosen = vectors["stat"].str.startswith("effective") & vectors["tensor"].isin(tensors)
    values = [v**power if c else v for v, c in zip(vectors["value"], chosen, strict=True)]
    return vectors.assign(value=values)


def judge(claim, world):
    criterion = criteria_of("scale_diversity")[claim]
    return judge_of("scale_diversity", claim)(tables_of(world), criterion)


def tables_of(world):
    frame, vectors, runs = world
    return Tables(runs, frame, vectors)


WORLDS = {
    **dict.fromkeys(DEPTH, (faithful_depth, no_depth, reversed_depth)),
    **dict.fromkeys(WIDTH, (faithful_width, no_width, reversed_width)),
}


@pytest.mark.parametrize("claim", WORLDS)
def test_claims_hear_the_effect_and_nothing_else(claim):
    faithful, none, reverse = WORLDS[claim]
    assert judge(claim, faithful()).verdict == REPRODUCED
    assert judge(claim, none()).verdict != REPRODUCED
    assert judge(claim, reverse()).verdict == NOT


@pytest.mark.parametrize("claim", DEPTH)
def test_random_walks_are_rarely_heard(claim):
    """Even though s_out is a part of the ratio that it is set beside."""
    heard = [judge(claim, no_depth(world)).verdict == REPRODUCED for world in range(10)]
    assert not any(heard)


def test_a_spread_that_does_not_repeat_is_not_heard():
    """Broader than Brownian motion, and another pattern in every data order."""
    world = width_world(plain=0.09, learned=0.0, walk=2 * NOISE)
    for claim in ("W2", "W3"):
        found = judge(claim, world)
        assert found.verdict == NOT
        held = {c.holds(found.minimum) for c in found.components if "correlation" not in c.name}
        assert held == {True}


def test_an_effect_in_one_group_is_reported_as_that():
    frame, vectors, runs = faithful_width()
    vectors = narrowed(vectors, GROUPS["MLP gate"], 0.1)
    assert judge("W2", (frame, vectors, runs)).verdict == PARTLY


def test_norms_that_still_move_say_nothing_of_an_equilibrium():
    assert judge("W1", faithful_width(drift=2.0)).verdict == OPEN


def test_too_few_seeds_are_inconclusive():
    for claim, (faithful, *_) in WORLDS.items():
        frame, vectors, runs = faithful()
        few = [table[table["seed"] < 102] for table in (frame, vectors)]
        assert judge(claim, (*few, runs)).verdict == OPEN


def test_dead_rows_are_counted():
    _, vectors, runs = world = faithful_width(dead=True)
    found = distributions(tables_of(world), "rows").set_index(["group", "variant", "seed"])
    gate = found.loc["MLP gate", "NONE", 100]
    assert gate["dead"] == len(LAYERS) and len(gate["relative"]) == 127 * len(LAYERS)
    assert gate["spread"] == pytest.approx(0.09, rel=0.1)
    assert "dead: NONE" in judge("W1", (faithful_width()[0], vectors, runs)).note


def test_pure_noise_by_hand():
    """Columns of a slice with few rows spread more; shares are those of their entries."""
    noise = distributions(tables_of(faithful_width()), "columns").set_index("group")["noise"]
    expected = np.mean([1 / (2 * ROWS[tensor]) for tensor in GROUPS["SSM input"]]) ** 0.5
    assert mixture_spread(noise["SSM input"].iloc[0]) == pytest.approx(expected)
    assert noise["MLP gate"].iloc[0] == {1 / (2 * 128) ** 0.5: 1.0}


def test_layers_by_hand():
    table = pd.DataFrame([[0.0, 0.1, 0.2, 0.3, 0.4]], index=[7], columns=[0, 1, 2, 3, 4])
    assert rise(table)[7] == pytest.approx(0.4)
    assert list(second_half(table).columns) == [3, 4]


def test_correlations_between_data_orders():
    opposed = tables_of(faithful_width(repeat=-1.0))
    assert repeats(opposed, "rows").to_numpy().max() < -0.9
    half = tables_of(width_world(plain=0.09, learned=0.2, walk=0.2))
    assert repeats(half, "rows").to_numpy().mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "module, world, bands", [(fig2, faithful_depth, 9), (fig3, faithful_width, 18)]
)
def test_figures_of_several_seeds(module, world, bands):
    """Medians with bands; of Brownian motion a span, and none of pure noise."""
    tables = {"scale_diversity": tables_of(world())}
    with plt.style.context(STYLE_FILE):
        context = Context("tiny", list(SEEDS), "a corpus", "runs")
        figure = module.draw(module.numbers(tables), context)
    drawn = [c for axis in figure.axes for c in axis.collections]
    assert len(drawn) == bands
    assert any("n = 8 judging seeds" in text.get_text() for text in figure.texts)
    plt.close(figure)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, smoke_results):
    """One seed at the smoke scale."""
    results = tmp_path_factory.mktemp("scale_diversity")
    (results / "runs").symlink_to(smoke_results / "runs")
    return results


def call(*arguments, results):
    command = [warm.python, *map(str, arguments), "--scale", "smoke", "--results", str(results)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("figure", ["fig2", "fig3"])
def test_figures_draw(trained, figure):
    assert "drew" in call("-m", "analysis.figures", figure, results=trained)
    folder = trained / "figures" / "smoke"
    with Image.open(folder / f"{figure}.png") as image:
        assert image.size[0] > 1200
        assert image.convert("L").getextrema() == (0, 255)
    assert (folder / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
    numbers = pd.read_csv(folder / f"{figure}.csv")
    # Brownian motion and pure noise have no seed.
    assert set(numbers["seed"].dropna()) == {0} and numbers["seed"].isna().any()
    if figure == "fig2":
        learned = numbers[numbers["seed"].notna()]
        panels = {"a": len(BLOCKS), "b": len(BLOCKS), "c": len(INTERNAL)}
        for panel, series in panels.items():
            assert (learned["panel"] == panel).sum() == 2 * 8 * series
        assert (learned["value"] > 0).all()
    else:
        spreads = numbers[numbers["quantity"] == "spread"]
        assert len(spreads) == 2 * len(GROUPS) * (3 + 1)
        density = numbers[numbers["quantity"] == "density"]
        keys = ["axis", "group", "variant", "seed"]
        for _, rows in density.groupby(keys, dropna=False):
            assert np.trapezoid(rows["value"], rows["position"]) == pytest.approx(1.0, abs=0.04)
