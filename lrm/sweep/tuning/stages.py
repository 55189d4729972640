"""What to try next: the search of one arm, as a generator that asks for losses.

It yields lists of trials and is sent their losses. It knows neither runs nor files, so that a
search that was stopped is repeated from the log of its trials.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lrm.plan.search import Search, Stage
from lrm.sweep.tuning.points import Point

Change = tuple[str, float]  # a group and the factor on it
# Steps from the scale's base LR at which a sweep gives up: there is nothing to find in a model that
# diverges at any LR.
_FARTHEST = 30


@dataclass(frozen=True)
class Trial:
    """A point with a seed: in full, or at the length of its stage, else at the search's."""

    point: Point
    seed: int
    full: bool = False
    length: float | None = None


@dataclass(frozen=True)
class Decision:
    """What a stage ended with, and what there is to say of it."""

    stage: str
    point: Point
    notes: tuple[str, ...]


# Losses of trials that diverged or were stopped are infinite.
Losses = Mapping[Trial, float]
Asking = Generator[list[Trial], Losses, None]


class ArmSearch:
    """The search of one arm. ``decisions`` grows with every stage that ends."""

    def __init__(self, search: Search, stages: Mapping[str, Stage], arm: str):
        self._search, self._stages, self._arm = search, stages, arm
        self.losses: dict[Trial, float] = {}
        self.decisions: list[Decision] = []
        # What the trials in hand are compared with.
        self.incumbent: Point | None = None
        # Steps from the base LR that is best in full runs to that which is best in short ones, by
        # the first stage.
        self._shift = 0
        # Differences that were paired by seed, of which a change was judged.
        self._paired: list[list[float]] = []
        # Of the short runs of this stage, where it has its own.
        self._length: float | None = None
        # That of paired differences of its short runs, where the search says it.
        self._spread: float | None = None
        self._notes: list[str] = []

    def run(self) -> Asking:
        """Ask for trials, stage by stage, until all stages have ended."""
        point = Point()
        for name, stage in self._stages.items():
            self._notes, self._length = [], stage.length
            self._spread = self._search.short_spread_of(self._arm, name)
            if stage.tune is None:
                point = yield from self._first(point)
            else:
                point = yield from self._tuned(stage, point)
            self.decisions.append(Decision(name, point, tuple(self._notes)))

    # What may be asked for.

    def _ask(self, trials: Iterable[Trial]) -> Asking:
        new = [trial for trial in dict.fromkeys(trials) if trial not in self.losses]
        if new:
            self.losses.update((yield new))

    def _allowed(self, trials: Sequence[Trial]) -> bool:
        """Whether the budget allows these; once it does not, the stage ends with what it has."""
        new = sum(trial not in self.losses for trial in dict.fromkeys(trials))
        most = self._search.trials
        if most is None or len(self.losses) + new <= most:
            return True
        if (note := f"the budget of {most} trials ended this stage") not in self._notes:
            self._notes.append(note)
        return False

    def _trial(self, point: Point, seed: int, full: bool = False) -> Trial:
        return Trial(point, seed, full, None if full else self._length)

    def _mean(self, point: Point, seeds: Sequence[int], full: bool) -> float:
        return statistics.fmean(self.losses[self._trial(point, seed, full)] for seed in seeds)

    # The base LR.

    def _first(self, point: Point) -> Generator[list[Trial], Losses, Point]:
        """Sweep the base LR in short runs, then settle it in full ones."""
        search = self._search
        self.incumbent = None
        seed = search.seeds[0]
        tried = list(range(-search.reach, search.reach + 1))
        yield from self._ask(self._trial(point.at(lr), seed) for lr in tried)
        while True:
            best = min(tried, key=lambda lr: self.losses[self._trial(point.at(lr), seed)])
            if best not in (tried[0], tried[-1]) or abs(best) >= _FARTHEST:
                break
            further = best + (1 if best == tried[-1] else -1)
            if not self._allowed([self._trial(point.at(further), seed)]):
                break
            yield from self._ask([self._trial(point.at(further), seed)])
            tried = sorted([*tried, further])
        short = yield from self._settled(point.at(best), search.seeds, full=False)
        whole = yield from self._settled(short, search.confirm_seeds, full=True)
        self._shift = short.lr - whole.lr if search.short_lr else 0
        return whole

    def _settled(
        self, point: Point, seeds: Sequence[int], full: bool
    ) -> Generator[list[Trial], Losses, Point]:
        """The best base LR near ``point``: no neighbour on the grid has a lower mean loss.

        A neighbour that is no better with the first seed is not tried with others, unless ``point``
        diverges with one of them. Where neither neighbour finishes, it goes on a step lower.
        """
        first, *others = seeds
        while True:
            near = [point.at(point.lr - 1), point.at(point.lr + 1)]
            trials = [self._trial(point, seed, full) for seed in seeds]
            trials += [self._trial(each, first, full) for each in near]
            if not self._allowed(trials):
                return point
            yield from self._ask(trials)
            by_seed = [self.losses[self._trial(point, seed, full)] for seed in seeds]
            # Where it diverges with a seed, any neighbour that does not with the first is better.
            finite = all(map(math.isfinite, by_seed))
            base = by_seed[0] if finite else math.inf
            hopeful = [each for each in near if self.losses[self._trial(each, first, full)] < base]
            trials = [self._trial(each, seed, full) for each in hopeful for seed in others]
            if not self._allowed(trials):
                return point
            yield from self._ask(trials)
            best = min([point, *hopeful], key=lambda each: self._mean(each, seeds, full))
            if best == point:
                if finite or point.lr <= -_FARTHEST:
                    return point
                best = near[0]
            point = best

    # Factors of groups.

    def _tuned(self, stage: Stage, before: Point) -> Generator[list[Trial], Losses, Point]:
        """Change groups as long as that gains, then compare with ``before`` in full runs."""
        if not stage.groups:
            self._notes.append("this tier has nothing to try")
            return before
        short = before.at(before.lr + self._shift)
        if self._search.short_lr:
            self.incumbent = None  # lower rates trail early, as in the first stage
            short = yield from self._settled(short, self._search.seeds, full=False)
        shift = short.lr - before.lr
        found, single = yield from self._changed(stage, short)
        if found == short:
            self._notes.append("this tier added nothing")
            return before
        # Many changes at once are many chances that one of them was noise, and takes all down.
        alone = [single] if self._search.retry and single != found else []
        for each in (found, *alone):
            whole = each.at(each.lr - shift)
            if (confirmed := (yield from self._confirmed(before, whole))) is not None:
                return confirmed
        return before

    def _confirmed(
        self, before: Point, found: Point
    ) -> Generator[list[Trial], Losses, Point | None]:
        """``found`` with its base LR settled, where it gains on ``before`` in full runs."""
        seeds = self._search.confirm_seeds
        self.incumbent = before
        whole = [self._trial(point, seed, full=True) for point in (before, found) for seed in seeds]
        if not self._allowed(whole):
            return None
        yield from self._ask(whole)
        self.incumbent = None  # a lower rate trails early
        found = yield from self._settled(found, seeds, full=True)
        gains = self._gains(before, found, seeds, full=True)
        self._paired.append(gains)
        if self._is_gain(gains):
            return found
        new = ", ".join(text for text in found.said if text not in before.said)
        self._notes.append(
            f"{new} gained {_mean_gain(gains):+.4f} in full runs, which is within the errors"
        )
        return None

    def _is_gain(self, gains: Sequence[float]) -> bool:
        """Whether full runs bear it."""
        search = self._search
        pooled = _pooled(self._paired) if search.pooled else 0.0
        return _exceeds(gains, search.errors, pooled, search.spread)

    def _changed(
        self, stage: Stage, before: Point
    ) -> Generator[list[Trial], Losses, tuple[Point, Point]]:
        """Rounds of changes of one group each, and of those together that gain.

        Second: the point with that change alone which gained most in the first round.
        """
        search = self._search
        changes = [(group, factor) for group in stage.groups
                   for factor in stage.changes.get(group, search.factors)]  # fmt: skip
        point = alone = before
        for _ in range(search.rounds):
            kept = yield from self._kept(stage, point, changes)
            if kept is None:
                break
            if point == before:
                alone = kept[2]
            point, changes, _ = kept
        return point, alone

    def _kept(
        self, stage: Stage, point: Point, changes: Sequence[Change]
    ) -> Generator[list[Trial], Losses, tuple[Point, list[Change], Point] | None]:
        """The point with the changes that gain, these, and the point with the best of them alone.

        None if no change gains.
        """
        seeds = self._search.seeds
        self.incumbent = point
        first, *others = seeds
        points = {change: point.times(stage.tune, *change) for change in changes}
        trials = [self._trial(each, first) for each in (point, *points.values())]
        if not self._allowed(trials):
            return None
        yield from self._ask(trials)
        # One that is no better with the first seed is not tried with others.
        base = self.losses[self._trial(point, first)]
        hopeful = {c: p for c, p in points.items() if self.losses[self._trial(p, first)] < base}
        trials = [self._trial(each, seed) for each in (point, *hopeful.values()) for seed in others]
        if not hopeful or not self._allowed(trials):
            return None
        yield from self._ask(trials)
        gains = {c: self._gains(point, p, seeds) for c, p in hopeful.items()}
        self._paired += gains.values()
        spread = _pooled(gains.values())
        gaining = {c: g for c, g in gains.items() if self._exceeds_in_short(g, spread)}
        # Of each group the better change.
        best: dict[str, Change] = {}
        for change in sorted(gaining, key=lambda c: _mean_gain(gaining[c])):
            best[change[0]] = change
        if not best:
            return None
        single = max(best.values(), key=lambda c: _mean_gain(gaining[c]))
        alone = hopeful[single]
        if len(best) == 1:
            return alone, [single], alone
        together = point
        for change in best.values():
            together = together.times(stage.tune, *change)
        trials = [self._trial(together, seed) for seed in seeds]
        if self._allowed(trials):
            yield from self._ask(trials)
            gain = self._gains(point, together, seeds)
            more = _mean_gain(gain) > _mean_gain(gaining[single])
            if more and self._exceeds_in_short(gain, spread):
                return together, list(best.values()), alone
        return alone, [single], alone

    def _exceeds_in_short(self, gains: Sequence[float], spread: float) -> bool:
        """Whether short runs bear it; ``spread`` is that of its round."""
        return _exceeds(gains, self._search.errors, spread, self._spread)

    def _gains(
        self, before: Point, after: Point, seeds: Sequence[int], full: bool = False
    ) -> list[float]:
        """Loss before less loss after, seed by seed; −inf where the latter did not finish."""
        pairs = [
            [self.losses[self._trial(point, seed, full)] for point in (before, after)]
            for seed in seeds
        ]
        return [old - new if math.isfinite(new) else -math.inf for old, new in pairs]


def _mean_gain(gains: Sequence[float]) -> float:
    """The mean; −inf where a trial did not finish, whatever it is compared with."""
    return -math.inf if -math.inf in gains else statistics.fmean(gains)


def _exceeds(
    gains: Sequence[float], errors: float, spread: float, known: float | None = None
) -> bool:
    """Whether the mean gain is above so many standard errors.

    ``spread`` is the standard deviation of such differences elsewhere. Two seeds say little of
    their own, so that the larger of both counts, unless it is ``known``.
    """
    mean = _mean_gain(gains)
    if not math.isfinite(mean):
        return mean > 0
    one = max(statistics.stdev(gains), spread) if known is None else known
    return mean > errors * one / math.sqrt(len(gains))


def _pooled(gains: Iterable[Sequence[float]]) -> float:
    """Root mean square of the standard deviations of finite differences."""
    variances = [statistics.variance(g) for g in gains if all(map(math.isfinite, g))]
    return math.sqrt(statistics.fmean(variances)) if variances else 0.0
