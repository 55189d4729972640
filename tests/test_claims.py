"""Parts, gates and the ledger, and that every claim has a criterion and a judge."""

import gzip
import importlib
import inspect
import json
import shutil

import pytest

from analysis.claims.__main__ import text
from analysis.claims.judges import function_name, judge_of
from analysis.claims.judging import (
    BELOW,
    HOLDS,
    OPEN,
    REFUTED,
    TESTED,
    UNJUDGED,
    Judgement,
    at_least,
    at_most,
)
from analysis.claims.ledger import as_ledger, judge_all, left_out
from analysis.tables import criteria as criteria_module
from analysis.tables.criteria import criteria_of, every_criterion
from analysis.tables.find import EXPERIMENTS, ROOT
from analysis.tables.results import FIRST_JUDGING_SEED
from lrm.errors import UserError
from lrm.plan.identity import criterion_hash

CRITERIA = every_criterion()


def test_heavy_tails_are_judged_by_order():
    """One unstable seed does not hide what all the others show; six values are needed."""
    values = [0.1, 0.11, 0.12, 0.1, 0.13, 0.1, 0.12, 5.0]
    assert at_least("x", values, 0.05).verdict(8) == OPEN
    assert at_least("x", values, 0.05, robust=True).verdict(8) == HOLDS
    assert at_least("x", values[:5], 0.05, robust=True).verdict(3) == OPEN


def test_a_part_needs_its_whole_interval():
    assert at_least("x", [1.0, 1.1, 0.9], 0.5).verdict(3) == HOLDS
    assert at_least("x", [1.0, 1.1, 0.9], 1.0).verdict(3) == OPEN
    assert at_most("x", [1.0, 1.1, 0.9], 0.5).verdict(3) == REFUTED
    assert at_least("x", [1.0, 1.1], 0.5).verdict(3) == OPEN
    assert at_least("x", [1.0, float("nan"), 1.0], 0.5).verdict(3) == OPEN
    assert at_least("x", [0.1, 0.11, 0.09], 0.0, matters=0.2).verdict(3) == BELOW


def test_gates():
    parts = [at_least("x", [1.0, 1.1, 0.9], 0.5)]
    assert Judgement(parts, 3, gates={"P0": HOLDS}).verdict == HOLDS
    assert Judgement(parts, 3, gates={"P0": OPEN}).verdict == OPEN
    assert Judgement(parts, 3, gates={"P0": REFUTED}).verdict == OPEN
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
        if path.stem in ("judging", "judges", "ledger", "lock", "stored", "bench"):
            continue
        module = importlib.import_module(f"analysis.claims.{path.stem}")
        functions = {
            name
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if function.__module__ == module.__name__ and not name.startswith("_")
        }
        assert functions == {function_name(claim) for claim in criteria_of(path.stem)}, path.stem
        for name in functions:
            judge = getattr(module, name)
            assert list(inspect.signature(inspect.unwrap(judge)).parameters)
            assert judge.__doc__, name


def test_published_runs_name_todays_criteria():
    """Their hashes stand in every run that judged: an entry has not changed since, only new ones
    may have come."""
    found = 0
    for path in (ROOT / "results" / "reference").glob("*/*/runs.json.gz"):
        now = {claim: criterion_hash(body) for claim, body in criteria_of(path.parent.name).items()}
        for run in json.loads(gzip.decompress(path.read_bytes())):
            if run["kind"] == "train" and run["seed"] >= FIRST_JUDGING_SEED:
                assert run["criteria"].items() <= now.items(), run["label"]
                found += len(run["criteria"])
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
    assert "P1" in text(as_ledger(records, "tiny", "runs"))
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
