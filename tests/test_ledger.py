"""The ledger of claims: verdicts of parts, groups and claims, what fixes them, what is printed."""

import ast
import dataclasses
import fnmatch
import importlib
import inspect
import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.claims import judges, lock
from analysis.claims.judges import code_hash, function_name, is_locked, judge_of
from analysis.claims.judging import (
    BELOW,
    HOLDS,
    OPEN,
    PARTLY,
    REFUTED,
    TESTED,
    UNJUDGED,
    Judgement,
    at_least,
    at_most,
    within,
)
from analysis.claims.ledger import (
    CHANGED,
    _of_seeds,
    _part,
    _record,
    as_ledger,
    judge_all,
    left_out,
    of_experiments,
    parts_of,
)
from analysis.claims.stored import claims_file, read_ledger, text
from analysis.publish import publish
from analysis.quantities.stats import holm, median_interval
from analysis.tables import criteria as criteria_module
from analysis.tables.criteria import criteria_of, every_criterion, locks_of
from analysis.tables.find import EXPERIMENTS, RESULTS, ROOT, NothingFound
from analysis.tables.results import FIRST_JUDGING_SEED, Tables, load
from analysis.tables.run_list import RUN_LIST, read_run_list
from lrm.cli import parse_seeds
from lrm.errors import UserError
from lrm.plan.claims import asked_by
from lrm.plan.experiment import load as load_experiment
from lrm.plan.identity import criterion_hash

CRITERIA = every_criterion()
ONES = [1.0, 1.1, 0.9]


def test_a_part_needs_its_whole_interval():
    assert at_least("x", ONES, 0.5).verdict(3) == HOLDS
    assert at_least("x", ONES, 1.0).verdict(3) == OPEN
    assert at_most("x", ONES, 0.5).verdict(3) == REFUTED
    assert within("x", ONES, 0.5, 1.5).verdict(3) == HOLDS
    assert within("x", ONES, 1.0, 1.5).verdict(3) == OPEN
    assert within("x", ONES, -1.0, 0.5).verdict(3) == REFUTED
    assert at_least("x", [1.0, 1.1], 0.5).verdict(3) == OPEN
    assert at_least("x", [1.0, float("nan"), 1.0], 0.5).verdict(3) == OPEN


def test_an_effect_may_be_too_small_to_matter():
    """Also one that certainly is there, and one that certainly misses its threshold."""
    small = [0.01, 0.011, 0.009]
    assert at_least("x", small, 0.0).verdict(3) == HOLDS
    assert at_least("x", small, 0.0, matters=0.05).verdict(3) == BELOW
    assert at_least("x", small, 0.05, matters=0.05).verdict(3) == BELOW
    assert at_least("x", [-value for value in ONES], 0.05, matters=0.05).verdict(3) == REFUTED
    assert at_least("x", ONES, 0.0, matters=0.05).verdict(3) == HOLDS


def test_robust_parts_are_judged_by_order():
    """One unstable seed does not hide what all the others show; six values are needed."""
    values = [0.1, 0.11, 0.12, 0.1, 0.13, 0.1, 0.12, 5.0]
    assert at_least("x", values, 0.05).verdict(8) == OPEN
    assert at_least("x", values, 0.05, robust=True).verdict(8) == HOLDS
    assert at_least("x", values[:5], 0.05, robust=True).verdict(3) == OPEN


def test_the_interval_of_a_median():
    """By hand: of 8 values the extremes cover 99.2%, the second of each side 93.0%."""
    for n, low, high in ((5, -math.inf, math.inf), (6, 1, 6), (8, 1, 8), (9, 2, 8), (16, 4, 13)):
        values = np.arange(n, 0, -1.0)
        found = median_interval(values)
        assert dataclasses.astuple(found) == (np.median(values), low, high, n)


def test_p_values_agree_with_the_verdict():
    """A part holds just where its one-sided p-value is at most 0.025."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        values = generator.normal(0.5, 1.0, 8)
        for part in (
            at_least("x", values, 0.0),
            at_most("x", values, 1.2),
            within("x", values, -0.5, 1.5),
            at_least("x", values, 0.0, robust=True),
            at_most("x", values, 1.2, robust=True),
        ):
            assert (part.p_value <= 0.025) == (part.verdict(8) == HOLDS), part
    assert at_least("x", [1.0] * 7 + [-1.0], 0.0, robust=True).p_value == pytest.approx(9 / 256)


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == [True, False, False, True]
    assert holm([0.01, 0.02]).tolist() == [True, True]
    # The second is held to 0.05 / 1, where Bonferroni would ask for 0.05 / 2.
    assert holm([0.01, 0.04]).tolist() == [True, True]
    assert holm([0.03, 0.04]).tolist() == [False, False]
    assert holm([]).tolist() == []


def test_groups_are_judged_apart():
    muon, adam = at_least("m", ONES, 0.5, "Muon"), at_least("a", ONES, 1.0, "Adam")
    judgement = Judgement([muon, adam], 3)
    assert judgement.groups == {"Muon": HOLDS, "Adam": OPEN}
    assert judgement.verdict == PARTLY and judgement.line == "Muon: yes. Adam: open."
    common = at_most("both", ONES, 0.5)
    assert Judgement([muon, adam, common], 3).verdict == REFUTED
    assert Judgement([muon], 3).verdict == HOLDS
    assert Judgement([], 3).verdict == UNJUDGED
    assert Judgement([at_least("x", ONES, 0.5)], 3).line == "Yes."


def test_our_stricter_tests_leave_the_papers_statement_alone():
    broader = at_least("x", ONES, 0.5, "broader")
    repeats = at_most("y", ONES, 0.5, "repeats", ours=True)
    judgement = Judgement([broader, repeats], 3)
    assert judgement.verdict == HOLDS
    assert judgement.line == "Broader: yes. Beyond the paper: repeats: no."
    # Where the paper's statement itself has no part, nothing decides it.
    assert Judgement([dataclasses.replace(repeats, low=0.0, high=2.0)], 3).verdict == OPEN


def test_gates_and_contrasts():
    part = at_least("x", ONES, 0.5, "small S")
    other = at_least("y", ONES, 0.5, "large S")
    assert Judgement([part], 3, gates={"P0": HOLDS}).verdict == HOLDS
    assert Judgement([part], 3, gates={"P0": REFUTED}).verdict == OPEN
    fails = at_most("contrast", ONES, 0.5, "small S")
    judgement = Judgement([part, other], 3, contrast=[fails])
    assert judgement.groups == {"small S": OPEN, "large S": HOLDS}
    assert judgement.missing(part) == "the contrast does not hold: contrast"
    everywhere = dataclasses.replace(fails, group=None)
    assert Judgement([part, other], 3, contrast=[everywhere]).verdict == OPEN


def test_a_contrast_that_no_run_has_measured_is_no_contrast_that_fails():
    part = at_least("x", ONES, 0.5)
    for values, said in ((ONES, "the contrast does not hold: c"), ([math.nan] * 3, "not measured")):
        judgement = Judgement([part], 3, contrast=[at_most("c", values, 0.5)])
        record = _record(judgement, {"criterion": ""}, "judging")
        assert record["parts"][0]["missing"].startswith(said)
        assert record["parts"][0]["verdict"] == OPEN


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
        if "." in claim:  # a later entry has seeds of its own
            first = criteria[claim.partition(".")[0]]["seeds"]["judge"]
            own = parse_seeds(f"{criterion['seeds']['judge']},")
            assert not set(own) & set(parse_seeds(f"{first},")), claim
            # Of noise alone a seed has several draws, each of which counts.
            planned = len(own) * criterion["seeds"].get("draws", 1)
            # What is drawn apart from the seeds is counted by itself.
            planned = criterion["seeds"].get("values", planned)
            assert criterion["seeds"]["planned"] == planned, claim


def test_judging_modules_hold_judges_alone():
    """Each is named by its experiment; a public function in it judges the claim of that name."""
    framework = {"judging", "ledger", "judges", "lock", "stored", "bench"}
    for path in (ROOT / "analysis" / "claims").glob("[a-z]*.py"):
        if path.stem in framework:
            continue
        module = importlib.import_module(f"analysis.claims.{path.stem}")
        functions = {
            name
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if function.__module__ == module.__name__ and not name.startswith("_")
        }
        expected = {function_name(claim) for claim in criteria_of(path.stem)}
        assert functions == expected, path.stem
        for name in functions:
            judge = getattr(module, name)
            assert list(inspect.signature(inspect.unwrap(judge)).parameters)
            assert judge.__doc__, name


def test_published_runs_name_todays_criteria():
    """What judged them has not changed since: entry, and where there is a lock the code too."""
    checked = 0
    for path in (ROOT / "results" / "reference").glob(f"*/*/{RUN_LIST}"):
        experiment = path.parent.name
        criteria, locks = criteria_of(experiment), locks_of(experiment)
        now = {c: criterion_hash(body, locks.get(c)) for c, body in criteria.items()}
        judging = {c: parse_seeds(f"{body['seeds']['judge']},") for c, body in criteria.items()}
        for run in read_run_list(path):
            if run["kind"] != "brownian" and run["seed"] >= FIRST_JUDGING_SEED:
                for claim, seeds in judging.items():
                    if run["seed"] in seeds:
                        assert run["criteria"][claim] == now[claim], (run["label"], claim)
                        checked += 1
    assert checked > 1000


def test_locked_claims_are_judged_by_the_code_that_was_locked():
    for experiment in sorted({c["experiment"] for c in CRITERIA.values() if "experiment" in c}):
        for claim in locks_of(experiment):
            assert is_locked(experiment, claim), (
                f"{claim}: if the code judges as before, python -m analysis.claims.lock --same"
            )


def test_a_lock_is_the_same_in_every_version_of_python():
    """As 3.11 writes a tree; 3.12 adds type_params, and 3.13 leaves empty lists out."""
    [function] = ast.parse("def f(a):\n    return a()").body
    assert judges.dump(function) == (
        "FunctionDef(name='f', args=arguments(posonlyargs=[], args=[arg(arg='a')], kwonlyargs=[], "
        "kw_defaults=[], defaults=[]), body=[Return(value=Call(func=Name(id='a', ctx=Load()), "
        "args=[], keywords=[]))], decorator_list=[])"
    )


def test_a_lock_sees_other_code_and_not_other_words(monkeypatch):
    """A constant deep in what the judge calls counts; a docstring does not."""
    now = code_hash("gradient_noise", "N1.2")
    module = importlib.import_module("analysis.quantities.gradient_noise")
    monkeypatch.setattr(module.ratios, "__doc__", "other words")
    assert code_hash("gradient_noise", "N1.2") == now
    monkeypatch.setattr(module, "LATE", 0.5)
    assert code_hash("gradient_noise", "N1.2") != now
    assert not is_locked("gradient_noise", "N1.2") and is_locked("gradient_noise", "N1")


def test_writing_locks(monkeypatch, tmp_path):
    for module in (criteria_module, judges, lock):
        monkeypatch.setattr(module, "EXPERIMENTS", tmp_path)
    shutil.copytree(EXPERIMENTS / "gradient_noise", tmp_path / "gradient_noise")
    monkeypatch.setattr(lock, "_published", lambda claim: None)
    path = tmp_path / "gradient_noise" / "locks.json"
    path.unlink()
    # Runs that were published without a lock would no longer judge under one.
    with monkeypatch.context() as changed, pytest.raises(UserError, match="without a lock: write"):
        changed.setattr(lock, "_published", lambda claim: {"tiny": {"n": 16}})
        lock.lock("N1.2")
    lock.lock("N1.2")
    written = json.loads(path.read_text())
    assert set(written["N1.2"]) == {"code", "configuration"}
    # Other code is noted beside the locked one where it judges alike; the hash stays.
    monkeypatch.setattr("analysis.quantities.gradient_noise.LATE", 0.5)
    with pytest.raises(UserError, match="has judged no published runs to compare with"):
        lock.lock("N1.2", same=True)
    judged = {"n": 16, "parts": [], "verdict": HOLDS}
    monkeypatch.setattr(lock, "_published", lambda claim: judged)
    monkeypatch.setattr(lock, "_judged", lambda *claim: judged)
    lock.lock("N1.2", same=True)
    again = json.loads(path.read_text())["N1.2"]
    assert again["code"] == written["N1.2"]["code"] and len(again["same_as"]) == 1
    assert is_locked("gradient_noise", "N1.2")
    criterion = criteria_of("gradient_noise")["N1.2"]
    assert criterion_hash(criterion, again) == criterion_hash(criterion, written["N1.2"])
    # So is a configuration that asks for more, where all that judged is still asked for.
    for module in (lock, judges):
        monkeypatch.setattr(module, "configuration_hash", lambda experiment, at: "grown")
    assert not is_locked("gradient_noise", "N1.2")
    monkeypatch.setattr(lock, "_asked_for", lambda criterion: False)
    with pytest.raises(UserError, match="the configuration asks for other runs than those that"):
        lock.lock("N1.2", same=True)
    monkeypatch.setattr(lock, "_asked_for", lambda criterion: True)
    lock.lock("N1.2", same=True)
    grown = json.loads(path.read_text())["N1.2"]
    assert grown == again | {"grown_to": ["grown"]} and is_locked("gradient_noise", "N1.2")
    assert criterion_hash(criterion, grown) == criterion_hash(criterion, written["N1.2"])
    # Where runs are published under it, a lock does not move.
    monkeypatch.setattr(lock, "_published", lambda claim: {"n": 16, "parts": [], "verdict": OPEN})
    with pytest.raises(UserError, match=r"N1\.2: runs are published under its lock"):
        lock.lock("N1.2")
    with pytest.raises(UserError, match="judges the published runs otherwise"):
        lock.lock("N1.2", same=True)
    with pytest.raises(UserError, match="I2: no experiment decides it"):
        lock.lock("I2")
    path.write_text("{")
    with pytest.raises(UserError, match=r"locks\.json is damaged"):
        locks_of("gradient_noise")


def test_a_lock_holds_at_every_scale_and_waits_for_a_search(monkeypatch):
    published = lock._published("T1")
    assert set(published) == {"tiny", "mini"} and all(p["n"] for p in published.values())
    monkeypatch.setattr(lock, "judge_all", lambda *arguments, **_: arguments)
    record = {"id": "T1", "n": 3, "verdict": OPEN, "parts": []}
    monkeypatch.setattr(lock, "as_ledger", lambda *_: {"claims": [record]})
    judged = lock._judged("T1", "tuning_ablation", {}, published)
    assert judged == dict.fromkeys(published, {"n": 3, "verdict": OPEN, "parts": []})
    monkeypatch.setattr("lrm.plan.experiment.Experiment.untuned", lambda *_: ["ADAM_FULL"])
    with pytest.raises(UserError, match="long_run: no search has tuned ADAM_FULL at mini; lock"):
        lock._check_tuned(CRITERIA["L1"])
    monkeypatch.setattr("lrm.plan.experiment.Experiment.untuned", lambda *_: ["MUON_FULL"])
    lock._check_tuned(CRITERIA["L1"])  # which reads AdamW's arms alone
    with pytest.raises(UserError, match="long_run: no search has tuned MUON_FULL at mini; lock"):
        lock._check_tuned(CRITERIA["L3"])


def test_an_entry_may_get_only_after_its_runs(monkeypatch):
    """Where its runs were judged without, the lock notes it, and the hash stays."""
    criterion, held = criteria_of("gdn_draws")["GD15"], locks_of("gdn_draws")["GD15"]
    before = {key: value for key, value in criterion.items() if key != "only"}
    plain = {key: held[key] for key in ("code", "configuration")}
    assert held["only_added"] == criterion["only"]
    assert criterion_hash(criterion, held) == criterion_hash(before, plain)
    assert criterion_hash(criterion, plain) != criterion_hash(before, plain)
    narrowed = criterion | {"only": ["* draw=1000 *"]}
    assert criterion_hash(narrowed, held) == criterion_hash(narrowed, plain)
    assert lock._only_added("GD15", criterion, plain)
    assert not lock._only_added("GD15", criterion, held)
    assert not lock._only_added("GD15", before, plain)
    monkeypatch.setattr(lock, "find", lambda *wanted: [])
    assert not lock._only_added("GD15", criterion, plain)


@pytest.mark.parametrize("same", [False, True])
def test_a_lock_that_has_nothing_new_keeps_what_it_notes(same, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(lock, "write_json", lambda path, locks: written.append(locks["GD15"]))
    held = locks_of("gdn_draws")["GD15"]
    known = {"code": held["code"], "configuration": held["configuration"]}
    monkeypatch.setattr(lock, "code_hash", lambda *_: known["code"])
    monkeypatch.setattr(lock, "configuration_hash", lambda *_: known["configuration"])
    lock.lock("GD15", same=same)
    assert written == [held]


def test_patterns_of_every_entry_select_runs():
    """A misspelt one would leave its claim without runs."""
    for name, criterion in CRITERIA.items():
        if "only" in criterion:
            loaded = load_experiment(EXPERIMENTS / criterion["experiment"] / "config.yaml")
            scale = criterion.get("at") or judges.judging_scale(loaded)
            untuned = loaded.untuned(scale)
            labels = [f"{arm} seed=0" for arm in untuned]
            if len(untuned) < len(loaded.arms_at(scale)):
                labels += [run.label for run in loaded.runs(scale, [0])]
            for pattern in criterion["only"]:
                assert fnmatch.filter(labels, pattern), (name, pattern)


def test_an_entry_of_one_scale_locks_and_judges_there_alone(monkeypatch, tmp_path):
    """The configuration of the other scales may change; the others have no verdict of it."""
    for module in (criteria_module, judges, lock):
        monkeypatch.setattr(module, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(lock, "_published", lambda claim: None)
    folder = tmp_path / "gradient_noise"
    shutil.copytree(EXPERIMENTS / "gradient_noise", folder)
    (folder / "locks.json").unlink()
    criteria, config = folder / "criteria.yaml", folder / "config.yaml"
    entries = yaml.safe_load(criteria.read_text())
    entries = {"N1.2": entries["N1.2"] | {"at": "mini"}, "N1": entries["N1"]}
    criteria.write_text(yaml.safe_dump(entries))
    lock.lock("N1.2")
    lock.lock("N1")
    locks = locks_of("gradient_noise")
    assert locks["N1.2"]["configuration"] != locks["N1"]["configuration"]
    for scale, changed in (("tiny", "N1"), ("mini", "N1.2")):
        before = config.read_text()
        said = yaml.safe_load(before)
        own = said.setdefault("scales", {}).setdefault(scale, None) or {}
        said["scales"][scale] = own | {"optimizer": {"lr": 1.25e-3}}
        config.write_text(yaml.safe_dump(said))
        assert [claim for claim in entries if not is_locked("gradient_noise", claim)] == [changed]
        config.write_text(before)

    monkeypatch.setattr("analysis.claims.ledger.is_locked", lambda *claim: True)
    [record] = [r for r in judge_all("tiny", "reference", RESULTS, ["gradient_noise"])
                if r["id"] == "N1.2"]  # fmt: skip
    assert record["verdict"] == UNJUDGED and record["note"].endswith("judged at mini alone")
    assert asked_by(folder, "N1.2", "mini") == asked_by(folder, "N1.2")
    with pytest.raises(UserError, match="N1.2 is judged at mini alone; add --scale mini"):
        asked_by(folder, "N1.2", "tiny")
    criteria.write_text(yaml.safe_dump({"N1.2": entries["N1.2"] | {"at": "smoke"}}))
    with pytest.raises(UserError, match="at: 'smoke' is no scale that judges; write one of tiny,"):
        criteria_of("gradient_noise")


def test_runs_that_are_not_asked_for_any_more_are_noticed(monkeypatch):
    criterion = criteria_of("tuning_apart")["T8"]
    assert lock._asked_for(criterion) and lock._asked_for(criteria_of("steepest_width")["BM1"])
    whole = lock.find

    def fewer(*arguments):
        found = whole(*arguments)
        return found if "all" in arguments else found[1:]

    monkeypatch.setattr(lock, "find", fewer)
    assert not lock._asked_for(criterion)


def test_other_code_is_compared_as_if_it_were_locked(monkeypatch):
    """Where the lock is another, verdicts are open; ``--same`` asks what they would be."""
    monkeypatch.setattr("analysis.claims.ledger.is_locked", lambda *claim: False)
    [record] = [r for r in judge_all("tiny", "reference", RESULTS, ["linear_layer"])
                if r["id"] == "WS5.2"]  # fmt: skip
    assert record["note"] == CHANGED
    judged = lock._judged("WS5.2", "linear_layer", None, ["tiny"])
    published = lock._published("WS5.2")
    assert lock._alike(judged, published)
    value = published["tiny"]["parts"][0]["value"]
    published["tiny"]["parts"][0]["value"] = value * (1 + 1e-6)
    assert not lock._alike(judged, published)
    del published["tiny"]["parts"][0]
    assert not lock._alike(judged, published)


def test_advice_is_no_part_of_a_criterion():
    criterion = criteria_of("gradient_noise")["N1"]
    assert criterion_hash(criterion) == criterion_hash({**criterion, "if_open": "more seeds"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "X1: {experiment: other}",
            "X1: write experiment: mine in it; a copy of",
        ),
        ("X1: 3", "X1: expected a mapping with experiment, statement and seeds, found 3"),
        ("P0: {experiment: mine}", "P0: experiments mine and projector have a claim of that name"),
    ],
)
def test_criteria_in_the_wrong_place_are_told(monkeypatch, tmp_path, body, message):
    for name in ("projector", "mine"):
        (tmp_path / name).mkdir()
        shutil.copy(EXPERIMENTS / "projector" / "config.yaml", tmp_path / name)
    shutil.copy(EXPERIMENTS / "projector" / "criteria.yaml", tmp_path / "projector")
    whole = "statement: x, criterion: y, thresholds: {}, seeds: {judge: 100-101, planned: 2}}"
    (tmp_path / "mine" / "criteria.yaml").write_text(body.replace("}", f", {whole}"))
    monkeypatch.setattr(criteria_module, "EXPERIMENTS", tmp_path)
    with pytest.raises(UserError, match=message):
        every_criterion()


def test_a_criterion_that_nobody_judges_yet_is_told(monkeypatch, smoke_results):
    monkeypatch.delattr("analysis.claims.gradient_noise.n1")
    record = judge_all("smoke", "runs", smoke_results, ["gradient_noise"])[0]
    assert record["verdict"] == UNJUDGED
    assert record["note"] == "no function n1 in analysis/claims/gradient_noise.py"
    assert judge_of("frozen_multipliers", "Z1") is None


def test_claims_without_runs(tmp_path):
    records = judge_all("tiny", "runs", tmp_path)
    assert {record["verdict"] for record in records} == {UNJUDGED, TESTED}
    assert {r["id"] for r in records if r["verdict"] == TESTED} == {"I2", "I3"}
    ledger = as_ledger(records, "tiny", "runs")
    assert json.loads(json.dumps(ledger)) == ledger
    assert ledger["multiplicity"]["tested"] == 0
    assert "P1" in text(ledger)
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


def test_seeds_judge_the_claims_that_they_were_planned_for(monkeypatch):
    """Seeds 100 to 107 are the first entry's, and say nothing of a later one."""
    records = {r["id"]: r for r in judge_all("tiny", "reference", RESULTS, ["gradient_noise"])}
    assert records["N1"]["n"] == 3 and records["N1"]["stage"] == "judging"
    later = criteria_of("gradient_noise")["N1.2"]["seeds"]
    assert records["N1.2"]["n"] in (0, later["planned"])


@pytest.mark.parametrize(
    "planned, judged", [(2, [100, 101]), (3, [100, 101, 102]), (4, [100, 101, 102, 103])]
)
def test_a_spare_seed_counts_only_where_another_is_missing(planned, judged):
    runs = pd.DataFrame({"kind": "train", "seed": [0, 100, 101, 102, 103], "run": list("abcde")})
    frame = pd.DataFrame({"run": list("abcde")})
    found = _of_seeds(Tables(runs, frame), "100-103", "102-103", planned)
    assert sorted(found.runs["seed"]) == judged


def test_judging_code_that_changed_after_the_seeds_ran_opens_the_claim(monkeypatch):
    monkeypatch.setattr("analysis.claims.ledger.is_locked", lambda experiment, claim: False)
    record = judge_all("tiny", "reference", RESULTS, ["grad_clipping"])[0]
    assert record["verdict"] == OPEN and "changed after these seeds ran" in record["note"]


def test_the_published_ledger_is_complete_and_readable():
    """Every open group names what would decide it; nothing is wider than a terminal."""
    ledger = read_ledger(claims_file("tiny", "reference", RESULTS))
    assert [record["id"] for record in ledger["claims"]] == list(CRITERIA)
    for record in ledger["claims"]:
        undecided = record["verdict"] in (OPEN, UNJUDGED) or OPEN in record["groups"].values()
        assert bool(record["if_open"]) == undecided, record["id"]
        names = [part["name"] for part in record["parts"] + record["contrast"]]
        assert len(set(names)) == len(names), record["id"]
        assert all(len(line) <= 80 for line in text(ledger, record["id"]).splitlines())
    seeded = [record for record in ledger["claims"] if record["scale"] is not None]
    tested = [p for record in seeded for p in record["parts"] if p["p"] is not None]
    counts = ledger["multiplicity"]
    assert counts["tested"] == len(tested) > counts["held"] >= counts["survive_holm"] > 20
    for printed in (text(ledger), text(ledger, parts=True)):
        assert max(map(len, printed.splitlines())) <= 80
    assert "would hold by chance" in text(ledger).replace("\n", " ")


def test_claims_and_experiments_that_there_are_not_are_named():
    claims = of_experiments("linear_layer", "tiny", "reference", RESULTS)
    assert list(claims.index) == ["WS5.2"] and len(parts_of(claims, "WS5.2"))
    with pytest.raises(UserError, match="no claim of nosuch at tiny; claims have .*projector"):
        of_experiments(["nosuch"], "tiny", "reference", RESULTS)
    with pytest.raises(UserError, match="no claim M1; there are WS5.2"):
        parts_of(claims, "WS5.2", "M1")


def test_what_does_not_differ_between_seeds_is_no_test():
    for values, tested in (([0.1 + 0.2, 0.3, 0.3], False), (ONES, True)):
        found = _part(at_least("x", values, 0.0), 3, HOLDS)
        assert [found["p"] is not None, found["interval"] is not None] == 2 * [tested]


def test_seeds_without_a_value_do_not_count():
    nothing = at_least("x", [math.nan] * 3, 0.0)
    assert _part(nothing, 3, OPEN)["n"] == 0
    record = _record(
        Judgement([nothing, at_least("y", [0.1, 0.2, 0.4], 0.0)], 3), {"criterion": "none"}, None
    )
    assert record["n"] == 3 and [part["n"] for part in record["parts"]] == [0, 3]


def test_the_command(tmp_path):
    """It prints what is stored without judging; a damaged or missing ledger is told."""

    def call(*options):
        command = [sys.executable, "-m", "analysis.claims", *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = call("--claim", "p1")
    assert done.returncode == 0 and done.stdout.startswith("P1 ")
    assert "criterion:" in done.stdout and done.stdout.count("\nP") == 0
    done = call("--claim", "Z9")
    assert done.returncode == 2 and done.stderr.startswith("error: no claim 'Z9'; there are P0, ")
    done = call("--claim", "")
    assert done.returncode == 2 and done.stderr.startswith("error: --claim is empty; name one")
    done = call("--claim", "P1", "--all")
    assert done.returncode == 2 and done.stderr.startswith("error: --claim shows every part of one")
    done = call("--results", str(tmp_path))
    assert done.returncode == 2 and "make claims FROM=runs SCALE=tiny judges" in done.stderr
    folder = tmp_path / "reference" / "tiny"
    folder.mkdir(parents=True)
    (folder / "claims.json").write_text("[]")
    done = call("--results", str(tmp_path))
    assert done.returncode == 2 and "is damaged" in done.stderr and "Traceback" not in done.stderr
    code = "import sys, analysis.claims.__main__; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_a_claim_that_reads_some_runs_needs_no_others(smoke_results, tmp_path, monkeypatch):
    """Its seeds are trained and published without them, and no figure takes such a seed."""
    shutil.copytree(smoke_results / "runs" / "grad_clipping", tmp_path / "runs" / "grad_clipping")
    for path in (tmp_path / "runs").glob("*/*/run.json"):
        if json.loads(path.read_text())["arm"] == "INCLUDED":
            shutil.rmtree(path.parent)

    def judge(tables, criterion):
        assert set(tables.trained["arm"]) == {"NONE", "EXCLUDED"}
        return Judgement([at_least("x", ONES, 0.5)], 3)

    monkeypatch.setattr("analysis.claims.ledger.judge_of", lambda experiment, claim: judge)
    read = {"C1": CRITERIA["C1"] | {"only": ["NONE *", "EXCLUDED *"]}, "C2": CRITERIA["C2"]}
    monkeypatch.setattr("analysis.claims.ledger.every_criterion", lambda: read)
    with pytest.raises(UserError, match="no finished runs of grad_clipping at smoke"):
        publish("grad_clipping", "smoke", [0], tmp_path)
    publish("grad_clipping", "smoke", [0], tmp_path, read["C1"]["only"])
    for source in ("runs", "reference"):
        first, second = judge_all("smoke", source, tmp_path)
        assert (first["verdict"], second["verdict"]) == (HOLDS, UNJUDGED)
    with pytest.raises(NothingFound, match="incomplete"):
        load("grad_clipping", "smoke", "reference", tmp_path)


def test_a_few_seeds_that_explore_are_no_verdict(smoke_results):
    for record in judge_all("smoke", "runs", smoke_results, ["grad_clipping"]):
        assert (record["verdict"], record["line"]) == (UNJUDGED, "Not judged.")
        assert record["stage"] == "exploration" and record["n"] == 1 and record["parts"]
