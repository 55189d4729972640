"""Planted worlds of table 1: WS5."""

import functools
import itertools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN, PARTLY, REFUTED
from analysis.claims.table1 import OPTIMIZERS, OTHERS, RECIPES, STATS
from analysis.quantities import table1
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, judged, part

SEEDS, WIDTHS, DRAWS, STEPS, DECAY = range(100, 104), (32, 64, 128), 4, 400, 100
END = STEPS - DECAY
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
# By how much a model's alignment falls, and how far its ‖W‖ lies from the derived exponent.
ALIGNMENT = {"ADAM": -0.3, "MUON": -0.2, "JORDAN": -0.1}
OFF = {"ADAM": 0.02, "MUON": -0.03, "JORDAN": 0.04}


def series(exponent, level, draws):
    """Values of each draw or seed at each width, with noise in the exponent that has no mean."""
    noise = 0.01 * np.linspace(-1, 1, draws)
    return [level * width ** (exponent + noise) for width in WIDTHS]


@functools.cache
def world(layer=(), model=(), seeds=SEEDS, draws=DRAWS):
    """Exponents as derived, but for what ``layer`` and ``model`` add to those of some.

    ``layer``: (optimizer, recipe, case, stat, exponent) with None for any; ``model``: (optimizer,
    recipe, exponent of ‖W‖).
    """
    runs, scalars, vectors = [], [], []
    for arm, (optimizer, recipe) in (table1.LAYERS | table1.MODELS).items():
        is_layer = arm in table1.LAYERS
        kind = "brownian" if is_layer else "train"
        for width, seed in itertools.product(WIDTHS, (0,) if is_layer else seeds):
            runs.append({"run": f"{arm} {width} {seed}", "kind": kind, "arm": arm, "seed": seed,
                         "width": width, "description": {"settings": SETTINGS}})  # fmt: skip
        if is_layer:
            for case, stat in itertools.product(
                table1.CASES, ("weight_norm", "output_norm", "relative_update")
            ):
                wanted = table1.derived(optimizer, recipe, case)[stat]
                wanted += sum(
                    off for o, r, c, s, off in layer
                    if o in (None, optimizer) and r in (None, recipe) and c in (None, case)
                    and s == stat
                )  # fmt: skip
                for width, value in zip(WIDTHS, series(wanted, 3.0, draws), strict=True):
                    at = (f"{arm} {width} 0", kind, arm, 0)
                    name = (f"{table1.LAYER}.{case}", np.nan, f"{stat}_draws")
                    vectors.append((*at, END, *name, value, width))
                    vectors.append((*at, STEPS, *name, value * width, width))
            continue
        norm = table1.derived(optimizer, recipe, "fresh_inputs")["weight_norm"] + OFF[optimizer]
        norm += sum(off for o, r, off in model if o == optimizer and r in (None, recipe))
        # ‖y‖ = s d α ‖W‖
        output = norm + table1.RECIPES[recipe][2] + 1 + ALIGNMENT[optimizer]
        for stat, exponent in (("weight_norm", norm), ("activation_norm", output)):
            for width, values in zip(WIDTHS, series(exponent, 2.0, len(seeds)), strict=True):
                for seed, value in zip(seeds, values, strict=True):
                    at = (f"{arm} {width} {seed}", kind, arm, seed)
                    scalars += [
                        (*at, END, table1.IN_MODEL, 0, stat, 1.3 * value, width),
                        (*at, END, table1.IN_MODEL, 1, stat, value / 1.3, width),
                        (*at, END // 2, table1.IN_MODEL, 0, stat, width * value, width),
                        (*at, STEPS, table1.IN_MODEL, 0, stat, width * value, width),
                        (*at, END, "mlp.gate", 0, stat, 2 * width * value, width),
                    ]
    names = ["run", "kind", "arm", "seed", "step", "tensor", "layer", "stat", "value", "width"]
    return Tables(
        pd.DataFrame(runs), pd.DataFrame(scalars, columns=names),
        pd.DataFrame(vectors, columns=names),
    )  # fmt: skip


def wrong(papers, stat):
    """Worlds whose layer is off in one quantity: in the paper's case, or in one of the others."""
    case = ("ADAM", "LR_WD", "one_input") if papers else ("MUON", "S", "fresh_inputs")
    if stat == "alignment":  # α = ‖y‖ / (s d ‖W‖)
        return {"layer": ((*case, "weight_norm", -0.2),)}
    # ‖y‖ that goes with ‖W‖ leaves α alone.
    also = ((*case, "weight_norm", 0.2),) if stat == "output_norm" else ()
    return {"layer": ((*case, stat, 0.2), *also)}


BREAKS = {
    **{
        f"{where}: |measured − derived| exponent of {text}, worst": wrong(papers, stat)
        for where, papers in (("layer with AdamW and one input", True), (OTHERS, False))
        for stat, text in STATS.items()
    },
    **{
        f"model with {whose}, {text}:": {"model": ((optimizer, recipe, 0.2 * sign),)}
        for sign, (optimizer, whose) in zip((1, -1, 1), OPTIMIZERS.items(), strict=True)
        for recipe, text in RECIPES.items()
    },
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_models_distance_is_measured(optimizer, recipe):
    name = f"model with {OPTIMIZERS[optimizer]}, {RECIPES[recipe]}:"
    found = part("WS5", world(), name).interval.mean
    assert found == pytest.approx(abs(OFF[optimizer]), abs=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_layers_distance_is_that_of_the_worst_case(sign):
    some = (("ADAM", "LR", "one_input", "output_norm", 0.03 * sign),
            ("ADAM", "S", "one_input", "output_norm", 0.06 * sign),
            ("JORDAN", "S", "one_input", "output_norm", -0.09 * sign))  # fmt: skip
    name = "exponent of ‖y‖, worst"
    papers = part("WS5", world(layer=some), "one input: |measured − derived| " + name)
    others = part("WS5", world(layer=some), OTHERS + ": |measured − derived| " + name)
    assert papers.interval.mean == pytest.approx(0.06, abs=1e-6)
    assert others.interval.mean == pytest.approx(0.09, abs=1e-6)
    assert "‖y‖ ADAM S one_input" in judged("WS5", world(layer=some)).note


def test_the_model_is_apart_from_the_layer():
    judgement = judged("WS5", world(model=(("ADAM", None, 0.3),)))
    groups = judgement.groups
    assert groups.pop("‖W‖ of a model with AdamW") == REFUTED
    assert set(groups.values()) == {HOLDS} and judgement.verdict == PARTLY


def test_muon_and_fresh_inputs_are_ours():
    judgement = judged("WS5", world(layer=(("MUON", None, None, "relative_update", 0.3),)))
    assert judgement.verdict == HOLDS
    assert "Beyond the paper: layer with Muon or fresh inputs: no." in judgement.line


def test_swapped_recipes_and_too_few_seeds():
    # λ ∝ d makes ‖W‖ fall by ½ more: the recipe without it has another exponent.
    swapped = tuple((optimizer, "LR_WD", 0.5) for optimizer in OPTIMIZERS)
    groups = judged("WS5", world(model=swapped)).groups
    models = {f"‖W‖ of a model with {whose}" for whose in OPTIMIZERS.values()}
    assert {group for group, verdict in groups.items() if verdict == REFUTED} == models
    few = judged("WS5", world(seeds=range(100, 102))).groups
    assert {group for group, verdict in few.items() if verdict == OPEN} == models


def test_alignments_of_models_stand_in_the_note():
    said = "exponent of a model's alignment: ADAM -0.30, JORDAN -0.10, MUON -0.20"
    assert judged("WS5", world()).note.endswith(said)


def test_each_part_has_a_world_that_breaks_it_alone():
    check_breaks("WS5", world, BREAKS)
