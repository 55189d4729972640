"""Judging functions of L1 to L6: the long run and downstream evaluation (section 5.2).

Everything is paired by seed. Scores are averages over the tasks that count, in points; losses are
negated, so that what is better is higher. What is said of the loss is ours: the paper's table has
scores alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, judgement
from analysis.quantities.long_run import (
    HALVES,
    OPTIMIZERS,
    WITHOUT,
    at_minimum,
    average,
    base_lrs,
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
    limits = criterion["thresholds"]
    limit = limits["gain"]
    parts = [
        at_least(f"{one.name}: gain with {name}", gains(one.late)[name], limit, one.name,
                 ours=one.ours, matters=one.matters)
        for one in _measures(tables, criterion)
    ]  # fmt: skip
    for half in HALVES:
        late = at_minimum(tables, average(tables, limits, half))
        parts.append(at_least(f"{half}: gain with {name}", gains(late)[name], limit, half,
                              ours=True, matters=criterion["smallest_effect"]))  # fmt: skip
    return judgement(criterion, parts, _note(tables, criterion))


def l3(tables: Tables, criterion: dict) -> Judgement:
    """Each optimizer gains, and at least half of what the other gains."""
    parts: list[Part] = []
    contrast: list[Part] = []
    for one in _measures(tables, criterion):
        gain = gains(one.late)
        similar = f"{one.name}, similar"
        for optimizer, other in itertools.permutations(OPTIMIZERS.values()):
            own = (f"gain with {optimizer}", gain[optimizer])
            parts += [
                _is_gain(one, *own, f"{one.name}, {optimizer}", criterion),
                _half(one, *own, f"gain with {other}", gain[other], similar, criterion),
            ]
            contrast.append(_is_gain(one, *own, similar, criterion))
    return judgement(criterion, parts, _note(tables, criterion), contrast)


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
            stays, grows = f"{called}, half of it is kept", f"{called}, grows"
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
            # What was no gap is not kept, and does not grow.
            contrast += [
                at_least(f"{group}: gap before the decay", early[name], zero, group,
                         matters=one.matters)
                for group in (stays, grows)
            ]  # fmt: skip
    rates = [f"base LR of {arm}: {lr:g}" for arm, lr in base_lrs(tables).items()]
    return judgement(criterion, parts, "; ".join([_note(tables, criterion), *rates]), contrast)


def l6(tables: Tables, criterion: dict) -> Judgement:
    """What multipliers gain against what Muon gains over Adam, each at least half of the other.

    That Muon gains at least half of what multipliers gain is ours, and no part of the verdict: its
    arm without multipliers was tuned less than Adam's, which makes this part harder.
    """
    parts: list[Part] = []
    contrast: list[Part] = []
    for one in _measures(tables, criterion):
        gain = gains(one.late)[list(OPTIMIZERS.values())].mean(axis=1, skipna=False)
        switch = one.late["Muon", WITHOUT] - one.late["Adam", WITHOUT]
        own, other = ("gain of multipliers", gain), ("gain of Muon over Adam", switch)
        reach, behind = (
            f"{one.name}, at least half of Muon's",
            f"{one.name}, Muon's at least half of it",
        )
        parts += [
            _is_gain(one, *own, f"{one.name}, multipliers gain", criterion),
            _is_gain(one, *other, f"{one.name}, Muon gains", criterion),
            _half(one, *own, *other, reach, criterion),
            replace(_half(one, *other, *own, behind, criterion), ours=True),
        ]
        contrast += [_is_gain(one, *each, group, criterion)
                     for group in (reach, behind) for each in (own, other)]  # fmt: skip
    return judgement(criterion, parts, _note(tables, criterion), contrast)


def _is_gain(one: _Measure, name: str, gain: pd.Series, group: str, criterion: dict) -> Part:
    """The part that ``gain`` is one, and matters."""
    return at_least(f"{group}: {name}", gain, criterion["thresholds"]["gain"], group,
                    ours=one.ours, matters=one.matters)  # fmt: skip


def _half(
    one: _Measure,
    name: str,
    gain: pd.Series,
    other: str,
    than: pd.Series,
    group: str,
    criterion: dict,
) -> Part:
    """The part that ``gain`` is at least half of another; both have to be gains first."""
    limits = criterion["thresholds"]
    rest = gain - limits["share"] * than
    return at_least(f"{one.name}: {name} − half of the {other}", rest, limits["gain"], group,
                    ours=one.ours)  # fmt: skip


def _note(tables: Tables, criterion: dict) -> str:
    """Which tasks count."""
    names = counted(tables, criterion["thresholds"])
    return f"tasks that count: {', '.join(names)}" if names else "no task counts"
