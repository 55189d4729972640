"""Quantities of the MLP sweep on small tables, by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.quantities.mlp_scale import MlpSweep, by_frequency, growth, switched_off
from analysis.tables.results import Tables

GRID = [0.5, 1.0, 8.0]
STEPS, DECAY = 30, 10
SEEDS = range(3)


def tables(rows=(), vectors=()):
    """Rows are (arm, seed, S, tensor, layer, stat, value), read as the constant stage ends."""
    columns = ["arm", "seed", "S", "tensor", "layer", "stat", "value"]
    scalars = pd.DataFrame(rows, columns=columns).assign(kind="train", step=STEPS - DECAY)
    settings = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
    rules = [
        {"tensor": f"attention.{name}@0", "multiplier": None, "shape": [8, 4]} for name in "qk"
    ]
    description = {"settings": settings, "rules": rules}
    runs = pd.DataFrame([{"kind": "train", "arm": "ADAM", "description": description}])
    columns = ["kind", "arm", "seed", "S", "step", "tensor", "stat", "value"]
    return Tables(runs, scalars, pd.DataFrame(vectors, columns=columns))


def test_merged_matrices_count_as_one():
    """RMS over all entries: of slices with norms 1 and 7 and equal sizes, 5."""
    rows = [
        ("ADAM", seed, s, tensor, layer, "weight_norm", value)
        for seed in SEEDS
        for s in GRID
        for layer in (0, 1)
        for tensor, value in (("attention.q", 1.0), ("attention.k", 7.0))
    ]
    merged = MlpSweep(tables(rows)).merged("ADAM", ("attention.q", "attention.k"))
    assert merged.to_numpy() == pytest.approx(5.0)


def test_growth_by_hand():
    table = pd.DataFrame({1.0: [1.0, 2.0], 8.0: [math.e, 2.0]})
    assert growth(table, [1.0, 8.0]).tolist() == pytest.approx([1.0, 0.0])


def test_layers_that_hardly_put_out_anything_are_counted():
    """Layer 1 falls to a fiftieth in two seeds of three, and to a fifth in the third."""
    rows = [
        ("ADAM", seed, s, "mlp.down", layer, "activation_norm", value)
        for seed in SEEDS
        for layer in (0, 1)
        for s, value in (
            (0.5, 1e-9),
            (1.0, 0.5),
            (8.0, 2.0 if layer == 0 else 0.1 if seed == 2 else 0.01),
        )
    ]
    off = switched_off(MlpSweep(tables(rows)), "ADAM", "MLP", GRID)
    assert off.to_dict() == {0: 0, 1: 2}


def test_rows_of_tokens_by_frequency():
    frequency = np.linspace(0.0, 1.0, 101)  # the first is never seen
    twin = 0.05 + 0.05 * frequency
    vectors = [
        ("brownian", "ADAM_LRM", 0, 1.0, STEPS, "embedding", "frequency", frequency),
        ("brownian", "ADAM_LRM", 0, 1.0, STEPS, "embedding", "row_norms", twin),
    ]
    vectors += [
        ("train", arm, seed, s, STEPS, "embedding", "row_norms", twin * s)
        for arm in ("ADAM", "MUON")
        for seed in SEEDS
        for s in GRID
    ]
    table = by_frequency(tables(vectors=vectors))
    assert set(table["decile"]) == set(range(10))
    rarest = table[(table["decile"] == 0) & (table["S"] == 1)]
    assert rarest["share"].iloc[0] == pytest.approx(frequency[1:11].mean())
    assert rarest["norm"].mean() == pytest.approx(rarest["noise"].iloc[0], rel=1e-9)
    frequent = table[(table["decile"] == 9) & (table["S"] == 8)]
    assert (frequent["norm"] / frequent["noise"]).tolist() == pytest.approx([8.0] * 6)
