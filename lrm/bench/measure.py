"""The measurements: short trials, then pairs in turn; parts, memory and whole runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lrm.bench import machine
from lrm.bench.crew import Crew
from lrm.bench.plan import Bench, Candidate, Row, combinations
from lrm.bench.statistics import median
from lrm.errors import UserError

# Steps before any is measured; both sides of a row have then seen the same batches.
WARM_UP = 3


class Session:
    """One run of the benchmark, which fills ``record`` and ``machine``."""

    def __init__(
        self, bench: Bench, corpora: str, pairs: int, seconds: float, say: Callable[[str], None]
    ):
        self.bench, self.corpora, self.pairs, self.seconds = bench, corpora, pairs, seconds
        self.say = say
        self.order = random.Random(0)
        self.chosen: dict[tuple[str, str], dict[str, Any]] = {}
        self.machine = machine.describe()
        self.record: dict[str, list] = {
            name: [] for name in ("rows", "parts", "memory", "whole", "left_out")
        }

    def run(self, store: Callable[[], None]) -> None:
        """Everything that the plan asks for; ``store`` is called after each measurement."""
        rows = self.bench.rows
        for row in rows.rows:
            for configuration in row.at:
                if self._known(row.name, (row.of, row.against), configuration):
                    self.say(f"{row.name}, {configuration}")
                    self._row(row, configuration)
                    store()
        for name, singles, action in (
            ("parts", rows.parts, self._parts),
            ("memory", rows.memory, self._memory),
            ("whole", rows.whole, self._whole),
        ):
            for single in singles:
                if self._known(name, (single.of,), single.at):
                    self.say(f"{name}: {single.of}, {single.at}")
                    try:
                        action(single)
                    except UserError as error:
                        self._leave_out(name, single.of, str(error))
                    store()

    @contextmanager
    def _crew(self, cores: int) -> Iterator[Crew]:
        with Crew(cores, self.corpora) as crew:
            if "torch" not in self.machine:
                self.machine |= crew.alone("environment")
            yield crew

    def _known(self, row: str, variants: tuple[str, ...], configuration: str) -> bool:
        for variant in variants:
            try:
                self.bench.candidate(variant, configuration)
            except UserError as error:
                self._leave_out(row, variant, str(error))
                return False
        return True

    def _leave_out(self, row: str, variant: str, reason: str) -> None:
        found = {"row": row, "variant": variant, "reason": reason}
        if found not in self.record["left_out"]:
            self.record["left_out"].append(found)
            self.say(f"  left out: {variant} ({reason})")

    def _row(self, row: Row, configuration: str) -> None:
        loads = [machine.load()]
        with ExitStack() as stack:
            names = (row.of, row.against)
            crews = [stack.enter_context(self._crew(self.bench.cores)) for _ in names]
            chosen, sides = [], []
            for crew, name in zip(crews, names, strict=True):
                try:
                    chosen.append(self._choose(crew, row, name, configuration))
                    sides.append(self._begin(crew, *chosen[-1]))
                except UserError as error:
                    self._leave_out(row.name, name, str(error))
                    return
            every = max((c.run.settings.probes.every for c, _ in chosen if c.probes), default=1)
            for side in sides:
                count = max(1, round(self.seconds / side["step"]))
                side["steps_per_measurement"] = -(-count // every) * every
            for pair in range(self.pairs):
                # Who comes first is drawn, so that neither always follows the other.
                for k in self.order.sample(range(2), 2):
                    found = crews[k].steps(sides[k]["steps_per_measurement"])
                    for name in ("rate", "busy"):
                        sides[k][f"{name}s"].append(found[name])
                if (pair + 1) % 5 == 0 or pair + 1 == self.pairs:
                    self.say(f"  {pair + 1} of {self.pairs} pairs")
        ratios = [a / b for a, b in zip(sides[0]["rates"], sides[1]["rates"], strict=True)]
        for side in sides:
            side["tokens_per_second"] = median(side["rates"]).record()
            side["busy"] = median(side.pop("busys")).median
        loads.append(machine.load())
        self.record["rows"].append(
            {
                "row": row.name,
                "configuration": configuration,
                "tokens_per_step": chosen[0][0].tokens,
                "of": sides[0],
                "against": sides[1],
                "ratio": median(ratios).record(),
                "ratios": ratios,
                "load": loads,
            }
        )

    def _choose(
        self, crew: Crew, row: Row, variant: str, configuration: str
    ) -> tuple[Candidate, list[dict]]:
        """The best of short trials, stage by stage, and what they gave; or an earlier choice."""
        if (known := self.chosen.get((variant, configuration))) is not None:
            return self.bench.candidate(variant, configuration, known), []
        followed = self.bench.follows(variant)
        picks: dict[str, Any] = self.chosen.get((followed, configuration), {})
        trials: list[dict] = []
        for stage in self.bench.tries(variant):
            best = max((trial["rate"] for trial in trials), default=0.0)
            kept = picks
            for choice in combinations(stage):
                trial = {**picks, **choice}
                try:
                    candidate = self.bench.candidate(variant, configuration, trial)
                    if any(_same(candidate, done["candidate"]) for done in trials):
                        continue
                    rate = self._trial(crew, candidate, best)
                except UserError as error:
                    self._leave_out(row.name, variant, str(error))
                    continue
                trials.append({"candidate": candidate, "picks": trial, "rate": rate})
                said = ", ".join(f"{key.rpartition('.')[2]} {v}" for key, v in trial.items())
                self.say(f"  trial of {variant}: {said}: {rate:,.0f} tokens/s")
                if rate > best:
                    best, kept = rate, trial
            picks = kept
        self.chosen[variant, configuration] = picks
        record = [{"picks": trial["picks"], "rate": trial["rate"]} for trial in trials]
        return self.bench.candidate(variant, configuration, picks), record

    def _trial(self, crew: Crew, candidate: Candidate, best: float) -> float:
        """Tokens per second in short; one that is far behind is not given more time."""
        crew.build(candidate)
        found = crew.steps(1)
        if found["step"] < 1.0:  # what the first step makes once weighs little in long ones
            found = crew.steps(1)
        if found["rate"] < best / 1.5:
            return found["rate"]
        if found["step"] > self.seconds:
            return crew.steps(1)["rate"]
        count = max(1, round(self.seconds / 2 / found["step"]))
        return median([crew.steps(count)["rate"] for _ in range(3)]).median

    def _begin(self, crew: Crew, candidate: Candidate, trials: list[dict]) -> dict[str, Any]:
        """Build what was chosen, warm up; the record of this side of the row."""
        parameters = crew.build(candidate)
        crew.steps(WARM_UP - 1)
        found = crew.steps(1)
        return {
            **candidate.describe(),
            "processes": len(crew.active),
            "parameters": parameters,
            "trials": trials,
            "loss_after_warm_up": found["loss"],
            "step": found["step"],
            "rates": [],
            "busys": [],
        }

    def _parts(self, single) -> None:
        candidate = self.bench.candidate(single.of, single.at)
        with self._crew(1) as crew:
            crew.build(candidate)
            crew.steps(WARM_UP)
            step = crew.steps(1)["step"]
            count = min(20, max(1, round(self.seconds / step)))
            blocks = max(3, min(self.pairs, round(20 / step / count)))
            found = crew.alone("parts", count=count, blocks=blocks)
        keys = list(dict.fromkeys(tuple(part[:2]) for block in found["parts"] for part in block))
        seconds = {key: [] for key in keys}
        for block in found["parts"]:
            here = {tuple(part[:2]): part[2] for part in block}
            for key in keys:
                seconds[key].append(here.get(key, 0.0))
        parts = [
            {"part": key[0], "direction": key[1], "seconds": median(values).median}
            for key, values in seconds.items()
        ]
        plain, marked = median(found["plain"]), median(found["marked"])
        self.record["parts"].append(
            {
                **candidate.describe(),
                "configuration": single.at,
                "blocks": blocks,
                "steps_per_block": count,
                "step": plain.record(),
                "step_with_marks": marked.record(),
                "parts": parts,
                "accounted": sum(part["seconds"] for part in parts) / plain.median,
            }
        )

    def _memory(self, single) -> None:
        picks = self.chosen.get((single.of, single.at))
        if picks is None:
            stages = self.bench.tries(single.of)
            picks = {key: values[0] for stage in stages[:1] for key, values in stage.items()}
        candidate = self.bench.candidate(single.of, single.at, picks)
        with self._crew(1) as crew:
            found = crew.alone(
                "memory", candidate=candidate, seed=0, corpora=self.corpora, count=WARM_UP
            )
        self.record["memory"].append({**candidate.describe(), "configuration": single.at, **found})

    def _whole(self, single) -> None:
        length = (f"train.steps={single.steps}",)
        candidate = self.bench.candidate(single.of, single.at, changes=length)
        with self._crew(1) as crew:
            found = crew.alone("whole", candidate=candidate, corpora=self.corpora)
        self.record["whole"].append(
            {**candidate.describe(), "configuration": single.at, "steps": single.steps, **found}
        )


def _same(a: Candidate, b: Candidate) -> bool:
    return (a.run, a.attention) == (b.run, b.attention)
