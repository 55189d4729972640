"""The stored ledger: where it lies, and how it is printed. Nothing is computed here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lrm.errors import UserError
from lrm.store.digests import is_listed, read_listed, restore
from lrm.store.files import read_json

_WIDTH = 80
_VERDICTS = (
    "A part of a claim holds if its whole 95% interval meets the criterion, is refuted if all of "
    "it misses, and is open if it crosses a border or seeds are missing. Below what matters: the "
    "interval lies within the smallest effect that matters. Partly: some groups of parts hold, "
    "others are open or refuted. Not judged: no seed that judges has run."
)


def claims_file(scale: str, source: str, folder: Path) -> Path:
    """``claims.json`` of the published runs, or of the user's own."""
    return folder / ("figures" if source == "runs" else "reference") / scale / "claims.json"


def read_ledger(path: Path) -> dict[str, Any]:
    """A published ledger. Raises UserError where there is none, or a damaged one."""
    if not path.exists() and not is_listed(path):
        scale = path.parent.name
        raise UserError(f"there are no verdicts in {path}; make claims FROM=runs SCALE={scale} "
                        "judges what you have trained")  # fmt: skip
    ledger = read_json(path, ("claims", "multiplicity"), restore(path.parent))
    read_listed(path)
    return ledger


def text(ledger: dict[str, Any], claim: str | None = None, parts: bool = False) -> str:
    """The ledger for a terminal of 80 columns: a paragraph a claim, then what all have in common.

    ``claim``: that one alone, with all that is known of it. ``parts``: every part too.
    Raises UserError for a claim that is not in the ledger.
    """
    records = ledger["claims"]
    if claim:
        records = [record for record in records if record["id"].lower() == claim.lower()]
        if not records:
            known = ", ".join(record["id"] for record in ledger["claims"])
            raise UserError(f"no claim {claim!r}; there are {known}")
    lines = []
    for record in records:
        lines += _claim(record)
        if parts or claim:
            lines += [line for part in record["parts"] for line in _part(part)]
            lines += [line for part in record["contrast"] for line in _part(part, "needed: ")]
        if claim:
            lines += _wrapped(f"criterion: {record['criterion']}")
            if record["note"]:
                lines += _wrapped(f"note: {record['note']}")
        if (parts or claim) and record["if_open"]:
            lines += _wrapped(f"what would decide: {record['if_open']}")
    if not claim:
        lines += ["", *textwrap.wrap(_VERDICTS, _WIDTH), *_multiplicity(ledger["multiplicity"])]
    return "\n".join(lines)


def _claim(record: dict[str, Any]) -> list[str]:
    said = record["verdict"]
    if record["n"]:
        said += f", n = {record['n']}"
    if record["scale"]:
        said += f", {record['scale']}"
    if record["stage"] == "exploration":
        said += ", seeds that only explore"
    statement = record["statement"]
    line = "" if record["line"] in ("Not judged.",) else " " + record["line"]
    return textwrap.wrap(
        f"{record['id']:<8}{statement[0].upper()}{statement[1:]}.{line} ({said})",
        _WIDTH,
        subsequent_indent=" " * 8,
    )


def _part(part: dict[str, Any], prefix: str = "") -> list[str]:
    value = "not measured" if part["value"] is None else f"{part['value']:.3g}"
    spread = "" if part["interval"] is None else " [{:.3g}, {:.3g}]".format(*part["interval"])
    asked = part["required"]
    if part["matters"]:
        asked += f", {part['matters']:g} matters"
    line = f"{prefix}{part['name']}: {value}{spread}, n = {part['n']}; {asked}: {part['verdict']}"
    if part["missing"] and part["verdict"] == "open":
        line += f" ({part['missing']})"
    return _wrapped(line)


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 10)


def tested_parts(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of ``records`` that had enough seeds, which differ."""
    return [part for record in records for part in record["parts"] if part["p"] is not None]


def _multiplicity(counts: dict[str, Any]) -> list[str]:
    return textwrap.wrap(
        f"{counts['held']} of {counts['tested']} parts hold, older entries included. If the truth "
        f"lay on the border of every criterion, {counts['expected_false']:g} would hold by chance. "
        f"{counts['survive_holm']} hold after Holm's correction for testing all of them.",
        _WIDTH,
    )
