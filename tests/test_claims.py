"""Judging functions: what they hear in data with the effect, without it, and reversed."""

import gzip
import importlib
import inspect
import json
import math
import shutil
import zlib

import numpy as np
import pandas as pd
import pytest

from analysis.claims import bench as bench_claims
from analysis.claims.__main__ import text
from analysis.claims.judging import (
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
from analysis.claims.ledger import judge_all, judge_of, left_out
from analysis.tables import criteria as criteria_module
from analysis.tables.criteria import criteria_of, every_criterion
from analysis.tables.find import EXPERIMENTS, ROOT
from analysis.tables.results import FIRST_JUDGING_SEED, Tables
from lrm.errors import UserError
from lrm.plan.identity import criterion_hash

GRID = [1 / 32, 1 / 8, 1 / 2, 2.0, 8.0, 32.0]
STEPS, DECAY, LR = 2600, 420, 0.006
CONSTANT = STEPS - DECAY
SEEDS = range(100, 108)
ARMS = ("FPN", "SPN", "VPN")
PROJECTOR = [f"P{i}" for i in range(8)]
CRITERIA = every_criterion()


# Spread of a run's final loss beside its pair, measured on exploration seeds.
LOSS_SD = 0.02


def noise(seed, *key, size):
    generator = np.random.default_rng(zlib.crc32(repr((seed, *key)).encode()))
    return size * generator.standard_normal()


def projector_world(loss, logits, weight, multiplier, drift=0.0, spread=0.02, world=0):
    """Tables from functions of (arm, S); norms get ``spread`` in logs over seeds.

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
    return Tables(runs, frame)


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


def judged(claim, tables):
    return judge_of(CRITERIA[claim]["experiment"], claim)(tables, CRITERIA[claim])


def verdict(claim, tables):
    return judged(claim, tables).verdict


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
    world = faithful()
    assert judged("P4", world).note == "judged at S = 0.125, 0.5, 2, 8"
    rules = [{"tensor": "norm.final", "trainable": True, "lr": 0.0015}]
    runs = world.runs.assign(description=[{**d, "rules": rules} for d in world.runs["description"]])
    assert judged("P4", Tables(runs, world.scalars)).note == "judged at S = 0.5, 2, 8, 32"


def test_too_few_seeds_are_inconclusive():
    world = faithful()
    few = world.scalars
    few = few[(few["seed"] < 102) | (few["kind"] == "brownian")]
    for claim in PROJECTOR:
        assert verdict(claim, Tables(world.runs, few)) == OPEN


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
    return Tables(None, pd.DataFrame(losses, columns=columns))


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
    return Tables(faithful().runs, pd.DataFrame(rows, columns=columns))


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
    criteria = {claim: body for claim, body in CRITERIA.items() if "experiment" in body}
    for claim, criterion in CRITERIA.items():
        for test in criterion.get("tests", []):
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text()
        assert claim in criteria or "tests" in criterion or judge_of("bench", claim), claim
    for claim, criterion in criteria.items():
        assert {"experiment", "statement", "criterion", "thresholds", "smallest_effect", "reason",
                "gates", "seeds"} <= set(criterion)  # fmt: skip
        assert judge_of(criterion["experiment"], claim), claim
        assert claim in criteria_of(criterion["experiment"])
        for gate in criterion["gates"]:
            assert list(criteria).index(gate) < list(criteria).index(claim)


def test_judging_modules_hold_judges_alone():
    """Each is named by its experiment; a public function in it judges the claim of that name."""
    for path in (ROOT / "analysis" / "claims").glob("[a-z]*.py"):
        if path.stem in ("judging", "verdicts", "bench"):
            continue
        module = importlib.import_module(f"analysis.claims.{path.stem}")
        functions = {
            name
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if function.__module__ == module.__name__ and not name.startswith("_")
        }
        assert functions == {claim.lower() for claim in criteria_of(path.stem)}, path.stem
        for name in functions:
            judge = getattr(module, name)
            assert list(inspect.signature(inspect.unwrap(judge)).parameters)
            assert judge.__doc__, name


def test_published_runs_name_todays_criteria():
    """Their hashes stand in every run that judged: a criterion has not changed since."""
    found = 0
    for path in (ROOT / "results" / "reference").glob("*/*/runs.json.gz"):
        now = {claim: criterion_hash(body) for claim, body in criteria_of(path.parent.name).items()}
        for run in json.loads(gzip.decompress(path.read_bytes())):
            if run["kind"] == "train" and run["seed"] >= FIRST_JUDGING_SEED:
                assert run["criteria"] == now, run["label"]
                found += len(now)
    assert found > 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X1: {experiment: other}", "X1: write experiment: mine in it"),
        ("X1: 3", "X1: write experiment: mine in it"),
        ("P0: {experiment: mine}", "P0: experiments mine and projector have a claim of that name"),
    ],
)
def test_criteria_in_the_wrong_place_are_told(monkeypatch, tmp_path, text, message):
    for name in ("projector", "mine"):
        (tmp_path / name).mkdir()
        shutil.copy(EXPERIMENTS / "projector" / "config.yaml", tmp_path / name)
    shutil.copy(EXPERIMENTS / "projector" / "criteria.yaml", tmp_path / "projector")
    (tmp_path / "mine" / "criteria.yaml").write_text(text)
    monkeypatch.setattr(criteria_module, "EXPERIMENTS", tmp_path)
    with pytest.raises(UserError, match=message):
        every_criterion()


def test_a_criterion_that_nobody_judges_yet_is_told(monkeypatch, smoke_results):
    monkeypatch.delattr("analysis.claims.gradient_noise.n1")
    [record] = judge_all("smoke", "runs", smoke_results, ["gradient_noise"])
    assert record["verdict"] == UNJUDGED
    assert record["note"] == "no function n1 in analysis/claims/gradient_noise.py"
    assert judge_of("frozen_multipliers", "Z1") is None


def test_claims_without_runs(tmp_path):
    records = judge_all("tiny", "runs", tmp_path)
    assert {record["verdict"] for record in records} == {UNJUDGED, TESTED}
    assert {r["id"] for r in records if r["verdict"] == TESTED} == {"I2", "I3"}
    assert json.loads(json.dumps(records)) == records
    assert "P1" in text(records)
    with pytest.raises(UserError, match="unknown source"):
        from analysis.tables.results import load as load_results

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
    criterion = CRITERIA["I1"]
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
