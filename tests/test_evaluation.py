"""Evaluation by the harness: the offline suite, its scores against ours, resumption, commands."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import math
import os
import random
import re
import shutil
import string
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
import safetensors.torch
import torch
import warm
import yaml
from conftest import EXPERIMENTS
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import lrm
from analysis.figures import fig11, table2
from analysis.publish import kept
from analysis.quantities import long_run
from analysis.tables.compact import publish
from analysis.tables.results import Tables
from lrm import data
from lrm.errors import UserError
from lrm.exchange.evaluation import harness, reasoning, suite
from lrm.exchange.evaluation.command import evaluate, main
from lrm.exchange.evaluation.examples import Example, Material, compiles, look_up, others_like
from lrm.exchange.export import corpus_of, export, trained
from lrm.model.transformers import load_transformers
from lrm.plan.config import DataConfig, Execution, validate
from lrm.plan.evaluation import (
    CHOICES,
    SUITE,
    Evaluation,
    EvaluationRun,
    Suite,
    Task,
    harness_version,
)
from lrm.plan.experiment import load
from lrm.plan.yaml import PRESETS, read_yaml
from lrm.store.digests import MANIFEST
from lrm.store.rundir import read_description, read_outcome
from lrm.sweep.command import main as sweep
from lrm.train import loop

ROOT = Path(__file__).parents[1]
EXAMPLES = 8
LRM = ("-c", "from lrm.cli import main; main()", "evaluate")
DATA = DataConfig(source="stdlib", documents=80, validation_fraction=0.5)


def call(*arguments, code=0, **environment):
    done = subprocess.run(
        [warm.python, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """That of the long run at smoke."""
    return data.prepare(DATA, 384, tmp_path_factory.mktemp("results") / "data")


@pytest.fixture(scope="module")
def folder(corpus):
    """The suite."""
    suites = corpus.path.parents[1] / "suites"
    return suite.prepare(Suite(examples=EXAMPLES), corpus, DATA, suites)


@pytest.fixture(scope="module")
def results(corpus, folder):
    """One arm of the long run, trained and evaluated with eight examples a task."""
    found = corpus.path.parents[1]
    for run in runs(found):
        run.execute(run.path(found), found / "data")
    return found


@pytest.fixture(scope="module")
def exported(results, tmp_path_factory):
    """The trained model, as a folder of transformers."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    export(runs(results)[0].path(results), folder)
    return folder


def read(path, name):
    """The examples of one task of a suite's folder."""
    lines = (path / f"{name}.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return [Example(r["query"], tuple(r["choices"]), r["gold"], r["checked"]) for r in records]


def runs(folder):
    """A training with few snapshots, and its evaluation."""
    experiment = load(EXPERIMENTS / "long_run" / "config.yaml")
    overrides = ["train.snapshots=3", "execution.compile=never"]
    train, *_ = experiment.runs("smoke", [0], overrides, ["ADAM_LRM_FULL*"])
    corpus = data.prepare(train.settings.data, 384, folder / "data")
    train = dataclasses.replace(train, corpus=corpus.hash)
    return train, EvaluationRun.of(train, Evaluation(suite=Suite(examples=EXAMPLES)))


def test_the_suite_is_made_of_held_out_text_alone(corpus, folder):
    held_out = suite.documents(corpus)
    assert len(held_out) == corpus.meta["splits"]["validation"]["documents"]
    for name in ("arguments", "docstrings", "indentation"):
        for one in read(folder, name):
            assert any(one.query in text for text in held_out), one
            assert any(one.query + one.choices[one.gold] in text for text in held_out), one


def test_every_question_has_one_answer(folder):
    """Of all but docstrings the key is checked by executing or compiling code."""
    for name in SUITE:
        found = read(folder, name)
        assert len(found) == EXAMPLES
        for one in found:
            assert len(set(one.choices)) == CHOICES and 0 <= one.gold < CHOICES
            assert one.checked == (name != "docstrings"), (name, one)
        assert len({one.gold for one in found}) > 1, name  # the right one has no place of its own


def test_no_question_of_knowledge_has_its_answer_in_it(folder):
    """Copying is no knowledge."""
    for name, task in SUITE.items():
        if task.half != "knowledge":
            continue
        for one in read(folder, name):
            right = one.choices[one.gold].strip(" =")
            assert not re.search(rf"\b{re.escape(right)}\b", one.query), one


def test_a_suite_may_have_some_tasks_alone(corpus, folder, tmp_path):
    """With the same questions, and in the evaluation's plan."""
    wanted = Suite(examples=EXAMPLES, tasks=("strings", "brackets"))
    assert list(wanted.chosen) == ["brackets", "strings"] and list(Suite().chosen) == list(SUITE)
    made = suite.prepare(wanted, corpus, DATA, tmp_path)
    assert {path.stem for path in made.glob("*.jsonl")} == set(wanted.chosen)
    for name in wanted.chosen:
        assert read(made, name) == read(folder, name)
    assert list(Evaluation(suite=wanted).all_tasks) == list(wanted.chosen)
    with pytest.raises(UserError, match="tasks: lookup: no task of the suite; one of imports"):
        validate(Suite, {"tasks": ["lookup"]}, "test")


def test_the_answer_key_again(folder):
    """What the generator has checked, in other words."""
    for one in read(folder, "imports"):
        # In a process of its own: here other tests have imported submodules.
        lines = "".join(f"\ntry:\n {one.query}{choice}\n print(1)\nexcept ImportError:\n print(0)"
                        for choice in one.choices)  # fmt: skip
        told = subprocess.run([sys.executable, "-W", "ignore", "-c", lines], capture_output=True,
                              text=True, check=True).stdout  # fmt: skip
        assert told.split()[-CHOICES:] == [str(int(i == one.gold)) for i in range(CHOICES)], one
    for one in [*read(folder, "brackets"), *read(folder, "strings")]:
        assert [compiles(one.query + choice) for choice in one.choices] == [
            place == one.gold for place in range(CHOICES)
        ]
    for name in ("assignments", "lookups"):
        for one in read(folder, name):
            *code, asked = (line.removeprefix(">>> ") for line in one.query.splitlines())
            values: dict = {}
            exec("\n".join(code), values)
            assert str(eval(asked, values)) == one.choices[one.gold]


@pytest.mark.parametrize("name", ["assignments", "lookups"])
def test_no_place_in_a_question_has_the_answer(name):
    """Whoever always says the first number, or the last, is right in a quarter of questions."""
    maker, material = getattr(reasoning, name), Material((), tuple("abcdefgh"), (), 160)
    found = list(itertools.islice(maker(material, random.Random(0)), 800))
    for place in range(CHOICES):
        said = [re.findall(r"[=:] (\d)", one.query)[place] == one.choices[one.gold]
                for one in found]  # fmt: skip
        assert 0.2 < sum(said) / len(found) < 0.3


def test_a_value_that_is_no_more_is_there():
    """In assignments, but where the answer stands in the first line."""
    material = Material((), tuple("abcdefgh"), (), 160)
    for one in itertools.islice(reasoning.assignments(material, random.Random(0)), 100):
        *lines, asked = one.query.replace(">>> ", "").splitlines()
        own = [line.split(" = ")[1] for line in lines if line.split(" = ")[0] == asked]
        assert own[-1] == one.choices[one.gold]
        assert len(own) > 1 or lines[0].startswith(f"{asked} =")


def test_wrong_choices_are_as_common_as_right_ones():
    """Whoever knows which words are common, and no question, is right in about a quarter."""
    often = {word: 1.0 / place for place, word in enumerate(string.ascii_lowercase, 1)}
    draw, right = random.Random(0), 0
    for answer in draw.choices(list(often), list(often.values()), k=2000):
        wrong = others_like(draw, answer, often.keys() - {answer}, often)
        assert len(set(wrong) | {answer}) == CHOICES
        right += often[answer] > max(often[other] for other in wrong)
    assert right / 2000 < 0.35  # with all words alike it is 0.7


def test_the_depth_of_indentation_has_no_rank(tmp_path):
    """The answer is as often the least indented as the most."""
    body = "".join(f"    if a{i}:\n        if b{i}:\n            c = {i}\n            d = {i}\n"
                   for i in range(300))  # fmt: skip
    material = Material.of([f"def f():\n{body}"], (), 160)
    ranks = [sum(len(other) < len(one.choices[one.gold]) for other in one.choices)
             for one in reasoning.indentation(material, random.Random(0))]  # fmt: skip
    assert len(ranks) > 200 and all(ranks.count(rank) > len(ranks) / 6 for rank in range(CHOICES))


def test_each_seed_has_questions_of_its_own(results):
    _, evaluated = runs(results)
    wanted = evaluated.evaluation.suite
    assert [wanted.of_run(seed).seed for seed in (0, 3)] == [0, 3]
    assert wanted.model_copy(update={"seed": 5}).of_run(3).seed == 8
    described = read_description(evaluated.path(results))
    assert (results / "suites" / described["execution"]["suite_name"]).is_dir()


def test_the_same_documents_give_the_same_bytes(corpus, folder, tmp_path):
    again = suite.prepare(Suite(examples=EXAMPLES), corpus, DATA, tmp_path)
    for name in SUITE:
        assert (again / f"{name}.jsonl").read_bytes() == (folder / f"{name}.jsonl").read_bytes()
    other = suite.prepare(Suite(examples=EXAMPLES, seed=1), corpus, DATA, tmp_path)
    assert other != again
    assert (other / "lookups.jsonl").read_bytes() != (again / "lookups.jsonl").read_bytes()
    (again / "lookups.jsonl").write_text("")
    with pytest.raises(UserError, match=rf"lookups.jsonl is damaged.*remove {again} and run again"):
        suite.prepare(Suite(examples=EXAMPLES), corpus, DATA, tmp_path)


def test_a_suite_that_was_moved_is_read_where_it_lies(corpus, folder, tmp_path):
    """The harness finds files by the paths in a task's YAML, which are no part of the examples."""
    moved = shutil.copytree(folder, tmp_path / folder.name)
    lines = {file: file.stat().st_mtime_ns for file in moved.glob("*.jsonl")}
    after = suite.prepare(Suite(examples=EXAMPLES), corpus, DATA, tmp_path)
    assert after == moved and lines == {file: file.stat().st_mtime_ns for file in lines}
    for name in SUITE:
        files = yaml.safe_load((after / f"{name}.yaml").read_text())["dataset_kwargs"]
        assert files["data_files"]["test"] == str(after / f"{name}.jsonl")
        assert files["cache_dir"].startswith(str(after))
    assert ".yaml" not in (after / MANIFEST).read_text()
    assert suite.digest_of(after) == suite.digest_of(folder)


def test_documents_that_are_no_python_are_left_out_without_a_word():
    texts = ["x = '\\d'\n", "print 'old'\n", "x = \0", "-" * 20_000 + "1", "a" + ".b" * 20_000]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Material.of(texts, (), 160)
        assert [compiles(text) for text in texts] == [True, False, False, False, False]
    assert [text for text, _ in found.documents] == texts[:1] and found.names == ("old", "print")


def test_too_few_documents(corpus, tmp_path):
    message = r"give \d+ examples of imports, and evaluation.suite.examples asks for 5000"
    with pytest.raises(UserError, match=message):
        suite.prepare(Suite(examples=5000), corpus, DATA, tmp_path)


def test_modules_are_looked_up_in_another_process():
    found = look_up(["json", "no_such_module", "textwrap"])
    assert set(found) == {"json", "textwrap"}
    assert "indent" in found["textwrap"] and found["textwrap"]["indent"] == [
        "text", "prefix", "predicate"
    ]  # fmt: skip
    assert found["json"]["dumps"] is None  # takes any keyword
    assert "no_such_module" not in sys.modules


def test_modules_that_take_too_long_leave_those_before(monkeypatch):
    lines = b'{"module": "json", "names": {"dumps": null}}\n{"module": "textwr'

    def late(*arguments, timeout, **options):
        raise subprocess.TimeoutExpired("python", timeout, output=lines)

    monkeypatch.setattr(subprocess, "run", late)
    assert look_up(["json", "textwrap"]) == {"json": {"dumps": None}}
    lines = None  # not even the first
    assert look_up(["json"]) == {}


def ours(model, tokenizer, example) -> list[float]:
    """Log-likelihood of each choice, token by token, with our own model.

    White space at the end of the query may be part of the choice's first token, and counts there.
    """
    found = []
    for choice in example.choices:
        tokens = tokenizer.encode(example.query + choice, add_special_tokens=False).ids
        begin = len(tokenizer.encode(example.query.rstrip(), add_special_tokens=False).ids)
        with torch.no_grad():
            logs = model(torch.tensor([tokens])).log_softmax(-1)[0]
        found.append(sum(logs[n - 1, tokens[n]].item() for n in range(begin, len(tokens))))
    return found


def test_the_harness_scores_as_we_do(results, tmp_path):
    """Example by example, with the model and the tokenizer of this suite."""
    train, evaluated = runs(results)
    source = train.path(results)
    corpus = data.prepare(train.settings.data, 384, results / "data")
    [folder] = (results / "suites").glob("suite-*")
    vectors = pd.read_parquet(evaluated.path(results) / "vectors.parquet")
    tokenizer = Tokenizer.from_file(str(corpus.path / "tokenizer.json"))
    differ = 0
    for step in evaluated.steps[::2]:
        model = trained(source, step)
        for name in SUITE:
            [said] = vectors[(vectors["step"] == step) & (vectors["tensor"] == f"task.{name}")][
                "value"
            ]
            for one, correct in zip(read(folder, name), said, strict=True):
                scores = ours(model, tokenizer, one)
                right = max(range(CHOICES), key=scores.__getitem__) == one.gold
                best, second = sorted(scores)[:-3:-1]
                if right != correct:  # rounding decides between equals
                    differ += 1
                    assert best - second < 1e-4, (name, one, scores)
    assert differ <= 2


def test_scores_are_rows_of_the_table(results):
    train, evaluated = runs(results)
    scalars = pd.read_parquet(evaluated.path(results) / "scalars.parquet")
    scores = scalars[scalars["stat"] == "score"]
    assert set(scores["tensor"]) == {f"task.{name}" for name in SUITE}
    assert sorted(scores["step"].unique()) == list(evaluated.steps) and len(evaluated.steps) == 3
    assert (scores["value"] * EXAMPLES % 1 == 0).all()
    described = read_description(evaluated.path(results))
    assert described["after"] == train.id and described["tasks"]["imports"]["chance"] == 0.25
    assert described["execution"]["lm_eval"] == harness_version()
    [folder] = (results / "suites").glob("suite-*")
    assert described["execution"]["suite"] == suite.digest_of(folder)
    assert read_outcome(evaluated.path(results))["validation_loss"] is None
    assert not list(evaluated.path(results).glob(".export*"))


def test_the_command_line_of_the_harness_gives_the_same(results, exported, tmp_path):
    """What anybody would type, on an exported folder."""
    _, evaluated = runs(results)
    [folder] = (results / "suites").glob("suite-*")
    call("-m", "lm_eval", "run", "--model", "hf", "--model_args",
         f"pretrained={exported},dtype=float32", "--include_path", folder, "--tasks",
         ",".join(f"{suite.PREFIX}{name}" for name in SUITE), "--device", "cpu", "--batch_size", 64,
         "--output_path", tmp_path / "out")  # fmt: skip
    [file] = (tmp_path / "out").rglob("results_*.json")
    said = json.loads(file.read_text())["results"]
    scalars = pd.read_parquet(evaluated.path(results) / "scalars.parquet")
    last = scalars[scalars["step"] == evaluated.steps[-1]].set_index("tensor")["value"]
    for name in SUITE:
        assert said[f"{suite.PREFIX}{name}"]["acc,none"] == pytest.approx(last[f"task.{name}"])


class Killed(BaseException):
    """What no part of the suite may catch."""


def test_killed_after_every_snapshot(results, tmp_path, monkeypatch):
    """Nothing is scored twice, and the tables are those of an uninterrupted evaluation."""
    shutil.copytree(results, tmp_path / "results")
    train, evaluated = runs(results)
    path = evaluated.path(tmp_path / "results")
    shutil.rmtree(path)
    real, calls = harness.Harness.score, []

    def score(self, folder, device):
        calls.append(folder)
        if len(calls) in (2, 4):
            raise Killed
        return real(self, folder, device)

    monkeypatch.setattr(harness.Harness, "score", score)
    for _ in range(2):
        with pytest.raises(Killed):
            evaluated.execute(path, tmp_path / "results" / "data")
        assert not list(path.glob(".export*"))
        (path / ".export.x").mkdir()  # a process that is killed cleans nothing
    evaluated.execute(path, tmp_path / "results" / "data")
    assert not list(path.glob(".export*"))
    assert len(calls) == 3 + 2
    for name in ("scalars", "vectors"):
        whole, broken = (p / f"{name}.parquet" for p in (evaluated.path(results), path))
        assert whole.read_bytes() == broken.read_bytes()


def test_what_is_missing_is_told_in_one_line(results, tmp_path, monkeypatch):
    train, evaluated = runs(results)
    with pytest.raises(UserError, match="has not finished; train it first"):
        evaluated.execute(tmp_path / "runs" / "x", results / "data")
    elsewhere = dataclasses.replace(evaluated, execution=Execution(device="cuda:99"))
    with pytest.raises(UserError, match="execution.device = 'cuda:99' is not usable here"):
        elsewhere.execute(train.path(results).parent / "elsewhere", results / "data")
    with pytest.raises(UserError, match="keeps no weights of step 7; there are those of the steps"):
        export(train.path(results), tmp_path / "out", step=7)
    now = data.prepare(
        evaluated.settings.data, evaluated.settings.model.vocab_size, results / "data"
    )
    with monkeypatch.context() as changed, pytest.raises(UserError, match="the corpus .* has chan"):
        changed.setattr(data.build, "prepare", lambda *_: dataclasses.replace(now, hash="another"))
        evaluated.execute(train.path(results).parent / "another", results / "data")
    monkeypatch.setattr("lrm.plan.evaluation.metadata.version", _missing)
    with pytest.raises(UserError, match=r"not installed; run pip install 'lrm-suite\[evaluation"):
        harness.Harness(SUITE)


def _missing(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_the_command_evaluates_a_run_once(results, tmp_path):
    train, _ = runs(results)
    shutil.copytree(results, tmp_path / "results")
    command = (*LRM, train.path(tmp_path / "results"), "--results", tmp_path / "results",
               "--examples", EXAMPLES)  # fmt: skip
    said = call(*command)
    [file] = (tmp_path / "results" / "evaluations").glob("*.json")
    before = file.stat().st_mtime_ns
    assert said.count("0.") + said.count("1.") >= len(SUITE) and str(file) in said
    assert call(*command) == said and file.stat().st_mtime_ns == before
    # The last step is the end, and no other evaluation.
    assert call(*command, "--step", train.settings.train.steps) == said
    assert [*file.parent.glob("*.json")] == [file]
    found = call(*LRM, tmp_path, code=2)
    assert found.startswith("error: ") and found.count("\n") == 1
    assert "is no finished run and no model's folder" in found


def test_an_exported_folder_says_of_which_run_it_is(results, exported, tmp_path):
    """Its text is built where it is not there, and it has the scores of the run."""
    asked = ([], None, Suite(examples=EXAMPLES))
    model = tmp_path / "model"
    shutil.copytree(exported, model)
    found = json.loads(evaluate(model, tmp_path, *asked).read_text())
    shutil.copytree(results, tmp_path / "results")
    run = runs(results)[0].path(tmp_path / "results")
    same = json.loads(evaluate(run, tmp_path / "results", *asked).read_text())
    assert found["scores"] == same["scores"]
    assert found["suite"]["digest"] == same["suite"]["digest"]
    with pytest.raises(UserError, match="is no run, and has no steps; leave out --step"):
        evaluate(model, tmp_path, [], 26, Suite())
    (model / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"run\.json is damaged.*export the run again"):
        evaluate(model, tmp_path, *asked)
    (model / "run.json").unlink()
    with pytest.raises(UserError, match="lrm export has not written it; name --tasks"):
        evaluate(model, tmp_path, *asked)


@pytest.mark.parametrize(("name", "arm"), [("without", "ADAM_FULL"), ("with", "ADAM_LRM_FULL")])
def test_published_models_load_and_say_what_they_are(name, arm):
    """They load, and are of the runs that are published."""
    folder = ROOT / "results" / "models" / f"adamw-{name}"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("import numpy as np\n", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.shape == (1, ids.shape[1], 2048) and logits.isfinite().all()
    told = read_description(folder)
    runs = Tables.load("long_run", "mini", "reference", ROOT / "results", "all").runs
    [published] = runs[(runs["arm"] == arm) & (runs["kind"] == "train")
                       & (runs["seed"] == told["seed"])]["run"]  # fmt: skip
    assert told["arm"] == arm and told["id"] == published
    assert f"`{told['id']}`" in (folder / "README.md").read_text()


def test_the_command_asks_what_the_planned_evaluation_asks(results, tmp_path):
    """Of a run of seed 1, which has questions of its own."""
    train = dataclasses.replace(runs(results)[0], seed=1)
    planned = EvaluationRun.of(train, Evaluation(suite=Suite(examples=EXAMPLES)))
    shutil.copytree(results / "data", tmp_path / "data")
    for run in (train, planned):
        run.execute(run.path(tmp_path), tmp_path / "data")
    file = evaluate(train.path(tmp_path), tmp_path, [], None, Suite(examples=EXAMPLES))
    said = json.loads(file.read_text())
    scores = pd.read_parquet(planned.path(tmp_path) / "scalars.parquet")
    last = scores[(scores["stat"] == "score") & (scores["step"] == scores["step"].max())]
    assert said["scores"] == {
        name.removeprefix("task."): value
        for name, value in zip(last["tensor"], last["value"], strict=True)
    }
    assert said["suite"]["digest"] == read_description(planned.path(tmp_path))["execution"]["suite"]


def test_what_cannot_be_evaluated_is_refused_before_anything_is_made(results, tmp_path):
    train, evaluated = runs(results)
    with pytest.raises(UserError, match="keeps no weights of step 7; there are those of"):
        evaluate(train.path(results), tmp_path, [], 7, Suite())
    with pytest.raises(UserError, match=r"is no planned training \(kind evaluation\)"):
        evaluate(evaluated.path(results), tmp_path, [], None, Suite())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        evaluate(tmp_path / "model", tmp_path, ["hellaswag"], None, Suite())
    assert str(caught.value).startswith(f"{tmp_path / 'model'} is no model's folder: it lacks")
    for number in ("0", "100001"):
        with pytest.raises(UserError, match="lrm evaluate --examples: examples"):
            main([str(tmp_path), "--examples", number])
    with pytest.raises(UserError, match="--examples is for the offline suite"):
        main([str(tmp_path), "--tasks", "hellaswag", "--examples", "50"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_corpus_is_that_of_the_run(results, tmp_path):
    """Also where scores go to another folder, and not one that has come in its place."""
    train, _ = runs(results)
    assert corpus_of(train.path(results)).path.parent == results / "data"
    (tmp_path / "runs").mkdir()
    shutil.copytree(results / "data", tmp_path / "data")
    shutil.copytree(train.path(results), tmp_path / "runs" / "long_run" / train.id)
    run = tmp_path / "runs" / "long_run" / train.id
    description = read_description(run)
    description["corpus"]["hash"] = "another"
    (run / "done.json").write_text('{"validation_loss": 1.0}')  # of an earlier version
    (run / "run.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match="is not in .*/data, and what is built today is another"):
        corpus_of(run)


def test_the_corpus_of_another_python_is_found_by_its_content(results, tmp_path, monkeypatch):
    """Its folder is named after what it was built from; nothing is built in its place."""
    train, _ = runs(results)
    shutil.copytree(results / "data", tmp_path / "data")
    shutil.copytree(train.path(results), tmp_path / "runs" / "long_run" / train.id)
    there = corpus_of(train.path(results)).path.name
    moved = (tmp_path / "data" / there).rename(tmp_path / "data" / "older")
    (tmp_path / "data" / "broken").mkdir()
    (tmp_path / "data" / "broken" / "meta.json").write_text("{")
    assert corpus_of(tmp_path / "runs" / "long_run" / train.id).path == moved
    assert {path.name for path in (tmp_path / "data").glob("*/")} >= {"older", "broken"}
    assert not (tmp_path / "data" / there).exists()


def test_metrics_that_are_no_means_have_no_score_of_an_example():
    tasks = {"cola": Task(metric="mcc"), "qa": Task()}
    scored = harness.Harness.__new__(harness.Harness)
    scored._prefix = ""
    samples = [{"doc_id": 0, "filter": "none", "mcc": (1, 0), "acc": 1.0}]
    found = {"results": {name: {"mcc,none": 0.5, "acc,none": 1.0} for name in tasks},
             "samples": dict.fromkeys(tasks, samples)}  # fmt: skip
    told = {name: scored._score(found, name, task) for name, task in tasks.items()}
    assert told == {"cola": harness.Score(0.5, []), "qa": harness.Score(1.0, [1.0])}


def test_an_evaluation_without_snapshots_is_refused():
    experiment = load(EXPERIMENTS / "long_run" / "config.yaml")
    with pytest.raises(UserError, match="train.snapshots is 0; set it to 1 or more"):
        experiment.runs("smoke", [0], overrides=["train.snapshots=0"])


def test_examples_behind_others_are_read_with_them(results):
    """An estimate counts the shots in front of each, and the text in front of a suite's."""
    train, _ = runs(results)

    def flops(**said):
        return EvaluationRun.of(train, Evaluation(**said)).estimate().flops

    plain, shots = (flops(tasks={"mmlu": Task(shots=number)}) for number in (0, 5))
    assert shots == pytest.approx(6 * plain)
    plain, long = (flops(suite=Suite(context=context)) for context in (160, 1600))
    assert long == pytest.approx(10 * plain)


def test_a_harness_that_is_missing_is_told_before_the_training(
    results, tmp_path, monkeypatch, capsys
):
    runs(results)
    shutil.copytree(results / "data", tmp_path / "data")

    monkeypatch.setattr("lrm.plan.evaluation.metadata.version", _missing)
    given = ["--scale", "smoke", "--seeds", "0-0", "--only", "*ADAM_LRM_FULL*"]
    with pytest.raises(SystemExit) as ended:
        sweep(str(EXPERIMENTS / "long_run" / "run.py"), [*given, "--results", str(tmp_path)])
    assert ended.value.code == 2 and not (tmp_path / "runs").exists()
    assert "error: lm-eval is not installed; run pip install" in capsys.readouterr().err


def test_the_papers_tasks_are_those_of_the_harness():
    """Pinned with shots, metrics and versions; the harness that is installed has all of them."""
    experiment = load(EXPERIMENTS / "long_run" / "config.yaml")
    tasks = experiment.evaluation("paper").tasks
    assert len(tasks) == 7 and all(task.shots for task in tasks.values())
    from lm_eval.tasks import TaskManager

    with harness.quiet():
        manager = TaskManager()
    assert set(tasks) <= {*manager.all_tasks, *manager.all_groups}
    own = Path(sys.modules["lm_eval"].__file__).parent / "tasks"
    text = (own / "gsm8k" / "gsm8k.yaml").read_text()
    assert f"version: {tasks['gsm8k'].version}" in text and "strict-match" in text
    assert {task.half for task in tasks.values()} == {"knowledge", "reasoning", None}
    # What their answers are read by comes with the harness, or with a package that is installed.
    from lm_eval.tasks.leaderboard.math import utils

    assert utils.remove_boxed(r"\boxed{3}") == "3"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "give either suite or tasks"),
        ({"suite": {}, "tasks": {"mmlu": {}}}, "give either suite or tasks"),
        ({"suite": {}, "scales": {"smok": {}}}, "evaluation.scales: unknown scale 'smok'; use smo"),
        ({"suite": {"example": 3}}, "unknown key suite.example; did you mean examples"),
        ({"tasks": {"mmlu": {"chance": 2.0}}}, "tasks.mmlu.chance"),
    ],
)
def test_a_wrong_evaluation_is_one_line(said, message, tmp_path):
    text = (EXPERIMENTS / "long_run" / "config.yaml").read_text()
    body = yaml.safe_load(text) | {"evaluation": said}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(body))
    with pytest.raises(UserError, match=message):
        load(tmp_path / "config.yaml").runs("smoke", [0])


def test_figures_publishing_and_claims(smoke_results, tmp_path):
    """Of the sweep that a user starts: table, figure, and what is published of it."""
    table = Tables.load("long_run", "smoke", "runs", smoke_results)
    numbers = table2.numbers({"long_run": table})
    here = numbers[numbers["panel"] == "here"]
    assert len(here) == 4 * (len(SUITE) + 2) and here["value"].notna().all()
    needed = numbers[numbers["panel"] == "spread"].set_index("optimizer")["value"]
    assert needed["Adam"] == pytest.approx(1.21 / 1.96 / math.sqrt(2), abs=1e-3)
    drawn = fig11.numbers({"long_run": table})
    tasks = drawn["tasks"].iloc[0]  # those that count have a panel each
    assert len(drawn) == 7 * (4 + 2 + 4 * tasks) and drawn["value"].notna().all()
    assert long_run.stages(table) == (34, 42, 50)
    rates = long_run.base_lrs(table)
    preset = read_yaml(PRESETS / "tuned" / "smoke" / "ADAM_LRM_FULL.yaml")["optimizer"]["lr"]
    assert rates["ADAM_LRM_FULL"] == pytest.approx(preset * (12 / 50) ** 0.25)
    shutil.copytree(smoke_results / "runs" / "long_run", tmp_path / "runs" / "long_run")
    publish("long_run", "smoke", [0], tmp_path, kept("long_run"))
    published = Tables.load("long_run", "smoke", "reference", tmp_path)
    again = table2.numbers({"long_run": published})
    pd.testing.assert_frame_equal(again, numbers, rtol=1e-3)


def test_the_harness_does_not_share_a_model_out_over_processes(exported, folder, monkeypatch):
    """Under torchrun each process has a model of its own."""
    seen = []

    def evaluate(*given, **named):
        seen.append([name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in os.environ])
        raise torch.OutOfMemoryError("CUDA out of memory")

    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("lm_eval.simple_evaluate", evaluate)
    tasks = harness.Harness({name: SUITE[name] for name in list(SUITE)[:1]}, folder)
    with pytest.raises(UserError, match="GPU memory does not suffice for .*by execution.device"):
        tasks.score(exported, torch.device("cpu"))
    assert seen == [[]] and os.environ["LOCAL_RANK"] == "1"


def test_pins_of_versions_are_compared(exported, folder):
    pinned = harness.Harness({"lookups": Task(version=9.0)}, folder)
    with pytest.raises(UserError, match="the task lookups is pinned at version 9, and lm-eval"):
        pinned.score(exported, torch.device("cpu"))


@pytest.mark.parametrize(
    ("told", "passes"),
    [(1, False), (None, False), ("N/A", False), ("8", False), (9, True), (9.0, True), ("9", True)],
)
def test_versions_that_pins_take(folder, told, passes):
    """Those of groups are text; a version that is not told is another."""
    pinned = harness.Harness({"lookups": Task(version=9.0)}, folder)
    said = {"versions": {f"{suite.PREFIX}lookups": told} if told else {}}
    message = f"the task lookups is pinned at version 9, and lm-eval .* tells {told};"
    with contextlib.nullcontext() if passes else pytest.raises(UserError, match=message):
        assert pinned._evaluate(lambda *given, **options: said, None, ["lookups"], None) == said


def test_only_the_harness_s_own_tasks_come_from_the_hub(folder):
    """An error of the offline suite is told as it is."""

    def fail(*given, **options):
        raise OSError("no space left")

    tasks = {"lookups": Task()}
    with pytest.raises(OSError, match="no space left"):
        harness.Harness(tasks, folder)._evaluate(fail, None, ["lookups"], None)
    with pytest.raises(UserError, match=r"cannot evaluate lookups \(no space left\); the data"):
        harness.Harness(tasks)._evaluate(fail, None, ["lookups"], None)


def test_an_answer_that_is_read_in_two_ways_counts_once(folder):
    """The harness keeps a sample for each of them."""
    task = Task(metric="exact_match", answer_filter="strict")
    samples = [
        {"doc_id": number, "filter": read, "exact_match": float(read == "strict" and number > 0)}
        for read in ("strict", "flexible")
        for number in (1, 0, 2)
    ]
    found = {"results": {"lrm_lookups": {"exact_match,strict": 2 / 3, "exact_match,flexible": 0.0}},
             "samples": {"lrm_lookups": samples}}  # fmt: skip
    score = harness.Harness({"lookups": task}, folder)._score(found, "lookups", task)
    assert score == harness.Score(2 / 3, [0.0, 1.0, 1.0])


def test_a_metric_that_a_task_does_not_have_is_named(folder):
    found = {"results": {"lrm_lookups": {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1}}}
    with pytest.raises(UserError, match="tells no acc_norm,none of the task lookups, but acc,none"):
        harness.Harness({}, folder)._score(found, "lookups", Task(metric="acc_norm"))


def test_tasks_that_are_named_give_every_number(exported, tmp_path, monkeypatch):
    """Whatever their metrics are, and of a tag its members; a repaired tokenizer is scored anew."""
    monkeypatch.setattr(harness.Harness, "_found", lambda *_: {"results": {
        "gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.25, "exact_match,flexible": 0.5,
                  "exact_match_stderr,strict-match": "N/A"},
        "arc_easy": {"acc,none": 0.75, "acc_stderr,none": 0.01},
    }})  # fmt: skip
    model = tmp_path / "model"
    shutil.copytree(exported, model)
    first = evaluate(model, tmp_path, ["gsm8k", "ai2_arc"], None, Suite())
    scores = {"gsm8k exact_match,strict-match": 0.25, "gsm8k exact_match,flexible": 0.5,
              "arc_easy acc": 0.75}  # fmt: skip
    assert json.loads(first.read_text())["scores"] == scores
    assert evaluate(model, tmp_path, ["gsm8k", "ai2_arc"], None, Suite()) == first
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert evaluate(model, tmp_path, ["gsm8k", "ai2_arc"], None, Suite()) != first


def test_a_package_that_a_task_needs_is_named():
    def fail(*given, **options):
        raise ModuleNotFoundError("No module named 'langdetect'", name="langdetect")

    message = r"evaluate ifeval \(No module named 'langdetect'\); pip install langdetect$"
    with pytest.raises(UserError, match=message):
        harness.Harness({"ifeval": Task()})._evaluate(fail, None, ["ifeval"], None)


@pytest.mark.parametrize("damage", ["tokenizer.json", "model.safetensors", "config.json"])
def test_a_folder_that_cannot_be_loaded_is_one_line(exported, tmp_path, damage):
    model = tmp_path / "model"
    shutil.copytree(exported, model)
    if damage == "config.json":
        (model / damage).write_text('{"model_type": "no such model"}')
    elif damage == "tokenizer.json":
        for file in model.glob("tokenizer*"):
            file.unlink()
    else:
        (model / damage).write_bytes((model / damage).read_bytes()[:1000])
    with pytest.raises(UserError, match="model cannot be loaded"):
        evaluate(model, tmp_path, ["hellaswag"], None, Suite())


@pytest.mark.parametrize(("damage", "message"), [
    ("multipliers", "holds multipliers beside its weights; merge them"),
    ("lacking", r"lacks 1 weights of its model, .* \(the first is lm_head.weight\)"),
    ("shape", r"lacks 1 weights of its model, or has them in other shapes"),
    ("config", "model cannot be loaded"),
])  # fmt: skip
def test_a_folder_of_another_model_is_one_line(exported, tmp_path, damage, message):
    """transformers draws what is lacking, leaves out the rest, and says so in its log alone."""
    model = tmp_path / "model"
    shutil.copytree(exported, model)
    weights = safetensors.torch.load_file(model / "model.safetensors")
    if damage == "multipliers":
        hf = AutoModelForCausalLM.from_pretrained(exported)
        lrm.attach_multipliers(hf, "scalar")
        hf.save_pretrained(model)
    elif damage == "config":
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"hidden_size": "64"}))
    else:
        head = weights.pop("lm_head.weight")
        if damage == "shape":
            weights["lm_head.weight"] = head[1:].clone()
        safetensors.torch.save_file(weights, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=message):
        evaluate(model, tmp_path, ["hellaswag"], None, Suite())
    with pytest.raises(UserError, match=message.removeprefix("model ")):
        load_transformers(model)


def test_training_runs_as_without_an_evaluation(results):
    """An evaluation leaves what it evaluates alone."""
    train, _ = runs(results)
    before = read_outcome(train.path(results))["validation_loss"]
    loop.train(train, train.path(results), results / "data")
    assert read_outcome(train.path(results))["validation_loss"] == before
