"""What is published recomputes to itself: run ids, figures' numbers and claims.

All but the last digits of numbers, which differ between processors.

Whoever rearranges the code, the YAML or the criteria sees here that nothing else has changed.
"""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.claims.ledger import as_ledger, judge_all
from analysis.figures.__main__ import csv_of
from analysis.tables.context import tables_of
from analysis.tables.run_list import RUN_LIST, read_run_list
from lrm.plan.experiment import load

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PUBLISHED = RESULTS / "reference"
EXPERIMENTS = sorted(path.parent for path in PUBLISHED.glob(f"*/*/{RUN_LIST}"))
FIGURES = sorted(PUBLISHED.glob("*/figures/*.csv"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


def assert_same(found, published, digits=9):
    """Two texts: their words to the letter, their numbers to so many digits."""
    assert NUMBER.split(found) == NUMBER.split(published)
    found, published = (np.array(NUMBER.findall(text), float) for text in (found, published))
    np.testing.assert_allclose(found, published, rtol=10.0**-digits, atol=1e-12)


def test_there_are_published_results():
    """Tests over an empty list would pass."""
    assert EXPERIMENTS and FIGURES
    assert {path.parent.name for path in PUBLISHED.glob("*/claims.json")} == {"tiny", "mini"}


@pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda path: path.name)
def test_run_ids_recompute(folder):
    """The experiment's YAML asks today for every run that is published, under the same id."""
    published = read_run_list(folder / RUN_LIST)
    seeds = sorted({run["seed"] for run in published if run["kind"] != "brownian"})
    plan = load(ROOT / "experiments" / folder.name / "config.yaml")
    wanted = {
        dataclasses.replace(run, corpus=corpus).id: run
        for corpus in {run["corpus"]["hash"] for run in published if run["corpus"]} or {None}
        for run in plan.runs(folder.parent.name, seeds)
    }
    assert not [run["label"] for run in published if run["id"] not in wanted]
    for run in published:
        planned = wanted[run["id"]]
        assert (planned.label, planned.arm, planned.grid) == (run["label"], run["arm"], run["grid"])


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_hold_the_published_numbers(path):
    module = importlib.import_module(f"analysis.figures.{path.stem}")
    scale = path.parents[1].name
    numbers = module.numbers(tables_of(module, scale, "reference", RESULTS))
    # A number whose eighth digit is a five may be rounded either way elsewhere.
    assert_same(csv_of(numbers), path.read_text(encoding="utf-8"), digits=6)


def test_claims_are_judged_as_published():
    for path in PUBLISHED.glob("*/claims.json"):
        scale = path.parent.name
        ledger = as_ledger(judge_all(scale, "reference", RESULTS), scale, "reference")
        assert_same(json.dumps(ledger, indent=1) + "\n", path.read_text(encoding="utf-8"))


def test_other_words_and_other_numbers_are_noticed():
    assert_same("a,1.25,-3.0e-05", "a,1.2500000000001,-3.0e-05")
    for other in ("b,1.25,-3.0e-05", "a,1.26,-3.0e-05", "a,1.25,3.0e-05", "a,1.25", "a,1,-3.0e-05"):
        with pytest.raises(AssertionError):
            assert_same("a,1.25,-3.0e-05", other)
