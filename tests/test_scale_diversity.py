"""Scales over depth and width: quantities by hand, and figures 2 and 3."""

import subprocess
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import warm
from PIL import Image

from analysis.drawing.style import STYLE_FILE
from analysis.figures import fig2, fig3
from analysis.quantities.scale_diversity import (
    BLOCKS,
    GROUPS,
    allowed,
    distributions,
    layer_effect,
    mixture_spread,
    repeats,
    rise,
    second_half,
    steady_rise,
)
from analysis.tables.context import Context
from tests.worlds.test_scale_diversity import ROWS, SEEDS, depth, width

ROOT = Path(__file__).parents[1]


def test_dead_rows_are_counted():
    found = distributions(width(dead=True), "rows").set_index(["group", "variant", "seed"])
    gate = found.loc["MLP gate", "NONE", 200]
    assert gate["dead"] == 2 and len(gate["relative"]) == 2 * 127
    assert gate["spread"] == pytest.approx(0.1, rel=0.1)


def test_pure_noise_by_hand():
    """Columns of a slice with few rows spread more; shares are those of their entries."""
    noise = distributions(width(), "columns").set_index("group")["noise"]
    expected = np.mean([1 / (2 * ROWS[tensor]) for tensor in GROUPS["SSM input"]]) ** 0.5
    assert mixture_spread(noise["SSM input"].iloc[0]) == pytest.approx(expected)
    assert noise["MLP gate"].iloc[0] == {1 / (2 * 128) ** 0.5: 1.0}


def test_layers_by_hand():
    table = pd.DataFrame([[0.0, 0.1, 0.2, 0.3, 0.4]], index=[7], columns=[0, 1, 2, 3, 4])
    assert rise(table)[7] == pytest.approx(0.4)
    assert list(second_half(table).columns) == [3, 4]


def test_correlations_between_data_orders():
    assert repeats(width(repeat=(-1.0,) * 3, walk=(0.05,) * 3), "rows").to_numpy().max() < -0.9
    half = width(learned=(0.2,) * 3, walk=(0.2,) * 3)
    assert repeats(half, "rows").to_numpy().mean() == pytest.approx(0.5, abs=0.05)


def test_the_largest_correlation_by_hand():
    """All spread is learned or walked; noise alone allows none."""
    found = allowed(width(learned=(0.0,) * 3, walk=(0.5,) * 3, noise=0.25), "rows")
    assert found["MLP gate"].mean() == pytest.approx(0.75, abs=0.03)
    found = allowed(width(learned=(0.0,) * 3, walk=(0.25,) * 3, noise=0.25), "columns")
    assert found["MLP gate"].mean() == pytest.approx(0.0, abs=0.05)


def test_a_dead_layer_hardly_moves_a_steady_rise():
    table = pd.DataFrame([[0.0, 0.1, -9.0, 0.3, 0.4, 0.5]], index=[7], columns=range(6))
    assert steady_rise(table)[7] == pytest.approx(0.5)
    assert abs(rise(table)[7]) > 1.0


def test_a_layer_effect_by_hand():
    """Of two seeds each is set beside the other's other order."""
    one = pd.DataFrame([[1.0, 3.0], [0.0, 0.0]], index=[7, 8])
    other = pd.DataFrame([[5.0, 5.0], [2.0, 6.0]], index=[7, 8])
    assert layer_effect(one, other).to_dict() == {7: 4.0, 8: 0.0}


@pytest.mark.parametrize("module, world, bands", [(fig2, depth, 8), (fig3, width, 18)])
def test_figures_of_several_seeds(module, world, bands):
    """Medians with bands, but for those within noise; of Brownian motion a span, of noise none."""
    tables = {"scale_diversity": world(seeds=SEEDS[:8])}
    with plt.style.context(STYLE_FILE):
        context = Context("tiny", list(SEEDS[:8]), "a corpus", "runs")
        figure = module.draw(module.numbers(tables), context)
    drawn = [c for axis in figure.axes for c in axis.collections]
    assert len(drawn) == bands
    assert any("n = 8 seeds" in text.get_text() for text in figure.texts)
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
        panels = {"a": len(BLOCKS), "b": len(BLOCKS), "c": len(fig2.INSIDE) - 1, "d": 1}
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
