"""What a claim asks of an experiment: entries of its ``criteria.yaml``. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lrm.cli import parse_seeds
from lrm.errors import UserError, shown
from lrm.plan.yaml import read_yaml


def judging_seeds(criterion: Mapping[str, Any]) -> list[int]:
    """The seeds that judge by an entry of ``criteria.yaml``."""
    return parse_seeds(f"{criterion['seeds']['judge']},")


def asked_by(folder: Path, claim: str) -> tuple[list[int], list[str]]:
    """What judges a claim of the experiment in ``folder``: its seeds, and patterns of its runs.

    Without patterns it reads all runs. Raises UserError for a claim that the experiment has not.
    """
    path = folder / "criteria.yaml"
    entries = read_yaml(path) if path.exists() else {}
    if claim not in entries:
        known = f"it has {', '.join(entries)}" if entries else "it has none"
        raise UserError(f"{folder.name} has no claim {shown(claim)}; {known}")
    return judging_seeds(entries[claim]), list(entries[claim].get("only", ()))
