"""Judging functions of L1 to L6: the long run and downstream evaluation (section 5.2).

Everything is paired by seed. Scores are averages over the tasks that count, in points; losses are
negated, so that what is better is higher. What is said of the loss is ours: the paper's table has
scores alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, judgement
from analysis.quantities.long_run import (
    HALVES,
    OPTIMIZERS,
    WITHOUT,
    at_minimum,
    average,
    counted,
    gains,
    losses,
    while_constant,
)
from analysis.tables.results import Tables


@dataclass(frozen=True)
class _Measure:
    """By seed: means at the minimum LR and in the constant stage; what of them matters."""

    name: str
    late: pd.DataFrame
    early: pd.DataFrame
    matters: float
    ours: bool


def _measures(tables: Tables, criterion: dict) -> Iterator[_Measure]:
    """The average score, and the loss."""
    limits = criterion["thresholds"]
    score, loss = average(tables, limits), -losses(tables)
    sizes = criterion["smallest_effect"], limits["loss_matters"]
    for name, table, size in zip(("score", "loss"), (score, loss), sizes, strict=True):
        late, early = (of(tables, table) for of in (at_minimum, while_constant))
        yield _Measure(name, late, early, size, name == "loss")


def l1(tables: Tables, criterion: dict) -> Judgement:
    """What multipliers gain with Adam."""
    return _gain(tables, criterion, "Adam")


def l2(tables: Tables, criterion: dict) -> Judgement:
    """What multipliers gain with Muon."""
    return _gain(tables, criterion, "Muon")


def _gain(tables: Tables, criterion: dict, name: str) -> Judgement:
    limit = criterion["thresholds"]["gain"]
    parts = [
        at_least(f"{one.name}: gain with {name}", gains(one.late)[name], limit, one.name,
                 ours=one.ours, matters=one.matters)
        for one in _measures(tables, criterion)
    ]  # fmt: skip
    return judgement(criterion, parts, _note(tables, criterion))


def l3(tables: Tables, criterion: dict) -> Judgement:
    """Each optimizer gains at least half of what the other gains."""
    parts: list[Part] = []
    for one in _measures(tables, criterion):
        gain = gains(one.late)
        compared = {f"gain with {name}": gain[name] for name in OPTIMIZERS.values()}
        parts += _alike(one, compared, criterion)
    return judgement(criterion, parts, _note(tables, criterion))


def l4(tables: Tables, criterion: dict) -> Judgement:
    """The gain on tasks of reasoning: that it is one, and more than that on tasks of knowledge."""
    limits, parts = criterion["thresholds"], []
    knowledge, reasoning = (
        gains(at_minimum(tables, average(tables, limits, half, limits["fewest"])))
        for half in HALVES
    )
    for name in OPTIMIZERS.values():
        more = reasoning[name] - knowledge[name]
        parts += [
            at_least(f"{name}: gain on reasoning{than}", gain, limits["gain"], name,
                     matters=criterion["smallest_effect"])
            for than, gain in ((" − on knowledge", more), (" by itself", reasoning[name]))
        ]  # fmt: skip
    return judgement(criterion, parts, _note(tables, criterion))


def l5(tables: Tables, criterion: dict) -> Judgement:
    """The gap at the minimum LR against that in the constant stage."""
    limits = criterion["thresholds"]
    zero = limits["gain"]
    parts: list[Part] = []
    contrast: list[Part] = []
    for one in _measures(tables, criterion):
        late, early = gains(one.late), gains(one.early)
        for name in OPTIMIZERS.values():
            called = f"{one.name}, {name}"
            stays, grows = f"{called}, is kept", f"{called}, grows"
            rest = late[name] - limits["kept"] * early[name]
            growth = late[name] - early[name]
            parts += [
                at_least(f"{called}: gap at the end − half of that before the decay", rest, zero,
                         stays, ours=one.ours),
                at_least(f"{called}: gap at the end − that before the decay", growth, zero, grows,
                         ours=one.ours, matters=one.matters),
                at_least(f"{grows}: gap at the end", late[name], zero, grows,
                         ours=one.ours, matters=one.matters),
            ]  # fmt: skip
            contrast.append(
                at_least(f"{stays}: gap before the decay", early[name], zero, stays,
                         matters=one.matters)
            )  # fmt: skip
    return judgement(criterion, parts, _note(tables, criterion), contrast)


def l6(tables: Tables, criterion: dict) -> Judgement:
    """What multipliers gain against what Muon gains over Adam, each at least half of the other."""
    parts: list[Part] = []
    for one in _measures(tables, criterion):
        gain = gains(one.late)[list(OPTIMIZERS.values())].mean(axis=1, skipna=False)
        switch = one.late["Muon", WITHOUT] - one.late["Adam", WITHOUT]
        compared = {"gain of multipliers": gain, "gain of Muon over Adam": switch}
        parts += _alike(one, compared, criterion)
    return judgement(criterion, parts, _note(tables, criterion))


def _alike(one: _Measure, compared: dict[str, pd.Series], criterion: dict) -> Iterator[Part]:
    """The parts that two gains are alike: both are gains, each at least half of the other.

    A loss in place of a gain refutes them, whatever the other is.
    """
    limits = criterion["thresholds"]
    zero = limits["gain"]
    for (name, gain), (other, than) in (list(compared.items()), list(compared.items())[::-1]):
        rest = gain - limits["share"] * than
        yield at_least(f"{one.name}: {name} − half of the {other}", rest, zero, one.name,
                       ours=one.ours)  # fmt: skip
        yield at_least(f"{one.name}: {name}", gain, zero, one.name, ours=one.ours,
                       matters=one.matters)  # fmt: skip


def _note(tables: Tables, criterion: dict) -> str:
    """Which tasks count."""
    names = counted(tables, criterion["thresholds"])
    return f"tasks that count: {', '.join(names)}" if names else "no task counts"
