"""What all planted worlds share: noise that depends on names alone, and the checks of parts."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pandas as pd

from analysis.claims.judges import judge_of
from analysis.claims.judging import HOLDS, Judgement, Part
from analysis.tables.criteria import every_criterion
from analysis.tables.results import Tables

CRITERIA = every_criterion()
COLUMNS = ["kind", "arm", "seed", "step", "tensor", "layer", "stat", "value"]


def noise(*key, size: float) -> float:
    """A normal deviate of this size that belongs to ``key``."""
    return size * _deviate(zlib.crc32(repr(key).encode()))


@functools.cache
def _deviate(seed: int) -> float:
    """Kept, since the worlds of a claim differ in few numbers and ask for hundreds of thousands."""
    return np.random.default_rng(seed).standard_normal()


def frame(rows: Iterable[dict]) -> pd.DataFrame:
    """Rows of the tidy table; what a row does not name is a trained run's, outside of layers."""
    return pd.DataFrame([{"kind": "train", "layer": np.nan, **row} for row in rows])


def runs_of(
    arms: Collection[str], seeds: Collection[int], settings: dict, **description
) -> pd.DataFrame:
    """One trained run for each arm and seed, all with these settings."""
    described = {"settings": settings, **description}
    return pd.DataFrame(
        [
            {"kind": "train", "arm": arm, "seed": seed, "description": described}
            for arm in arms
            for seed in seeds
        ]
    )


def judged(claim: str, tables: Tables) -> Judgement:
    """What the claim's judge says of a world."""
    criterion = CRITERIA[claim]
    return judge_of(criterion.get("experiment", "bench"), claim)(tables, criterion)


def verdicts(claim: str, tables: Tables) -> dict[str, str]:
    """The verdict of each part and contrast by its name, without what it owes to others."""
    judgement = judged(claim, tables)
    parts = [*judgement.parts, *judgement.contrast]
    assert len({part.name for part in parts}) == len(parts), "names of parts repeat"
    return {part.name: part.verdict(judgement.planned) for part in parts}


def part(claim: str, tables: Tables, name: str) -> Part:
    """The part of this name, or the only one whose name contains it."""
    judgement = judged(claim, tables)
    parts = [p for p in (*judgement.parts, *judgement.contrast) if name in p.name]
    [found] = [p for p in parts if p.name == name] or parts
    return found


def check_breaks(claim: str, world: Callable[..., Tables], breaks: dict[str, dict]) -> None:
    """Every part holds in the faithful ``world()``, and each fails in a world of its own.

    ``breaks`` maps a part's name, or a piece of it that names one part alone, to the changes with
    which ``world(**changes)`` breaks it; all other parts still hold there, save those whose names
    contain a piece in ``changes["also"]``. Every part must be broken by some world. Worlds should
    be kept (``functools.cache``): the mutants are tried on the same ones.
    """
    faithful = verdicts(claim, world())
    assert set(faithful.values()) == {HOLDS}, faithful
    broken = set()
    for piece, changes in breaks.items():
        [name] = [piece] if piece in faithful else [one for one in faithful if piece in one]
        also = changes.get("also", ())
        seen = verdicts(claim, world(**{k: v for k, v in changes.items() if k != "also"}))
        assert seen.keys() == faithful.keys(), (piece, seen)
        assert seen[name] != HOLDS, (piece, seen)
        others = {
            other: verdict
            for other, verdict in seen.items()
            if other != name and not any(one in other for one in also)
        }
        assert set(others.values()) <= {HOLDS}, (piece, others)
        broken.add(name)
    assert broken == faithful.keys(), f"no world breaks {sorted(faithful.keys() - broken)}"
