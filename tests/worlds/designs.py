"""What planted worlds of the designs of scale vectors share: losses of arms, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest

from analysis.claims.judging import HOLDS, OPEN
from analysis.tables.results import Tables
from tests.worlds.planted import CRITERIA, frame, judged, noise, part

SEEDS = range(200, 216)


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


def check_measured(claim: str, tables: Tables, wanted: Mapping[str, float]) -> None:
    """The means of these parts, each named by a piece of its name."""
    for piece, value in wanted.items():
        measured = part(claim, tables, piece).interval.mean
        assert measured == pytest.approx(value, abs=0.002), piece


def check_planned(claim: str, world: Callable[..., Tables]) -> None:
    """With as many seeds as planned it holds, with one less it is open."""
    planned = CRITERIA[claim]["seeds"]["planned"]
    assert judged(claim, world(seeds=SEEDS[:planned])).verdict == HOLDS
    assert judged(claim, world(seeds=SEEDS[: planned - 1])).verdict == OPEN
