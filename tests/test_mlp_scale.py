"""Claims M1 to M8 on synthetic sweeps: with the paper's effects, without them, and reversed."""

import math
import zlib

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judges import judge_of
from analysis.claims.judging import NOT, REPRODUCED, UNJUDGED
from analysis.quantities.mlp_scale import MLP, MlpSweep, by_frequency, growth
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

GRID = [1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0]
STEPS, DECAY, LR, LAYERS = 3000, 400, 0.01, 4
END = STEPS - DECAY
SEEDS = range(100, 108)
ARMS = ("ADAM", "ADAM_LRM", "MUON", "MUON_LRM")
CRITERIA = criteria_of("mlp_scale")
SCALARS = [claim for claim in CRITERIA if claim != "M5f"]
SLICES = ("ssm.z", "ssm.x", "ssm.B", "ssm.C", "ssm.dt", "attention.q", "attention.k", "attention.v")


def noise(seed, *key, size):
    generator = np.random.default_rng(zlib.crc32(repr((seed, *key)).encode()))
    return size * generator.standard_normal()


def paper(arm, s):
    """The paper's findings as powers of S above 1: {(tensor, stat): value}, and the loss."""
    learned, up = arm.endswith("LRM"), max(s, 1.0)
    pull = 1.0 if learned else up**-0.05
    found = {(name, "weight_norm"): 0.1 * s * pull for name in MLP}
    if learned:
        found |= {(name, "scalar_multiplier_norm"): 1 / s for name in MLP}
    free = 1.0 if learned else up
    found[("mlp.down", "activation_norm")] = 0.1 if learned else 0.1 * s**2
    found[("ssm.out", "activation_norm")] = 0.1 * free**1.8
    found[("attention.out", "activation_norm")] = 0.1 * free**0.8
    found[("embedding", "activation_norm")] = 0.1 * free**0.1
    for name in (*SLICES, "ssm.out", "attention.out", "embedding"):
        power = 0.1 if name.startswith("attention") else 0.0
        found[(name, "weight_norm")] = 0.1 * free**power
    for name in ("ssm.conv", "ssm.D"):
        found[(name, "weight_norm")] = free**0.3
    return found, 3.3 + (0.0 if learned else 0.03 * math.log(up) ** 2)


def nothing(arm, s):
    """A model that nothing happens in: no norm but the MLP's own start depends on S."""
    found, _ = paper("ADAM_LRM", 1.0)
    if not arm.endswith("LRM"):
        found = {key: value for key, value in found.items() if "multiplier" not in key[1]}
    return found, 3.3


def world(of):
    """The tables of the experiment in which ``of`` (arm, S) is true up to noise."""
    rows = []
    for arm in ARMS:
        for s in GRID:
            found, loss = of(arm, s)
            for seed in SEEDS:
                for (tensor, stat), value in found.items():
                    layers = [pd.NA] if tensor == "embedding" else range(LAYERS)
                    for layer in layers:
                        jitter = math.exp(noise(seed, arm, s, tensor, stat, str(layer), size=0.01))
                        rows.append((arm, seed, s, END, tensor, layer, stat, value * jitter))
                value = loss + noise(seed, size=0.02) + noise(seed, arm, s, size=0.003)
                rows.append((arm, seed, s, STEPS, "model", pd.NA, "validation_loss", value))
    columns = ["arm", "seed", "S", "step", "tensor", "layer", "stat", "value"]
    frame = pd.DataFrame(rows, columns=columns).assign(kind="train")
    frame["layer"] = frame["layer"].astype("Int64")
    settings = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
    rules = [{"tensor": f"{name}@0", "multiplier": None, "shape": [8, 4], "lr": 0.1}
             for name in SLICES]  # fmt: skip
    rules.append({"tensor": "mlp.up@0", "multiplier": "scalar", "shape": [1], "lr": LR})
    description = {"settings": settings, "rules": rules}
    runs = pd.DataFrame([{"kind": "train", "arm": arm, "seed": seed, "description": description}
                         for arm in ARMS for seed in SEEDS])  # fmt: skip
    return Tables(runs, frame)


def judged(claim, tables):
    return judge_of("mlp_scale", claim)(tables, CRITERIA[claim])


@pytest.fixture(scope="module")
def worlds():
    return {of.__name__: world(of) for of in (paper, nothing)}


@pytest.mark.parametrize("claim", SCALARS)
def test_the_papers_effects_are_heard(worlds, claim):
    judgement = judged(claim, worlds["paper"])
    assert judgement.verdict == REPRODUCED, judgement
    assert judgement.note == "judged at S = 0.25, 0.5, 1, 2, 4, 8"


@pytest.mark.parametrize("claim", [claim for claim in SCALARS if claim != "M8"])
def test_and_nothing_else(worlds, claim):
    """Without growth the ratio of two growths is noise, which M7 may leave open."""
    verdict = judged(claim, worlds["nothing"]).verdict
    assert verdict != REPRODUCED if claim == "M7" else verdict == NOT


def test_multipliers_that_harm_are_heard():
    def harm(arm, s):
        found, loss = paper(arm, s)
        return found, loss + (0.1 if arm.endswith("LRM") else 0.0)

    assert judged("M8", world(harm)).verdict == NOT


def test_merged_matrices_count_as_one(worlds):
    """RMS over all entries: of slices with norms 1 and 7 and equal sizes, 5."""
    frame, runs = worlds["paper"].scalars, worlds["paper"].runs
    frame = frame[frame["tensor"].isin(["attention.q", "attention.k"])]
    norms = frame["tensor"].map({"attention.q": 1.0, "attention.k": 7.0})
    sweep = MlpSweep(Tables(runs, frame.assign(value=norms)))
    merged = sweep.merged("ADAM", ("attention.q", "attention.k"))
    assert merged.to_numpy() == pytest.approx(5.0)


def test_out_of_reach_is_not_judged(worlds):
    frame, runs = worlds["paper"].scalars, worlds["paper"].runs
    short = frame["stat"].eq("scalar_multiplier_norm")
    frame = frame.assign(value=frame["value"].where(~short, frame["value"] * 4))
    judgement = judged("M4", Tables(runs, frame))
    assert judgement.note == "judged at S = 0.5, 1, 2, 4, 8"
    none = frame.assign(value=frame["value"].where(~short, frame["value"] * 100))
    assert judged("M4", Tables(runs, none)).verdict == UNJUDGED


@pytest.mark.parametrize(("escape", "verdict"), [(0.2, REPRODUCED), (0.0, NOT)])
def test_frequent_tokens(worlds, escape, verdict):
    frequency = np.linspace(0.0, 1.0, 101)  # the first is never seen
    twin = 0.05 + 0.05 * frequency
    rows = [
        ("brownian", "ADAM_LRM", 0, 1.0, STEPS, "embedding", "frequency", frequency),
        ("brownian", "ADAM_LRM", 0, 1.0, STEPS, "embedding", "row_norms", twin),
    ]
    for arm in ("ADAM", "MUON"):
        for s in GRID:
            for seed in SEEDS:
                grown = np.exp(escape * frequency**4 * math.log(max(s, 1)))
                jitter = np.exp(noise(seed, arm, s, size=0.005))
                values = twin * grown * jitter
                rows.append(("train", arm, seed, s, STEPS, "embedding", "row_norms", values))
    columns = ["kind", "arm", "seed", "S", "step", "tensor", "stat", "value"]
    vectors = pd.DataFrame(rows, columns=columns)
    tables = Tables(worlds["paper"].runs, worlds["paper"].scalars, vectors)
    assert judged("M5f", tables).verdict == verdict
    table = by_frequency(tables)
    assert set(table["decile"]) == set(range(10))
    rarest = table[(table["decile"] == 0) & (table["S"] == 1)]
    assert rarest["share"].iloc[0] == pytest.approx(frequency[1:11].mean())
    assert rarest["norm"].mean() == pytest.approx(rarest["noise"].iloc[0], rel=0.01)


def test_growth_by_hand():
    table = pd.DataFrame({1.0: [1.0, 2.0], 8.0: [math.e, 2.0]})
    assert growth(table, [1.0, 8.0]).tolist() == pytest.approx([1.0, 0.0])
