"""Judging functions of the MLP sweep: M1 to M8 (section 3 and appendix B).

Norms and slopes are read at the end of the constant stage, losses after the decay. Every value is
one per seed; the parts of a claim are the optimizers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.claims.judging import Component, Judgement, at_least, at_most, reads, within
from analysis.quantities.mlp_scale import ARMS, BLOCKS, OPTIMIZERS, MlpSweep, by_frequency, growth
from analysis.quantities.stats import log_range
from analysis.quantities.sweep import excess, slopes
from analysis.tables.results import Tables

TOO_FEW = "too few S within reach of the multipliers"
Components = Callable[[MlpSweep, list[float], dict], list[Component]]


def _over_points(components: Components):
    """A judge of what holds over the judged S: ``components`` gets the sweep, them and limits."""

    @functools.wraps(components)
    def judge(tables: Tables, criterion: dict) -> Judgement:
        sweep = MlpSweep(tables)
        points = sweep.judged(criterion)
        minimum = criterion["seeds"]["minimum"]
        if _too_few(points):
            return Judgement([], minimum, TOO_FEW)
        note = "judged at S = " + ", ".join(f"{s:g}" for s in points)
        return Judgement(components(sweep, points, criterion["thresholds"]), minimum, note)

    return judge


def _too_few(points: list[float]) -> bool:
    return len(points) < 3 or points[-1] <= 1 or 1.0 not in points


@_over_points
def m1(sweep, points, limits) -> list[Component]:
    """Excess of the loss at the largest judged S, without multipliers and with."""
    found = []
    for name, (plain, learned) in ARMS.items():
        at = f"excess loss at S = {points[-1]:g}"
        without = excess(sweep.loss(plain), points[-1], points)
        with_them = excess(sweep.loss(learned), points[-1], points)
        found += [
            at_least(f"{name}, without: {at}", without, limits["degradation"], name),
            at_most(f"{name}, with: {at}", with_them, limits["flat"], name),
            at_most(
                f"{name}: with − {limits['share']:g} without, {at}",
                with_them - limits["share"] * without,
                0.0,
                name,
            ),
        ]
    return found


@_over_points
def m2(sweep, points, limits) -> list[Component]:
    """Slope of the MLP matrices' ‖W‖ against S, with multipliers."""
    found = []
    for name, (_, learned) in ARMS.items():
        slope = slopes(sweep.matrices(learned, "MLP"), points)
        found += within(f"{name}: slope of ‖W‖ of the MLP", slope, *limits["slope"], part=name)
    return found


@_over_points
def m3(sweep, points, limits) -> list[Component]:
    """Range of each block's output over S with multipliers, beside that without."""
    found = []
    for name, (plain, learned) in ARMS.items():
        for block in BLOCKS:
            ranges = sweep.output(learned, block)[points].apply(log_range, axis=1)
            text = f"{name}: ln range of the {block} output"
            found.append(at_most(text, ranges, limits["constant"], name))
        free = sweep.output(plain, "MLP")[points].apply(log_range, axis=1)
        own = sweep.output(learned, "MLP")[points].apply(log_range, axis=1)
        gap = own - limits["share"] * free
        found.append(at_most(f"{name}: MLP, with − {limits['share']:g} without", gap, 0.0, name))
    return found


@_over_points
def m4(sweep, points, limits) -> list[Component]:
    """Slope of the multipliers against S."""
    found = []
    for name, (_, learned) in ARMS.items():
        slope = slopes(sweep.multiplier(learned), points)
        found += within(f"{name}: slope of |s|", slope, *limits["slope"], part=name)
    return found


@_over_points
def m5a(sweep, points, limits) -> list[Component]:
    """‖W‖ of the MLP without multipliers over that with, at the largest S relative to S = 1."""
    found = []
    for name, (plain, learned) in ARMS.items():
        upper = [s for s in points if s >= 1]
        ratio = sweep.matrices(plain, "MLP") / sweep.matrices(learned, "MLP")
        text = f"{name}: ln of ‖W‖ without over with, S = {upper[-1]:g} against 1"
        found += within(text, growth(ratio, upper), *limits["deviation"], part=name)
    return found


@_over_points
def m5b(sweep, points, limits) -> list[Component]:
    """Growth of the SSM output beside that of the MLP, at SSM matrices that stay."""
    found = []
    upper = [s for s in points if s >= 1]
    for name, (plain, _) in ARMS.items():
        mlp, ssm = (growth(sweep.output(plain, block), upper) for block in ("MLP", "SSM"))
        own = growth(sweep.matrices(plain, "SSM"), upper).abs()
        text = f"{name}: growth of the SSM output over that of the MLP"
        found += [
            at_least(f"{name}: ln growth of the MLP output", mlp, limits["growth"], name),
            *within(text, ssm / mlp, *limits["share"], part=name),
            at_most(f"{name}: |ln change| of the SSM matrices", own, limits["constant"], name),
        ]
    return found


@_over_points
def m5c(sweep, points, limits) -> list[Component]:
    """Growth of conv1d and D."""
    return _grow(sweep, points, limits, {"conv1d": "ssm.conv", "D": "ssm.D"})


@_over_points
def m5d(sweep, points, limits) -> list[Component]:
    """The attention output grows, less than that of the SSM, and its matrices grow."""
    found = []
    upper = [s for s in points if s >= 1]
    for name, (plain, _) in ARMS.items():
        attention, ssm = (
            growth(sweep.output(plain, block), upper) for block in ("attention", "SSM")
        )
        merged = growth(sweep.merged(plain, ("attention.q", "attention.k", "attention.v")), upper)
        out = growth(sweep.merged(plain, ("attention.out",)), upper)
        found += [
            at_least(f"{name}: ln growth of the attention output", attention, 0.0, name),
            at_most(f"{name}: attention − SSM, ln growth", attention - ssm, 0.0, name),
            at_least(f"{name}: ln growth of QKV", merged, limits["growth"], name),
            at_least(f"{name}: ln growth of attention out", out, limits["growth"], name),
        ]
    return found


@_over_points
def m5e(sweep, points, limits) -> list[Component]:
    """The embedding matrix stays, its output grows slightly."""
    found = []
    upper = [s for s in points if s >= 1]
    for name, (plain, _) in ARMS.items():
        matrix = growth(sweep.matrices(plain, "embedding"), upper).abs()
        output = growth(sweep.output(plain, "embedding"), upper)
        text = f"{name}: ln growth of the embedding output"
        found += [
            at_most(f"{name}: |ln change| of the embedding", matrix, limits["constant"], name),
            *within(text, output, *limits["growth"], part=name),
        ]
    return found


@_over_points
def m6(sweep, points, limits) -> list[Component]:
    """Differences between Adam and Muon in the statistics of M1 to M4, paired by seed."""

    def gap(statistic: Callable[[str], pd.Series]) -> pd.Series:
        return (statistic("Adam") - statistic("Muon")).abs()

    def with_multipliers(name: str) -> str:
        return ARMS[name][1]

    last = points[-1]
    found = [
        at_least(
            f"{name}, without: excess loss at S = {last:g}",
            excess(sweep.loss(ARMS[name][0]), last, points),
            limits["degradation"],
        )
        for name in OPTIMIZERS
    ]
    differences = {
        "excess loss with multipliers": lambda name: excess(
            sweep.loss(with_multipliers(name)), last, points
        ),
        "slope of ‖W‖ of the MLP": lambda name: slopes(
            sweep.matrices(with_multipliers(name), "MLP"), points
        ),
        "slope of |s|": lambda name: slopes(sweep.multiplier(with_multipliers(name)), points),
        "ln range of the MLP output": lambda name: sweep.output(with_multipliers(name), "MLP")[
            points
        ].apply(log_range, axis=1),
    }
    for (text, statistic), limit in zip(differences.items(), limits["gaps"], strict=True):
        found.append(at_most(f"|Adam − Muon|: {text}", gap(statistic), limit))
    return found


@_over_points
def m7(sweep, points, limits) -> list[Component]:
    """Each layer's growth of the block output over that of all, without multipliers."""
    found = []
    upper = [s for s in points if s >= 1]
    for name, (plain, _) in ARMS.items():
        for block in ("MLP", "SSM"):
            of_layers = pd.concat(
                [
                    growth(sweep.output(plain, block, layer), upper)
                    for layer in sweep.layers(plain, "mlp.down", "activation_norm")
                ],
                axis=1,
            )
            share = of_layers.div(of_layers.mean(axis=1), axis=0)
            low, high = limits["share"]
            text = f"{name}: {block}, growth of a layer over the mean of layers"
            found += [
                at_least(f"{text}, least", share.min(axis=1), low, name),
                at_most(f"{text}, most", share.max(axis=1), high, name),
            ]
    return found


@_over_points
def m8(sweep, points, limits) -> list[Component]:
    """Best loss without minus best loss with multipliers, each at its best judged S; paired."""
    found = []
    for name, (plain, learned) in ARMS.items():
        best = [
            losses[losses.mean().idxmin()]
            for losses in (sweep.loss(plain)[points], sweep.loss(learned)[points])
        ]
        text = f"{name}: best without − best with (nats)"
        found.append(at_least(text, best[0] - best[1], -limits["margin"], name))
    return found


@reads("embedding")
def m5f(tables: Tables, criterion: dict) -> Judgement:
    """Growth of frequent and rare tokens' rows over their masked Brownian motion.

    Noise is that of one mask (the batches of seed 0) and the same at every S, so that it drops out
    of the growth; how far rows lie above it stands in the note.
    """
    points = MlpSweep(tables).judged(criterion)
    minimum, limits = criterion["seeds"]["minimum"], criterion["thresholds"]
    if _too_few(points):
        return Judgement([], minimum, TOO_FEW)
    rows = by_frequency(tables)
    rows["excess"] = np.log(rows["norm"] / rows["noise"])
    found, notes = [], []
    for name, (plain, _) in ARMS.items():
        table = rows[rows["arm"] == plain].pivot_table("excess", "seed", ["S", "decile"])
        grown = table[points[-1]] - table[1.0]
        rare, frequent = grown[grown.columns[0]], grown[grown.columns[-1]]
        text = f"{name}: ln growth over noise, the most frequent decile's less the rarest's"
        found += [
            at_least(text, frequent - rare, limits["escape"], name),
            at_most(f"{name}: |ln change| of the rarest decile", rare.abs(), limits["stay"], name),
        ]
        every = ", ".join(f"{value:+.3f}" for value in grown.mean())
        levels = table[points[-1]].mean()
        above = ", ".join(
            f"{levels[decile]:+.2f}" for decile in (levels.index[0], levels.index[-1])
        )
        notes.append(f"{name}, from rare to frequent: {every}; ln over noise, rarest and most "
                     f"frequent at S = {points[-1]:g}: {above}")  # fmt: skip
    return Judgement(found, minimum, "; ".join(notes))


def _grow(sweep, points, limits, tensors: dict[str, str]) -> list[Component]:
    found = []
    upper = [s for s in points if s >= 1]
    for name, (plain, _) in ARMS.items():
        for text, tensor in tensors.items():
            grown = growth(sweep.table(plain, tensor, "weight_norm"), upper)
            found.append(at_least(f"{name}: ln growth of {text}", grown, limits["growth"], name))
    return found
