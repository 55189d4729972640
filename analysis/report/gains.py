"""The table of the paper's main question, on the first page and in the report.

``abstract.yaml`` says which parts of which claims it has; the numbers are those of the ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.claims.stored import claims_file, read_ledger
from analysis.drawing.style import OPTIMIZER_NAMES
from analysis.tables.find import RESULTS
from lrm.errors import UserError

NOT_RUN = "not run"


@dataclass(frozen=True)
class Gains:
    """Cells of a table; those of ``rows`` begin with what was tuned and learned."""

    head: list[str]
    rows: list[list[str]]


def gains_of(entries: list[dict[str, Any]], results: Path = RESULTS) -> Gains:
    """Each entry's gain with each optimizer at each scale that an entry names a claim of.

    Raises UserError where a claim or its part is not in the ledger of its scale.
    """
    scales = list(dict.fromkeys(scale for entry in entries for scale in entry["claims"]))
    found = {scale: _Ledger(scale, results) for scale in scales}
    parts = {
        (place, scale, optimizer): found[scale].part(
            claim, entry["part"].format(optimizer=optimizer)
        )
        for place, entry in enumerate(entries)
        for scale, claim in entry["claims"].items()
        for optimizer in OPTIMIZER_NAMES
    }
    columns = [(scale, optimizer) for scale in scales for optimizer in OPTIMIZER_NAMES]
    head = ["gain in nats"]
    for scale, optimizer in columns:
        of_it = [part for (_, *column), part in parts.items() if column == [scale, optimizer]]
        counts = " or ".join(str(n) for n in sorted({part["n"] for part in of_it if part["n"]}))
        seeds = f", n = {counts}" if counts else ""
        head.append(f"`{scale}`, {OPTIMIZER_NAMES[optimizer]}{seeds}")
    rows = [
        [entry["row"], *(_cell(parts.get((place, *column))) for column in columns)]
        for place, entry in enumerate(entries)
    ]
    return Gains(head, rows)


class _Ledger:
    """The published claims of a scale."""

    def __init__(self, scale: str, results: Path):
        self._file = claims_file(scale, "reference", results)
        self._claims = {claim["id"]: claim for claim in read_ledger(self._file)["claims"]}

    def part(self, claim: str, name: str) -> dict[str, Any]:
        """That part of the claim; UserError where there is none."""
        for part in self._claims.get(claim, {}).get("parts", []):
            if part["name"] == name:
                return part
        raise UserError(f"{self._file}: there is no claim {claim} with a part {name!r}; correct "
                        "the gains in analysis/report/abstract.yaml")  # fmt: skip


def _cell(part: dict[str, Any] | None) -> str:
    """``0.014 [0.006, 0.022]``, bold where the interval lies above 0."""
    if part is None or part["value"] is None:
        return NOT_RUN
    if part["interval"] is None:
        return _signed(part["value"])
    low, high = part["interval"]
    text = f"{_signed(part['value'])} [{_signed(low)}, {_signed(high)}]"
    return f"**{text}**" if low > 0 else text


def _signed(value: float) -> str:
    return f"{value:z.3f}".replace("-", "−")
