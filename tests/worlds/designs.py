"""What planted worlds of the designs of scale vectors share: losses of arms, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest

from analysis.claims.judging import HOLDS, OPEN
from analysis.tables.results import Tables
from tests.worlds.planted import CRITERIA, check_breaks, frame, judged, noise, part

SEEDS = range(200, 224)


def arms(gaps: Mapping[str, float], changes: Mapping[str, float]) -> list[tuple[str, float, dict]]:
    """Arm, gap and point of the grid, with the changes to ``gaps`` that name an arm."""
    return [(arm, changes.get(arm, gap), {}) for arm, gap in gaps.items()]


def losses(
    points: Sequence[tuple[str, float, dict]],
    seeds: Iterable[int],
    spread: float,
    rows=(),
    runs=None,
) -> Tables:
    """Losses of arms less that of a model that all share, beside other ``rows``.

    Before the decay they stand the other way round.
    """
    rows = list(rows)
    for seed in seeds:
        together = noise(seed, size=0.1)
        for arm, gap, point in points:
            value = gap + noise(seed, arm, repr(point), size=spread)
            at = {"arm": arm, "seed": seed, "tensor": "model", "stat": "validation_loss", **point}
            rows.append({**at, "step": 300, "value": 3.4 + together - value})
            rows.append({**at, "step": 400, "value": 3.4 + together + value})
    found = frame(rows)
    return Tables(runs, found if "S" in found else found.assign(S=np.nan))


def checks(world: Callable[..., Tables], breaks: dict, measured: dict) -> tuple:
    """The tests of an experiment's ``world``: of its parts, their values, and the planned seeds.

    By claim ``breaks`` is that of ``check_breaks``; ``measured`` maps a piece of a part's name to
    its mean where all holds.
    """

    @pytest.mark.parametrize("claim", breaks)
    def each_part_has_a_world_that_breaks_it_alone(claim):
        check_breaks(claim, world, breaks[claim])

    @pytest.mark.parametrize("claim", measured)
    def the_differences_are_what_their_names_say(claim):
        tables = world(spread=0.0005)
        for piece, value in measured[claim].items():
            mean = part(claim, tables, piece).interval.mean
            assert mean == pytest.approx(value, abs=0.002), piece

    @pytest.mark.parametrize("claim", breaks)
    def fewer_seeds_than_planned_decide_nothing(claim):
        planned = CRITERIA[claim]["seeds"]["planned"]
        assert judged(claim, world(seeds=SEEDS[:planned])).verdict == HOLDS
        assert judged(claim, world(seeds=SEEDS[: planned - 1])).verdict == OPEN

    return (
        each_part_has_a_world_that_breaks_it_alone,
        the_differences_are_what_their_names_say,
        fewer_seeds_than_planned_decide_nothing,
    )
