"""Planted worlds of the linear layer under noise: WS5.2."""

import functools

import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN, REFUTED
from analysis.claims.table1 import OTHERS, STATS
from analysis.tables.find import EXPERIMENTS
from analysis.tables.results import Tables
from lrm.plan.experiment import load
from tests.worlds import test_table1
from tests.worlds.planted import CRITERIA, check_breaks, judged, part

DRAWS = CRITERIA["WS5.2"]["seeds"]["draws"]


@functools.cache
def world(layer=(), draws=DRAWS):
    """The layers of table 1's world, of one seed and with so many draws; no model is there."""
    whole = test_table1.world(layer, draws=draws)
    runs = whole.runs[whole.runs["kind"] == "brownian"].assign(kind="layer", seed=200)
    vectors = whole.vectors.assign(kind="layer", seed=200)
    return Tables(runs, pd.DataFrame(columns=whole.scalars.columns), vectors)


BREAKS = {
    f"{where}: |measured − derived| exponent of {text}, worst": test_table1.wrong(papers, stat)
    for where, papers in (("layer with AdamW and one input", True), (OTHERS, False))
    for stat, text in STATS.items()
}


def test_each_part_has_a_world_that_breaks_it_alone():
    check_breaks("WS5.2", world, BREAKS)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_worst_case_counts(sign):
    some = (("ADAM", "S", "one_input", "output_norm", 0.06 * sign),
            ("JORDAN", "S", "one_input", "output_norm", -0.09 * sign))  # fmt: skip
    papers, others = (
        part("WS5.2", world(layer=some), f"{where}: |measured − derived| exponent of ‖y‖, worst")
        for where in ("one input", OTHERS)
    )
    assert papers.interval.mean == pytest.approx(0.06, abs=1e-6)
    assert others.interval.mean == pytest.approx(0.09, abs=1e-6)


def test_muon_and_fresh_inputs_are_ours():
    judgement = judged("WS5.2", world(layer=(("MUON", None, None, "relative_update", 0.3),)))
    assert judgement.verdict == HOLDS
    assert "Beyond the paper: layer with Muon or fresh inputs: no." in judgement.line


def test_every_draw_counts_and_fewer_are_open():
    """As many as the experiment's YAML asks for."""
    assert {part.interval.n for part in judged("WS5.2", world()).parts} == {DRAWS}
    assert judged("WS5.2", world(draws=DRAWS - 1)).verdict == OPEN
    assert judged("WS5.2", world(layer=((None, None, None, "output_norm", 0.3),))).verdict != HOLDS
    assert load(EXPERIMENTS / "linear_layer" / "config.yaml").header.brownian.draws == DRAWS


def test_another_exponent_is_refuted():
    off = (("ADAM", None, "one_input", "relative_update", 0.5),)
    groups = judged("WS5.2", world(layer=off)).groups
    assert groups["‖Δy‖/‖y‖ of a layer"] == REFUTED
    assert groups["‖y‖ of a layer"] == HOLDS
