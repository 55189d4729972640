"""Judging functions of I1 to I1.3, I1b and SV22: what vectors cost in time, from a record.

A row of a record sets one variant's tokens per second against another's, pair by pair; pairs stand
for seeds. (a), the reparametrized forward, is ``forward``, and (b) is ``optimizer`` (section 2).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from analysis.claims.judging import Judgement, at_least, at_most
from lrm.store.digests import is_listed, read_listed, restore
from lrm.store.files import read_json


def record(source: str, folder: Path, name: str) -> dict | None:
    """The published record ``name``; None without.

    With ``source="runs"`` the user's own of that name, or else the newest that has finished, first
    of those with all rows.
    """
    if source == "reference":
        paths = [folder / "reference" / "bench" / f"{name}.json"]
    else:
        every = (folder / "bench").glob("*.json")
        paths = sorted(
            (path for path in every if path.stem == name or _said(path)),
            key=lambda path: (
                path.stem == name,
                _said(path).get("only") is None,
                path.stat().st_mtime,
            ),
        )
    if not paths or not (paths[-1].is_file() or is_listed(paths[-1])):
        return None
    if source == "reference":
        read_listed(paths[-1])
        return read_json(paths[-1], ("rows",), restore(paths[-1].parent))
    return read_json(paths[-1], ("rows",), f"remove {paths[-1]} and run make bench again")


def _said(path: Path) -> dict:
    """What a record holds that make bench has written to its end; empty of all other files."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {"only": None}  # reading it says why
    whole = isinstance(said, dict) and "rows_of" in said and said.get("finished") is not None
    return said if whole else {}


def i1(measurements: dict, criterion: dict) -> Judgement:
    """Tokens per second over those without multipliers, pair by pair, for each limit."""
    configuration, limits = criterion["configuration"], criterion["thresholds"]
    ratios = _ratios(measurements)
    parts = []
    for variant, limit in criterion["variants"].items():
        optimizer, without = ("Muon", "muon") if variant.startswith("muon") else ("AdamW", "plain")
        measured = ratios.get((configuration, variant, without))
        if measured:
            group = f"{limit} with {optimizer}"
            name = f"{group}: tokens/s over those without multipliers"
            parts.append(at_least(name, measured, 1.0 - limits[limit], group, robust=True))
    return Judgement(parts, criterion["pairs"]["minimum"], f"at {configuration}")


def i1_2(measurements: dict, criterion: dict) -> Judgement:
    """What (a) costs against no multipliers, and (b) against (a), each in pairs of its own."""
    limits, ratios = criterion["thresholds"], _ratios(measurements)
    places = [
        (configuration, f"with {optimizer} at {configuration.split()[0]}", variants)
        for configuration in criterion["configurations"]
        for optimizer, variants in criterion["variants"].items()
    ]
    parts = []
    for configuration, where, variants in places:
        measured = _measured(ratios, configuration, variants["forward"], variants["none"])
        name = f"(a) {where}: share of the tokens/s that it costs"
        costs = [1 - ratio for ratio in measured]
        parts.append(at_most(name, costs, limits["forward"], f"(a) {where}", robust=True))
    for configuration, where, variants in places:
        measured = _measured(ratios, configuration, variants["optimizer"], variants["forward"])
        name = f"(b) {where}: share by which its tokens/s lie above those of (a)"
        gains = [ratio - 1 for ratio in measured]
        parts.append(
            at_least(name, gains, limits["gain"], f"(b) less than (a) {where}",
                     matters=criterion["smallest_effect"], robust=True)
        )  # fmt: skip
    return Judgement(parts, criterion["pairs"]["planned"])


def i1_3(measurements: dict, criterion: dict) -> Judgement:
    """What (a) and (b) cost against no multipliers, of the same rounds, with one limit for both."""
    limits, ratios, parts = criterion["thresholds"], _ratios(measurements), []
    # Where the paper's sentence is judged; all else is ours.
    judged, *others = criterion["configurations"]
    places = [(place, kind) for place in (judged, *others) for kind in ("forward", "optimizer")]
    small = criterion.get("small")
    for place, kind in [*places, *([(small, "optimizer")] if small else [])]:
        limit = limits["small" if place == small else "large"]
        where = criterion["configurations"].get(place, place)
        for optimizer, variants in criterion["variants"].items():
            measured = _measured(ratios, place, variants[kind], variants["none"])
            group = f"{'(a)' if kind == 'forward' else '(b)'} with {optimizer}, {where}"
            name = f"{group}: tokens/s over those without multipliers"
            ours = place != judged
            parts.append(at_least(name, measured, 1 - limit, group, robust=True, ours=ours))
    return Judgement(parts, criterion["pairs"]["planned"])


# The same of steps of four times the tokens.
i1b = i1_3


def sv22(measurements: dict, criterion: dict) -> Judgement:
    """What the unified design of scale vectors costs, against standard vectors."""
    limit, ratios, parts = criterion["thresholds"]["time"], _ratios(measurements), []
    variants = criterion["variants"]
    for size, place in criterion["configurations"].items():
        measured = _measured(ratios, place, variants["of"], variants["against"])
        name = f"{size}: time of a step over that with standard vectors"
        times = [1 / ratio for ratio in measured]
        parts.append(at_most(name, times, limit, size, robust=True, ours=size != "20M"))
    return Judgement(parts, criterion["pairs"]["planned"])


def _ratios(measurements: dict) -> dict[tuple[str, str, str], list[float]]:
    """By configuration, variant and that which it is set against: ratios, one a pair."""
    return {
        (row["configuration"], row["of"]["variant"], row["against"]["variant"]): row["ratios"]
        for row in measurements["rows"]
    }


def _measured(ratios: dict, *row: str) -> list[float]:
    """The ratios of a row; one that is not a number where the record has no such row."""
    return ratios.get(row, [math.nan])
