"""Judging functions: what they hear in data with the effect, without it, and reversed."""

import json
import math
import shutil
import zlib

import numpy as np
import pandas as pd
import pytest

from analysis import bench_claims
from analysis.claims import JUDGES, VECTOR_JUDGES, judge_all, left_out, text
from analysis.criteria import CRITERIA
from analysis.judging import (
    NOT,
    OPEN,
    PARTLY,
    REPRODUCED,
    TESTED,
    UNJUDGED,
    Judgement,
    at_least,
    at_most,
)
from lrm.compose import load, read_yaml
from lrm.errors import UserError

GRID = [1 / 32, 1 / 8, 1 / 2, 2.0, 8.0, 32.0]
STEPS, DECAY, LR = 2600, 420, 0.006
CONSTANT = STEPS - DECAY
SEEDS = range(100, 108)
ARMS = ("FPN", "SPN", "VPN")
PROJECTOR = [f"P{i}" for i in range(8)]


# Spread of a run's final loss beside its pair, measured on exploration seeds.
LOSS_SD = 0.02


def noise(seed, *key, size):
    generator = np.random.default_rng(zlib.crc32(repr((seed, *key)).encode()))
    return size * generator.standard_normal()


def projector_world(loss, logits, weight, multiplier, drift=0.0, spread=0.02, world=0):
    """Frame and runs from functions of (arm, S); norms get ``spread`` in logs over seeds.

    ``world`` draws another noise.
    """
    rows = []

    def add(kind, arm, seed, s, step, tensor, stat, value):
        rows.append((kind, arm, seed, s, step, tensor, stat, value))

    for arm in ARMS:
        for s in GRID:
            for seed in SEEDS:
                jitter = math.exp(noise(seed, arm, s, world, 1, size=spread))
                add(
                    "train",
                    arm,
                    seed,
                    s,
                    STEPS,
                    "model",
                    "validation_loss",
                    loss(arm, s) + noise(seed, size=0.01) + noise(seed, arm, s, size=1e-3),
                )
                add("train", arm, seed, s, CONSTANT, "projector", "centred_norm",
                    logits(arm, s) * jitter)  # fmt: skip
                for step in (0, CONSTANT * 3 // 4, CONSTANT):
                    late = math.exp(drift * (step - CONSTANT) / CONSTANT)
                    add("train", arm, seed, s, step, "projector", "weight_norm",
                        weight(arm, s) * jitter * late)  # fmt: skip
                    add("train", arm, seed, s, step, "norm.final", "effective_norm",
                        multiplier(arm, s) * jitter)  # fmt: skip
    for arm, tensor in (("SPN", "norm.final.scalar"), ("VPN", "norm.final")):
        for s in GRID:
            for step in (0, CONSTANT * 3 // 4, CONSTANT):
                add("brownian", arm, 0, s, step, "projector", "weight_norm", 0.095 * s)
                add("brownian", arm, 0, s, step, tensor, "weight_norm", 1.25)
                add("brownian", arm, 0, s, step, tensor, "weight_norm_sd", 0.1)
    columns = ["kind", "arm", "seed", "S", "step", "tensor", "stat", "value"]
    frame = pd.DataFrame(rows, columns=columns).assign(layer=pd.NA)
    settings = {
        "train": {"steps": STEPS},
        "schedule": {"decay_steps": DECAY, "decay_factor": 8.0},
    }
    rules = [{"tensor": "norm.final", "trainable": True, "lr": LR}]
    description = {"settings": settings, "rules": rules}
    runs = pd.DataFrame(
        [
            {"kind": "train", "arm": arm, "seed": s, "description": description}
            for arm in ARMS
            for s in SEEDS
        ]  # fmt: skip
    )
    return frame, runs


def bowl(s):
    """Loss over log S: 0 at 1."""
    return 0.12 * math.log(s, 4) ** 2


def faithful():
    return projector_world(
        loss=lambda arm, s: 3.3 + (bowl(s) if arm == "FPN" else 0.002 * abs(math.log(s, 4))),
        logits=lambda arm, s: 3.0 * (s**0.5 if arm == "FPN" else s**0.01),
        weight=lambda arm, s: 0.1 * (s if arm != "FPN" or s >= 1 else s**0.6),
        multiplier=lambda arm, s: 1.0 if arm == "FPN" else 0.6 / s,
    )


def no_effect(world=0):
    """All arms alike, norms set by the data, multipliers following Brownian motion."""
    return projector_world(
        loss=lambda arm, s: 3.3,
        logits=lambda arm, s: 3.0,
        weight=lambda arm, s: 0.3,
        multiplier=lambda arm, s: 1.25,
        drift=1.8,
        world=world,
    )


def reversed_effect():
    """The learned arms do worse, the frozen one adapts; norms run against S."""
    return projector_world(
        loss=lambda arm, s: 3.3 + (0.0 if arm == "FPN" else 0.1 + bowl(s)),
        logits=lambda arm, s: 3.0 * (s**0.01 if arm == "FPN" else s**0.5),
        weight=lambda arm, s: 0.1 / s,
        multiplier=lambda arm, s: 1.0 if arm == "FPN" else 1.25 * s**0.1,
        drift=-1.8,
    )


def verdict(claim, world):
    criterion = read_yaml(CRITERIA)[claim]
    return JUDGES[claim](*world, criterion).verdict


@pytest.mark.parametrize("claim", PROJECTOR)
def test_projector_claims_hear_the_effect_and_nothing_else(claim):
    assert verdict(claim, faithful()) == REPRODUCED
    assert verdict(claim, no_effect()) != REPRODUCED
    assert verdict(claim, reversed_effect()) != REPRODUCED


def rate_of_reproduced(claim, worlds, count=60):
    """How often data without the effect, at the measured noise, is heard as reproduced."""
    heard = [verdict(claim, worlds(number)) == REPRODUCED for number in range(count)]
    return sum(heard) / count


@pytest.mark.parametrize("claim", ["P1", "P7"])
def test_losses_without_an_effect_are_rarely_heard(claim):
    assert rate_of_reproduced(claim, no_effect) <= 0.05


def test_an_effect_on_one_side_only_is_reported_as_that():
    world = projector_world(
        loss=lambda arm, s: 3.3 + (bowl(s) if arm == "FPN" and s < 1 else 0.0),
        logits=lambda arm, s: 3.0,
        weight=lambda arm, s: 0.1 * s,
        multiplier=lambda arm, s: 0.6 / s,
    )
    assert verdict("P1", world) == PARTLY


def test_points_out_of_reach_are_not_judged():
    """A multiplier that cannot travel far enough says nothing about its claim."""
    criterion = read_yaml(CRITERIA)["P4"]
    frame, runs = faithful()
    judged = JUDGES["P4"](frame, runs, criterion)
    assert judged.note == "judged at S = 0.125, 0.5, 2, 8"
    rules = [{"tensor": "norm.final", "trainable": True, "lr": 0.0015}]
    runs = runs.assign(description=[{**d, "rules": rules} for d in runs["description"]])
    assert JUDGES["P4"](frame, runs, criterion).note == "judged at S = 0.5, 2, 8, 32"


def test_too_few_seeds_are_inconclusive():
    frame, runs = faithful()
    few = frame[(frame["seed"] < 102) | (frame["kind"] == "brownian")]
    for claim in PROJECTOR:
        assert verdict(claim, (few, runs)) == OPEN


def placement_world(rows, fixed, world=0):
    losses = [
        ("train", arm, seed, lr, s, STEPS, "validation_loss",
         3.3 + gap + noise(seed, world, size=0.01) + noise(seed, arm, lr, s, world, size=LOSS_SD))
        for seed in SEEDS
        for arm, lr, s, gap in [
            ("COLUMNS", math.nan, math.nan, 0.0),
            *[("ROWS", lr, math.nan, rows(lr)) for lr in (0.001, 0.006, 0.03)],
            *[("FIXED", math.nan, s, fixed(s)) for s in (0.25, 0.5, 1.0, 2.0, 4.0)],
        ]
    ]  # fmt: skip
    columns = ["kind", "arm", "seed", "row_lr", "s", "step", "stat", "value"]
    return pd.DataFrame(losses, columns=columns), None


def test_pr1():
    assert verdict("PR1", placement_world(lambda lr: 0.04, bowl)) == REPRODUCED
    assert verdict("PR1", placement_world(lambda lr: -0.04, bowl)) == NOT
    null = rate_of_reproduced("PR1", lambda world: placement_world(lambda lr: 0.0, bowl, world))
    assert null <= 0.1  # 2.5% expected


def test_pr2():
    assert verdict("PR2", placement_world(abs, lambda s: 0.03 + bowl(s))) == REPRODUCED
    # It claims an absence of gain: a gain must be told, and a flat sweep is no contrast.
    assert verdict("PR2", placement_world(abs, lambda s: bowl(s) - 0.08)) == NOT
    assert verdict("PR2", placement_world(abs, lambda s: 0.02 - 0.05 * s)) == OPEN
    null = rate_of_reproduced("PR2", lambda world: placement_world(abs, lambda s: 0.0, world))
    assert null <= 0.05


def equilibrium_world(lr_exponent, wd_exponent):
    rows = []
    for arm, exponent in (("LR", lr_exponent), ("WD", wd_exponent)):
        for factor in (1.0, 2.0, 4.0):
            for tensor in ("mlp.up", "attention.q"):
                common = (arm, factor, CONSTANT, tensor, 0, "weight_norm")
                ideal = 0.5 if arm == "LR" else -0.5
                rows.append(("brownian", 0, *common, 0.1 * factor**ideal))
                for seed in SEEDS:
                    value = 0.1 * factor**exponent * math.exp(noise(seed, *common, size=0.01))
                    rows.append(("train", seed, *common, value))
    columns = ["kind", "seed", "arm", "factor", "step", "tensor", "layer", "stat", "value"]
    runs = faithful()[1].assign(kind="train")
    return pd.DataFrame(rows, columns=columns), runs


def test_eq1():
    assert verdict("EQ1", equilibrium_world(0.52, -0.47)) == REPRODUCED
    assert verdict("EQ1", equilibrium_world(0.0, 0.0)) == NOT
    assert verdict("EQ1", equilibrium_world(-0.5, 0.5)) == NOT
    assert verdict("EQ1", equilibrium_world(0.5, -0.2)) == NOT


def test_heavy_tails_are_judged_by_order():
    """One unstable seed does not hide what all the others show; six values are needed."""
    values = [0.1, 0.11, 0.12, 0.1, 0.13, 0.1, 0.12, 5.0]
    assert at_least("x", values, 0.05).holds(8) is None
    assert at_least("x", values, 0.05, heavy_tailed=True).holds(8) is True
    assert at_least("x", values[:5], 0.05, heavy_tailed=True).holds(3) is None


def test_a_component_needs_its_whole_interval():
    assert at_least("x", [1.0, 1.1, 0.9], 0.5).holds(3) is True
    assert at_least("x", [1.0, 1.1, 0.9], 1.0).holds(3) is None
    assert at_most("x", [1.0, 1.1, 0.9], 0.5).holds(3) is False
    assert at_least("x", [1.0, 1.1], 0.5).holds(3) is None
    assert at_least("x", [1.0, float("nan"), 1.0], 0.5).holds(3) is None


def test_gates():
    components = [at_least("x", [1.0, 1.1, 0.9], 0.5)]
    assert Judgement(components, 3, gates={"P0": REPRODUCED}).verdict == REPRODUCED
    assert Judgement(components, 3, gates={"P0": OPEN}).verdict == OPEN
    assert Judgement(components, 3, gates={"P0": NOT}).verdict == UNJUDGED
    assert Judgement([], 3).verdict == UNJUDGED


def test_criteria_are_complete():
    """Every claim of every experiment has a criterion and a judge, and the reverse."""
    every = read_yaml(CRITERIA)
    criteria = {claim: body for claim, body in every.items() if "experiment" in body}
    assert set(criteria) == JUDGES.keys() | VECTOR_JUDGES.keys()
    for claim, criterion in every.items():
        for test in criterion.get("tests", []):
            file, _, name = test.partition("::")
            assert f"def {name}(" in (CRITERIA.parents[1] / file).read_text()
        assert claim in criteria or "tests" in criterion or claim in bench_claims.JUDGES
    for claim, criterion in criteria.items():
        assert {"experiment", "statement", "criterion", "thresholds", "smallest_effect", "reason",
                "gates", "seeds"} <= set(criterion)  # fmt: skip
        path = CRITERIA.parents[1] / "experiments" / criterion["experiment"] / "config.yaml"
        assert claim in load(path).header.claims
        for gate in criterion["gates"]:
            assert list(criteria).index(gate) < list(criteria).index(claim)


def test_claims_without_runs(tmp_path):
    records = judge_all("tiny", "runs", tmp_path)
    assert {record["verdict"] for record in records} == {UNJUDGED, TESTED}
    assert {r["id"] for r in records if r["verdict"] == TESTED} == {"I2", "I3"}
    assert json.loads(json.dumps(records)) == records
    assert "P1" in text(records)
    with pytest.raises(UserError, match="unknown source"):
        from analysis.results import load as load_results

        load_results("projector", source="nowhere", results=tmp_path)


def test_a_seed_that_is_judged_nowhere_is_named(smoke_results, tmp_path):
    copy = tmp_path / "runs" / "grad_clipping"
    shutil.copytree(smoke_results / "runs" / "grad_clipping", copy)
    assert left_out("smoke", tmp_path) == []
    done = next(copy.glob("*/done.json"))
    label = json.loads((done.parent / "run.json").read_text())["label"]
    done.unlink()
    (line,) = left_out("smoke", tmp_path)
    assert line.startswith("left out: grad_clipping, seed 0") and line.endswith(label)


@pytest.mark.parametrize(
    "cost, verdict", [(0.01, REPRODUCED), (0.025, PARTLY), (0.05, NOT), (0.02, OPEN)]
)
def test_i1(tmp_path, cost, verdict):
    """Read from the newest record of the user's own; a damaged one is told."""
    criterion = read_yaml(CRITERIA)["I1"]
    assert bench_claims.record("runs", tmp_path, "cpu") is None
    rows = [
        {
            "row": "multipliers",
            "configuration": criterion["configuration"],
            "of": {"variant": variant},
            "ratios": [1 - cost + noise(number, variant, size=1e-3) for number in range(20)],
        }
        for variant in criterion["variants"]
    ]
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "mine.json").write_text(json.dumps({"rows": rows}))
    found = bench_claims.record("runs", tmp_path, "cpu")
    assert bench_claims.i1(found, criterion).verdict == verdict
    (tmp_path / "bench" / "mine.json").write_text("[]")
    with pytest.raises(UserError, match="mine.json is no record of make bench"):
        bench_claims.record("runs", tmp_path, "cpu")
