"""Judging function of I1: what multipliers cost in time, read from the record of ``make bench``."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.claims.judging import Judgement, at_least
from lrm.errors import UserError


def record(source: str, folder: Path, name: str) -> dict | None:
    """The published record ``name``, or with ``source="runs"`` the user's newest; None without."""
    if source == "reference":
        paths = [folder / "reference" / "bench" / f"{name}.json"]
    else:
        paths = sorted((folder / "bench").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not paths or not paths[-1].is_file():
        return None
    try:
        found = json.loads(paths[-1].read_bytes())
        found["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{paths[-1]} is no record of make bench ({error}); remove it and run that again"
        ) from None
    return found


def i1(found: dict, criterion: dict) -> Judgement:
    """Tokens per second over those without multipliers, pair by pair, for each limit."""
    ratios = {
        (row["configuration"], row["of"]["variant"]): row["ratios"]
        for row in found["rows"]
        if row["row"].startswith("multipliers")
    }
    configuration, limits = criterion["configuration"], criterion["thresholds"]
    components = [
        at_least(
            f"{variant}: tokens/s over those without multipliers",
            ratios[configuration, variant],
            1.0 - limits[limit],
            part=variant,
            heavy_tailed=True,
        )
        for variant, limit in criterion["variants"].items()
        if (configuration, variant) in ratios
    ]
    return Judgement(components, criterion["pairs"]["minimum"], f"at {configuration}")
