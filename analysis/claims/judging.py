"""How a claim is decided: a list of parts, each with an interval and a verdict of its own.

A part is one inequality about one number per seed. Its 95% interval is compared with the region
that the criterion asks for, and four things can come out:

- *holds*: the whole interval lies in the region;
- *below what matters*: the part asserts an effect, and the whole interval lies within the smallest
  effect that matters, on either side of 0;
- *refuted*: the whole interval lies outside of the region;
- *open*: anything else, fewer seeds than were planned among it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.quantities.stats import (
    Interval,
    interval,
    mean_below,
    median_below,
    median_interval,
)

HOLDS = "holds"
REFUTED = "refuted"
BELOW = "below what matters"
OPEN = "open"
# Of claims alone: some groups of parts hold and others do not.
PARTLY = "partly"
UNJUDGED = "not judged"
# An identity, which no number of seeds would make truer.
TESTED = "decided by tests"
_ANSWERS = {HOLDS: "yes", BELOW: "less than matters", REFUTED: "no", OPEN: "open"}


@dataclass(frozen=True)
class Part:
    """One inequality, over one value per seed.

    ``name`` says in plain words what is estimated, with its unit. ``group`` is what the claim's
    line calls it by (an optimizer, a quantity, a side of a sweep); parts of one group are judged
    together, and parts without a group belong to every group. ``ours`` marks a test that is
    stricter than the paper's statement: it has a group of its own, and the claim's verdict leaves
    it out. ``matters`` is the smallest effect that matters, for parts that assert an effect.
    ``robust`` values are judged by their median and order statistics, where single seeds jump.
    """

    name: str
    values: Sequence[float]
    low: float = -np.inf
    high: float = np.inf
    group: str | None = None
    ours: bool = False
    matters: float | None = None
    robust: bool = False

    @property
    def interval(self) -> Interval:
        """Mean (or median) over seeds with its 95% interval."""
        return median_interval(self.values) if self.robust else interval(self.values)

    def verdict(self, planned: int) -> str:
        """One of the module's first four words; ``planned`` seeds are needed."""
        seen = self.interval
        if seen.n < planned or not np.isfinite([seen.low, seen.mean, seen.high]).all():
            return OPEN
        if self.matters is not None and -self.matters < seen.low and seen.high < self.matters:
            return BELOW
        if self.low <= seen.low and seen.high <= self.high:
            return HOLDS
        return REFUTED if seen.high < self.low or seen.low > self.high else OPEN

    @property
    def p_value(self) -> float:
        """How likely values so far inside the region are if the truth lies on its border.

        One-sided, by Student's t, or for ``robust`` parts by the sign test. Of a region with two
        borders the larger of the two (Schuirmann's two one-sided tests).
        """
        below = median_below if self.robust else mean_below
        values = np.asarray(self.values, dtype=float)
        sides = []
        if np.isfinite(self.low):
            sides.append(below(-values, -self.low))
        if np.isfinite(self.high):
            sides.append(below(values, self.high))
        return max(sides)

    @property
    def required(self) -> str:
        """The region in words that fit on a line: ``at least 0.05``."""
        if not np.isfinite(self.high):
            return f"at least {self.low:g}"
        if not np.isfinite(self.low):
            return f"at most {self.high:g}"
        return f"within {self.low:g} and {self.high:g}"


def at_least(name: str, values, threshold: float, group: str | None = None, **more) -> Part:
    """``values`` must not fall below ``threshold``; ``more`` as in ``Part``."""
    return Part(name, list(map(float, values)), low=threshold, group=group, **more)


def at_most(name: str, values, threshold: float, group: str | None = None, **more) -> Part:
    """``values`` must not exceed ``threshold``; ``more`` as in ``Part``."""
    return Part(name, list(map(float, values)), high=threshold, group=group, **more)


def within(name: str, values, low: float, high: float, group: str | None = None, **more) -> Part:
    """``values`` must lie in [low, high]; ``more`` as in ``Part``."""
    return Part(name, list(map(float, values)), low, high, group, **more)


@dataclass(frozen=True)
class Judgement:
    """What came out for one claim; the first part is the one that is quoted.

    ``contrast``: parts that must hold for a claim of absence (no worse, no gain, constant) to mean
    anything. A contrast without a group concerns all groups, one with a group that group alone.
    ``gates``: claims that must hold first, with their verdicts.
    """

    parts: list[Part]
    planned: int
    note: str = ""
    gates: dict[str, str] = field(default_factory=dict)
    contrast: list[Part] = field(default_factory=list)

    def part_verdict(self, part: Part) -> str:
        """The part's own verdict; open where a gate or a contrast that it needs does not hold."""
        own = part.verdict(self.planned)
        return OPEN if own != OPEN and self.missing(part) else own

    def missing(self, part: Part) -> str:
        """What a part lacks to be judged, beside seeds; empty where nothing is missing."""
        for gate, verdict in self.gates.items():
            if verdict != HOLDS:
                return f"{gate} must hold first, and it is {verdict}"
        for needed in self.contrast:
            concerned = needed.group is None or needed.group == part.group
            if concerned and needed.verdict(self.planned) != HOLDS:
                return f"the contrast does not hold: {needed.name}"
        return ""

    @property
    def groups(self) -> dict[str, str]:
        """The verdict of each group of parts, in the order of the parts.

        A group holds if all its parts hold, is refuted if one is, and else below what matters if
        one is. A claim without groups has one, named by the empty string.
        """
        named = list(dict.fromkeys(part.group for part in self.parts if part.group)) or [""]
        return {group: self._together(group) for group in named}

    def _together(self, group: str) -> str:
        found = [self.part_verdict(p) for p in self.parts if p.group in (None, group)]
        return next((word for word in (REFUTED, BELOW, OPEN) if word in found), HOLDS)

    @property
    def verdict(self) -> str:
        """One word for the paper's statement: that of its groups, or *partly* where they differ.

        Open groups do not hide what others decide: the line names them. A claim of which only a
        stricter test of ours was judged is open.
        """
        if not self.parts:
            return UNJUDGED
        words = set(self._groups(ours=False).values()) or {OPEN}
        if len(words) == 1:
            return words.pop()
        return PARTLY if HOLDS in words else OPEN if OPEN in words else REFUTED

    @property
    def line(self) -> str:
        """The claim's line: one plain sentence for each word, ``Muon: yes. Adam: open.``

        Tests that are stricter than the paper's statement come after it, and are called so.
        """
        if not self.parts:
            return "Not judged."
        said = [s[0].upper() + s[1:] for s in _said(self._groups(ours=False))]
        own = "; ".join(sentence[:-1] for sentence in _said(self._groups(ours=True)))
        return " ".join([*said, f"Beyond the paper: {own}."] if own else said)

    def _groups(self, ours: bool) -> dict[str, str]:
        own = {part.group or "" for part in self.parts if part.ours}
        return {group: word for group, word in self.groups.items() if (group in own) == ours}


def _said(groups: dict[str, str]) -> list[str]:
    """A sentence for each verdict that some of these groups have."""
    sentences = []
    for word, answer in _ANSWERS.items():
        named = ", ".join(group for group, verdict in groups.items() if verdict == word)
        if named:
            sentences.append(f"{named}: {answer}.")
        elif word in groups.values():
            sentences.append(f"{answer}.")
    return sentences


def judgement(
    criterion: dict, parts: list[Part], note: str = "", contrast: Sequence[Part] = ()
) -> Judgement:
    """A ``Judgement`` with the number of seeds that the criterion plans."""
    return Judgement(parts, planned_seeds(criterion), note, contrast=list(contrast))


def planned_seeds(criterion: dict) -> int:
    """Seeds below which every part is open: ``planned``, or the ``minimum`` of older entries."""
    seeds = criterion["seeds"]
    return seeds.get("planned", seeds.get("minimum"))


def reads(*vectors: str, gradients: float = 0.0):
    """Declare what a judge reads that publishing would drop.

    The vectors of these tensors, of as many seeds as its criterion asks for, and norms of
    gradients in this first share of the steps.
    """

    def declared(judge):
        judge.vectors, judge.gradients = vectors, gradients
        return judge

    return declared
