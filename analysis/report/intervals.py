"""Where a part's interval, its criterion and the smallest effect that matters lie on a strip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WIDTH = 240.0
_MARGIN = 0.08


@dataclass(frozen=True)
class Strip:
    """Positions along ``WIDTH`` units: pairs are (start, length), None where there is nothing.

    ``region`` is what the criterion asks for, ``matters`` the band of effects too small to matter,
    ``interval`` the 95% interval, ``estimate`` the dot, ``marks`` borders and 0 with their labels.
    """

    region: tuple[float, float]
    matters: tuple[float, float] | None
    interval: tuple[float, float]
    estimate: float
    marks: list[tuple[float, str]]


def strip(part: dict[str, Any]) -> Strip | None:
    """The strip of a part of the ledger; None where it has no interval."""
    if part["interval"] is None or part["value"] is None:
        return None
    low, high = part["region"]
    borders = [value for value in (low, high) if value is not None]
    matters = part["matters"] or 0.0
    points = [*part["interval"], part["value"], *borders]
    points += [-matters, matters] if matters and max(map(abs, points)) < 20 * matters else []
    start, stop = min(points), max(points)
    margin = _MARGIN * ((stop - start) or abs(start) or 1.0)
    # Room on the open side of the region, so that it can be seen.
    start -= margin if low is not None or not borders else 3 * margin
    stop += margin if high is not None or not borders else 3 * margin

    def at(value: float) -> float:
        return WIDTH * min(max((value - start) / (stop - start), 0.0), 1.0)

    def span(a: float, b: float) -> tuple[float, float]:
        return at(a), at(b) - at(a)

    marks = [(at(value), f"{value:g}") for value in borders]
    if start < 0 < stop and 0 not in borders:
        marks.append((at(0.0), "0"))
    return Strip(
        span(start if low is None else low, stop if high is None else high),
        span(-matters, matters) if matters else None,
        span(*part["interval"]),
        at(part["value"]),
        _apart(marks),
    )


def _apart(marks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Labels that would touch are dropped; a criterion's borders come first and stay."""
    kept: list[tuple[float, str]] = []
    for place, label in marks:
        if all(abs(place - other) > 26 for other, _ in kept):
            kept.append((place, label))
    return kept
