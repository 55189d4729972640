"""How a claim is decided: components with intervals against thresholds set beforehand.

A component holds if its whole 95% interval lies on the right side of the threshold, fails if
all of it lies on the wrong side, and is open otherwise. Below the criterion's number of seeds
everything is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.quantities.stats import Interval, interval, median_interval

REPRODUCED = "reproduced"
PARTLY = "partly reproduced"
NOT = "not reproduced"
OPEN = "inconclusive"
UNJUDGED = "not judged"
# An identity, which no number of seeds would make truer.
TESTED = "decided by tests"


@dataclass(frozen=True)
class Component:
    """One inequality, over one value per seed.

    ``part`` names the part of the range that it speaks of (small S, large S); components
    without one belong to every part. An effect that only shows in one part is reported so.
    ``heavy_tailed`` values are judged by their median and order statistics.
    """

    name: str
    values: Sequence[float]
    threshold: float
    at_least: bool
    part: str | None = None
    heavy_tailed: bool = False

    @property
    def interval(self) -> Interval:
        """Mean (or median) over seeds with its 95% interval."""
        return median_interval(self.values) if self.heavy_tailed else interval(self.values)

    def holds(self, minimum: int) -> bool | None:
        """True, False, or None where it is open."""
        found = self.interval
        if found.n < minimum or not np.isfinite(found.mean):
            return None
        if self.at_least:
            low, high = found.low >= self.threshold, found.high < self.threshold
        else:
            low, high = found.high <= self.threshold, found.low > self.threshold
        return True if low else False if high else None


def at_least(
    name: str, values, threshold: float, part: str | None = None, heavy_tailed: bool = False
) -> Component:
    """``values`` must not fall below ``threshold``."""
    return Component(name, list(map(float, values)), threshold, True, part, heavy_tailed)


def at_most(
    name: str, values, threshold: float, part: str | None = None, heavy_tailed: bool = False
) -> Component:
    """``values`` must not exceed ``threshold``."""
    return Component(name, list(map(float, values)), threshold, False, part, heavy_tailed)


def within(name: str, values, low: float, high: float, part: str | None = None):
    """``values`` must lie in [low, high]: two components."""
    return [at_least(name, values, low, part), at_most(name, values, high, part)]


@dataclass(frozen=True)
class Judgement:
    """What came out for one claim; the first component is the one that is quoted.

    ``contrast``: what must hold for a claim of absence (no worse, no gain, constant) to mean
    anything. Where it does not hold, the claim is open whatever its components say.
    """

    components: list[Component]
    minimum: int
    note: str = ""
    gates: dict[str, str] = field(default_factory=dict)
    contrast: list[Component] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """One of the module's five words."""
        if not self.components:
            return UNJUDGED
        if any(gate == NOT for gate in self.gates.values()):
            return UNJUDGED
        parts = list(dict.fromkeys(c.part for c in self.components if c.part)) or [None]
        results = [self._part(part) for part in parts]
        if any(gate != REPRODUCED for gate in self.gates.values()):
            return OPEN
        if any(component.holds(self.minimum) is not True for component in self.contrast):
            return OPEN
        if all(result is True for result in results):
            return REPRODUCED
        if all(result is False for result in results):
            return NOT
        if any(result is True for result in results) and any(r is False for r in results):
            return PARTLY
        return OPEN

    def _part(self, part: str | None) -> bool | None:
        held = [c.holds(self.minimum) for c in self.components if c.part in (None, part)]
        if any(result is False for result in held):
            return False
        return True if all(result is True for result in held) else None


def judgement(
    criterion: dict,
    components: list[Component],
    note: str = "",
    contrast: Sequence[Component] = (),
) -> Judgement:
    """A ``Judgement`` with the number of seeds that the criterion asks for."""
    return Judgement(components, criterion["seeds"]["minimum"], note, contrast=list(contrast))


def reads(*vectors: str, gradients: float = 0.0):
    """Declare what a judge reads that publishing would drop.

    The vectors of these tensors, of as many seeds as its criterion asks for, and norms of
    gradients in this first share of the steps.
    """

    def declared(judge):
        judge.vectors, judge.gradients = vectors, gradients
        return judge

    return declared
