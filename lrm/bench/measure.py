"""The measurements: short trials, then pairs in turn; parts, memory and whole runs."""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from lrm.bench.plan import Bench, Candidate, Rounds, Single, Whole
from lrm.bench.processes import Processes
from lrm.errors import UserError
from lrm.sweep.machine import available_cores

# Steps before any is measured; both sides of a row have then seen the same batches.
WARM_UP = 3


class Median(NamedTuple):
    """A median, and two order statistics around it, which assume no distribution.

    ``coverage`` is the probability that they enclose the true median; it is the least that
    reaches 95%, or what minimum and maximum give, which is less below six values.
    """

    median: float
    low: float
    high: float
    coverage: float


def median(values: Sequence[float], level: float = 0.95) -> Median:
    """The median of ``values``, which must not be empty, with its interval."""
    ordered, n = sorted(values), len(values)

    def coverage(rank: int) -> float:
        """P(the rank-th smallest <= median <= the rank-th largest) of n independent values."""
        return max(0.0, 1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n)

    rank = 1
    while rank < n // 2 and coverage(rank + 1) >= level:
        rank += 1
    return Median(statistics.median(ordered), ordered[rank - 1], ordered[n - rank], coverage(rank))


def load_average() -> list[float] | None:
    """Over 1, 5 and 15 minutes, where the system has it."""
    with suppress(OSError, AttributeError):
        return [round(value, 2) for value in os.getloadavg()]
    return None


class Session:
    """One run of the benchmark, which fills ``record`` and ``machine``."""

    def __init__(
        self, bench: Bench, corpora: Path, pairs: int, seconds: float, say: Callable[[str], None]
    ):
        self.bench, self.corpora, self.pairs, self.seconds = bench, corpora, pairs, seconds
        self.say = say
        self.order = random.Random(0)
        # Settings that the search has decided, of a variant on a configuration.
        self.chosen: dict[tuple[str, str], dict[str, Any]] = {}
        self.record: dict[str, list] = {
            name: [] for name in ("rows", "parts", "memory", "whole", "left_out")
        }
        with self._processes(1) as processes:
            [machine] = processes.call("machine")
        self.machine = {"cores": available_cores(), **machine}

    def run(self, store: Callable[[], None]) -> None:
        """Everything that the plan asks for; ``store`` is called after each measurement."""
        plan = self.bench.plan
        for contest in plan.contests:
            for configuration in contest.at:
                self.say(f"{contest.name}, {configuration}")
                self._contest(contest, configuration)
                store()
        for name, singles, measure in (
            ("parts", plan.parts, self._parts),
            ("memory", plan.memory, self._memory),
            ("whole", plan.whole, self._whole),
        ):
            for single in singles:
                self.say(f"{name}: {single.of}, {single.at}")
                try:
                    self.record[name].append(measure(single))
                except UserError as error:
                    self._leave_out(name, single.of, error)
                store()

    def _processes(self, count: int) -> Processes:
        return Processes(count, self.corpora)

    def _leave_out(self, row: str, variant: str, error: UserError) -> None:
        reason = {"row": row, "variant": variant, "reason": str(error)}
        if reason not in self.record["left_out"]:
            self.record["left_out"].append(reason)
            self.say(f"  left out: {variant} ({error})")

    def _contest(self, contest: Rounds, configuration: str) -> None:
        """Rows of the record, one for each variant and every one before it, of the same rounds."""
        variants, load = contest.variants, load_average()
        candidates, sides = [], []
        with ExitStack() as stack:
            try:
                for variant in variants:  # before processes start for one that is not known
                    self.bench.candidate(variant, configuration, overrides=contest.set)
                groups = [stack.enter_context(self._processes(self.bench.cores)) for _ in variants]
                for processes, variant in zip(groups, variants, strict=True):
                    candidate, trials = self._choose(processes, contest, variant, configuration)
                    candidates.append(candidate)
                    sides.append(self._begin(processes, candidate, trials))
            except UserError as error:
                self._leave_out(contest.name, variant, error)
                return
            # Whole intervals of probes.
            intervals = [c.run.settings.probes.every for c in candidates if c.probes]
            every = max(intervals, default=1)
            for side in sides:
                count = max(1, round(self.seconds / side["step"]))
                side["steps_per_measurement"] = -(-count // every) * every
            busy: list[list[float]] = [[] for _ in variants]
            for number in range(1, self.pairs + 1):
                # Who comes first is drawn, so that none always follows another.
                for k in self.order.sample(range(len(variants)), len(variants)):
                    measured = groups[k].steps(sides[k]["steps_per_measurement"])
                    sides[k]["rates"].append(measured["rate"])
                    busy[k].append(measured["busy"])
                if number % 5 == 0 or number == self.pairs:
                    self.say(f"  {number} of {self.pairs} pairs")
        for side, shares in zip(sides, busy, strict=True):
            side["tokens_per_second"] = median(side["rates"])._asdict()
            side["busy"] = statistics.median(shares)
        loads = [load, load_average()]
        for against, of in itertools.combinations(sides, 2):
            ratios = [a / b for a, b in zip(of["rates"], against["rates"], strict=True)]
            self.record["rows"].append(
                {
                    "row": contest.name,
                    "configuration": configuration,
                    "tokens_per_step": candidates[0].tokens,
                    "of": of,
                    "against": against,
                    "ratio": median(ratios)._asdict(),
                    "ratios": ratios,
                    "load": loads,
                }
            )

    def _choose(
        self, processes: Processes, contest: Rounds, variant: str, configuration: str
    ) -> tuple[Candidate, list[dict]]:
        """The best of short trials, stage by stage, with their record; or an earlier choice."""
        if (known := self.chosen.get((variant, configuration))) is not None:
            return self.bench.candidate(variant, configuration, known, contest.set), []
        described = self.bench.plan.variants[variant]
        if described.follows and (described.follows, configuration) not in self.chosen:
            raise UserError(
                f"{variant!r} takes over what was chosen for {described.follows!r} on "
                f"{configuration!r}; measure a row of that too (--only)"
            )
        chosen: dict[str, Any] = self.chosen.get((described.follows, configuration), {})
        trials, tried = [], []
        best = 0.0
        for stage in described.search:
            before = chosen
            for values in itertools.product(*stage.values()):
                choices = {**before, **dict(zip(stage, values, strict=True))}
                try:
                    candidate = self.bench.candidate(variant, configuration, choices, contest.set)
                    # A stage meets what the one before it has chosen.
                    if (candidate.run, candidate.attention) in tried:
                        continue
                    rate = self._trial(processes, candidate, best)
                except UserError as error:
                    self._leave_out(contest.name, variant, error)
                    continue
                tried.append((candidate.run, candidate.attention))
                trials.append({"picks": choices, "rate": rate})
                named = (f"{key.rpartition('.')[2]} {value}" for key, value in choices.items())
                self.say(f"  trial of {variant}: {', '.join(named)}: {rate:,.0f} tokens/s")
                if rate > best:
                    best, chosen = rate, choices
        self.chosen[variant, configuration] = chosen
        return self.bench.candidate(variant, configuration, chosen, contest.set), trials

    def _trial(self, processes: Processes, candidate: Candidate, best: float) -> float:
        """Tokens per second in short; one that is far behind is not given more time."""
        processes.build(candidate)
        measured = processes.steps(1)
        if measured["step"] < 1.0:  # what the first step makes once weighs little in long ones
            measured = processes.steps(1)
        if measured["rate"] < best / 1.5:
            return measured["rate"]
        if measured["step"] > self.seconds:
            return processes.steps(1)["rate"]
        count = max(1, round(self.seconds / 2 / measured["step"]))
        return statistics.median(processes.steps(count)["rate"] for _ in range(3))

    def _begin(
        self, processes: Processes, candidate: Candidate, trials: list[dict]
    ) -> dict[str, Any]:
        """Build what was chosen, warm up; the record of this side of the row."""
        parameters = processes.build(candidate)
        processes.steps(WARM_UP - 1)
        measured = processes.steps(1)
        return {
            **candidate.describe(),
            "processes": processes.active,
            "parameters": parameters,
            "trials": trials,
            "loss_after_warm_up": measured["loss"],
            "step": measured["step"],
            "rates": [],
        }

    def _parts(self, single: Single) -> dict[str, Any]:
        candidate = self.bench.candidate(single.of, single.at)
        if candidate.run.execution.compile != "never":
            raise UserError("compiled layers have no parts; set execution.compile: never")
        with self._processes(1) as processes:
            processes.build(candidate)
            processes.steps(WARM_UP)
            step = processes.steps(1)["step"]
            count = min(20, max(1, round(self.seconds / step)))
            blocks = max(3, min(self.pairs, round(20 / step / count)))
            [measured] = processes.call("parts", steps=count, blocks=blocks)
        timed = [{(part, way): t for part, way, t in block} for block in measured["parts"]]
        parts = [
            {
                "part": part,
                "direction": way,
                "seconds": statistics.median(block.get((part, way), 0.0) for block in timed),
            }
            for part, way in dict.fromkeys(itertools.chain.from_iterable(timed))
        ]
        plain = median(measured["plain"])
        return {
            **candidate.describe(),
            "configuration": single.at,
            "blocks": blocks,
            "steps_per_block": count,
            "step": plain._asdict(),
            "step_with_marks": median(measured["marked"])._asdict(),
            "parts": parts,
            "accounted": sum(part["seconds"] for part in parts) / plain.median,
        }

    def _memory(self, single: Single) -> dict[str, Any]:
        choices = self.chosen.get((single.of, single.at))
        if choices is None:
            first_stages = self.bench.plan.variants[single.of].search[:1]
            choices = {key: values[0] for stage in first_stages for key, values in stage.items()}
        candidate = self.bench.candidate(single.of, single.at, choices)
        return self._alone("memory", candidate, {"configuration": single.at}, count=WARM_UP)

    def _whole(self, single: Whole) -> dict[str, Any]:
        length = f"train.steps={single.steps}"
        candidate = self.bench.candidate(single.of, single.at, overrides=(length,))
        conditions = {"configuration": single.at, "steps": single.steps}
        return self._alone("whole", candidate, conditions)

    def _alone(
        self, method: str, candidate: Candidate, conditions: dict[str, Any], **arguments: Any
    ) -> dict[str, Any]:
        """The record of what ``method`` measures in a fresh process."""
        with self._processes(1) as processes:
            arguments |= {"candidate": candidate, "corpora": self.corpora}
            [measured] = processes.call(method, **arguments)
        return {**candidate.describe(), **conditions, **measured}
