"""Planted worlds of the gradients' signal and noise: N1 and N1.2."""

import functools
import math

import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, frame, judged, noise, part, runs_of

STEPS, DECAY = 1000, 200
SETTINGS = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY}}
MATRICES = [(f"m{number}", layer) for number in range(12) for layer in (0, 1)]
SEEDS = range(200, 216)
STATS = {"W": "gradient", "s": "scalar_gradient", "r": "row_gradient", "c": "column_gradient"}


@functools.cache
def world(s=3.5, r=1.9, c=1.6, tells=1.0, weaker=0, seeds=SEEDS, spread=0.05):
    """Multipliers have ``s``, ``r`` and ``c`` times the ratio of their matrix.

    ``weaker`` matrices have multipliers without a signal. ``tells``: how strictly a matrix's ratio
    orders its departure from slope 1; -1 reverses the order.
    """
    rows, gains = [], {"W": 1.0, "s": s, "r": r, "c": c}
    for seed in seeds:
        for number, (tensor, layer) in enumerate(MATRICES):
            base = 0.02 * 1.1**number
            at = {"seed": seed, "arm": "A", "tensor": tensor, "layer": layer}
            for name, gain in gains.items():
                ratio = base * gain * math.exp(noise(seed, tensor, layer, name, size=spread))
                if number < weaker and name != "W":
                    ratio = -0.001
                for step in (100, 500, 800):
                    # What is not late says the reverse.
                    early = 1.0 if step > 320 else 1 / gain**2
                    common = {**at, "S": 1.0, "step": step}
                    rows += [
                        {**common, "stat": f"{STATS[name]}_signal", "value": 3.0 * ratio * early},
                        {**common, "stat": f"{STATS[name]}_noise", "value": 3.0},
                    ]
            departure = 0.02 * number if tells > 0 else 0.02 * (len(MATRICES) - number)
            slope = 1.0 - departure * abs(tells) + noise(seed, tensor, layer, size=1e-3)
            for size in (0.5, 1.0, 2.0):
                common = {**at, "S": size, "step": STEPS - DECAY, "stat": "weight_norm"}
                rows.append({**common, "value": 0.1 * size**slope})
    return Tables(runs_of(["A"], seeds, SETTINGS), frame(rows))


BREAKS = {
    "scalars'": {"s": 0.7},
    "rows'": {"r": 0.7},
    "columns'": {"c": 0.7},
    "rank correlation": {"tells": -1.0},
}


def test_each_part_of_n1_2_has_a_world_that_breaks_it_alone():
    check_breaks("N1.2", world, BREAKS)


def test_each_part_of_n1_has_a_world_that_breaks_it_alone():
    names = {"scalars": "scalars'", "rows": "rows'", "columns": "columns'"}
    breaks = {f"in which {name} have": BREAKS[old] for name, old in names.items()}
    check_breaks("N1", world, {**breaks, "rank correlation": BREAKS["rank correlation"]})


@pytest.mark.parametrize(("name", "gain"), [("scalars", 3.5), ("rows", 1.9), ("columns", 1.6)])
def test_gains_are_measured(name, gain):
    assert part("N1.2", world(), f"{name}'").interval.mean == pytest.approx(
        math.log(gain), abs=0.02
    )
    assert part("N1", world(weaker=6), f"which {name}").interval.mean == pytest.approx(0.75)


def test_a_scalar_at_rest_has_no_signal_and_a_median_bears_it():
    assert judged("N1.2", world(weaker=6)).groups["scalars"] == HOLDS
    assert judged("N1", world(weaker=6)).groups["scalars"] == REFUTED


def test_what_is_too_small_to_matter():
    judgement = judged("N1.2", world(s=1.1))
    assert judgement.groups["scalars"] == BELOW and judgement.verdict == PARTLY
    assert "Scalars: less than matters." in judgement.line
    assert judged("N1.2", world(s=1.0, r=1.0, c=1.0)).verdict == BELOW


def test_reversed_and_too_few():
    assert judged("N1.2", world(s=0.4, r=0.5, c=0.6)).verdict == REFUTED
    assert judged("N1.2", world(seeds=range(200, 215))).verdict == OPEN


def test_the_indicator_is_ours_and_leaves_the_papers_verdict_alone():
    judgement = judged("N1.2", world(tells=-1.0))
    assert judgement.verdict == HOLDS
    assert "Beyond the paper: the ratio tells which matrices leave" in judgement.line
