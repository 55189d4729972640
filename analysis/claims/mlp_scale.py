"""Judging functions of the MLP sweep: M1 to M8 (section 3 and appendix B).

Norms and slopes are read at the end of the constant stage, losses (nats per token) after the decay.
Every value is one per seed. "Growth" is ln of a norm at the largest judged S over that at S = 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, reads, within
from analysis.quantities.mlp_scale import (
    ARMS,
    BLOCKS,
    OPTIMIZERS,
    MlpSweep,
    by_frequency,
    growth,
    over_living,
    switched_off,
)
from analysis.quantities.stats import log_range
from analysis.quantities.sweep import excess, slopes
from analysis.tables.results import Tables

TOO_FEW = "too few S within reach of the multipliers"
LEARNED_ADAM = ARMS["Adam"][1]
QKV = ("attention.q", "attention.k", "attention.v")
# What can change the scale of the SSM's output beside its matrices.
OF_SSM = {"conv1d": "ssm.conv", "D": "ssm.D"}
OverPoints = Callable[[MlpSweep, list[float], dict], Judgement]


def _over_points(judge_points: OverPoints) -> Callable[[Tables, dict], Judgement]:
    """A judge of what holds over the judged S: ``judge_points`` gets the sweep and these S."""

    @functools.wraps(judge_points)
    def judge(tables: Tables, criterion: dict) -> Judgement:
        sweep = MlpSweep(tables)
        points = sweep.judged(criterion)
        if len(points) < 3 or points[-1] <= 1 or 1.0 not in points:
            return judgement(criterion, [], TOO_FEW)
        judged = judge_points(sweep, points, criterion)
        note = "judged at S = " + ", ".join(f"{s:g}" for s in points)
        return dataclasses.replace(judged, note="; ".join(filter(None, [note, judged.note])))

    return judge


def _arms(criterion: dict) -> dict[str, tuple[str, str]]:
    """The arms without and with multipliers of each optimizer that the criterion is about."""
    return {name: ARMS[name] for name in criterion.get("optimizers", ARMS)}


@_over_points
def m1(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Excess of the loss at the largest judged S, without multipliers and with."""
    limits, parts = criterion["thresholds"], []
    at, share = f"excess loss at S = {points[-1]:g}", limits["share"]
    for name, (plain, learned) in _arms(criterion).items():
        lost = excess(sweep.loss(plain), points[-1], points)
        left = excess(sweep.loss(learned), points[-1], points)
        degrades, flat = f"{name} degrades without multipliers", f"{name} stays flat with them"
        parts += [
            at_least(f"{name}, without multipliers: {at} (nats)", lost, limits["degradation"],
                     degrades, matters=criterion["smallest_effect"]),
            at_most(f"{name}, with multipliers: {at} (nats)", left, limits["flat"], flat),
            at_most(f"{name}: {at}, with less {share:g} times without (nats)",
                    left - share * lost, 0.0, flat),
        ]  # fmt: skip
    return judgement(criterion, parts)


@_over_points
def m2(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Log-log slope of the MLP matrices' ‖W‖ in S, with multipliers."""
    parts = []
    for name, (_, learned) in ARMS.items():
        slope = slopes(sweep.matrices(learned, "MLP"), points)
        text = f"{name}: slope of ln ‖W‖ of the MLP matrices in ln S"
        parts.append(within(text, slope, *criterion["thresholds"]["slope"], name))
    return judgement(criterion, parts)


@_over_points
def m2_2(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """The slope with Adam, over the layers whose MLP still puts something out."""
    slope = slopes(over_living(sweep, LEARNED_ADAM, points), points)
    text = "Adam: slope of ln ‖W‖ of the MLP matrices in ln S"
    part = within(text, slope, *criterion["thresholds"]["slope"], "Adam")
    return judgement(criterion, [part], _left_out(sweep, points))


@_over_points
def m3(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """ln range over S of each block's output with multipliers; of the MLP's beside that without.

    The note counts layers whose MLP hardly puts out anything: they are in the geometric mean.
    """
    limits, parts, notes = criterion["thresholds"], [], []
    share = limits["share"]
    for name, (plain, learned) in _arms(criterion).items():
        for block in BLOCKS:
            ranges = sweep.output(learned, block)[points].apply(log_range, axis=1)
            text = f"{name}, with multipliers: ln range of the {block} output"
            parts.append(at_most(text, ranges, limits["constant"], f"{name} {block} output"))
        free = sweep.output(plain, "MLP")[points].apply(log_range, axis=1)
        own = sweep.output(learned, "MLP")[points].apply(log_range, axis=1)
        text = f"{name}: ln range of the MLP output, with less {share:g} times without"
        parts.append(at_most(text, own - share * free, 0.0, f"{name} MLP output"))
        off = switched_off(sweep, learned, "MLP", points)
        layers = ", ".join(f"layer {layer} in {count}" for layer, count in off.items() if count)
        notes.append(f"{name}: {layers or 'none'}")
    note = f"MLP output at S = {points[-1]:g} below a tenth of that at S = 1, seeds: "
    return judgement(criterion, parts, note + "; ".join(notes))


@_over_points
def m4(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Log-log slope of the multipliers in S."""
    parts = []
    for name, (_, learned) in ARMS.items():
        slope = slopes(sweep.multiplier(learned), points)
        text = f"{name}: slope of ln |s| in ln S"
        parts.append(within(text, slope, *criterion["thresholds"]["slope"], name))
    return judgement(criterion, parts)


@_over_points
def m4_2(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """The slope with Adam, over the layers whose MLP still puts something out."""
    multipliers = over_living(sweep, LEARNED_ADAM, points, "scalar_multiplier_norm")
    slope = slopes(multipliers, points)
    part = within("Adam: slope of ln |s| in ln S", slope, *criterion["thresholds"]["slope"], "Adam")
    return judgement(criterion, [part], _left_out(sweep, points))


@_over_points
def m5a(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """‖W‖ of the MLP without multipliers over that with, at the largest S relative to S = 1."""
    parts = []
    for name, (plain, learned) in ARMS.items():
        ratio = sweep.matrices(plain, "MLP") / sweep.matrices(learned, "MLP")
        text = f"{name}: growth of ‖W‖ of the MLP, without over with multipliers (ln)"
        low, high = criterion["thresholds"]["deviation"]
        matters = criterion["smallest_effect"]
        parts.append(within(text, _grown(ratio, points), low, high, name, matters=matters))
    return judgement(criterion, parts)


@_over_points
def m5a_2(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """The same with Adam, over the layers whose MLP still puts something out with multipliers."""
    plain, learned = (over_living(sweep, arm, points) for arm in ARMS["Adam"])
    text = "Adam: growth of ‖W‖ of the MLP, without over with multipliers (ln)"
    part = within(text, _grown(plain / learned, points), *criterion["thresholds"]["deviation"],
                  "Adam", matters=criterion["smallest_effect"])  # fmt: skip
    return judgement(criterion, [part], _left_out(sweep, points))


def _left_out(sweep: MlpSweep, points: list[float]) -> str:
    """In how many seeds each layer does not count."""
    counts = switched_off(sweep, LEARNED_ADAM, "MLP", points)
    layers = ", ".join(
        f"layer {layer} in {count} seeds" for layer, count in counts.items() if count
    )
    return f"left out, since the MLP is off at S = {points[-1]:g}: {layers or 'none'}"


@_over_points
def m5b(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Without multipliers: the SSM's output grows as the MLP's does, and its matrices stay."""
    limits, parts, contrast = criterion["thresholds"], [], []
    for name, (plain, _) in _arms(criterion).items():
        mlp, ssm = (_grown(sweep.output(plain, block), points) for block in ("MLP", "SSM"))
        own = _grown(sweep.matrices(plain, "SSM"), points).abs()
        output, matrices = f"{name} SSM output like the MLP's", f"{name} SSM matrices stay"
        parts += [
            at_least(f"{name}: growth of the MLP output (ln)", mlp, limits["growth"], output),
            within(f"{name}: growth of the SSM output over that of the MLP's (ratio of logs)",
                   ssm / mlp, *limits["share"], output),
            at_most(f"{name}: size of the change of the SSM matrices' ‖W‖ (ln)", own,
                    limits["constant"], matrices),
        ]  # fmt: skip
        text = f"{name}: growth of the MLP output, to which the SSM matrices could answer (ln)"
        contrast.append(at_least(text, mlp, limits["growth"], matrices))
    return judgement(criterion, parts, contrast=contrast)


@_over_points
def m5c(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Without multipliers: growth of conv1d and D."""
    parts, matters = [], criterion["smallest_effect"]
    for name, (plain, _) in ARMS.items():
        for text, tensor in OF_SSM.items():
            grown = _grown(sweep.table(plain, tensor, "weight_norm"), points)
            limit, group = criterion["thresholds"]["growth"], f"{name} {text}"
            parts.append(
                at_least(f"{name}: growth of {text} (ln)", grown, limit, group, matters=matters)
            )
    return judgement(criterion, parts)


@_over_points
def m5c_2(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Growth of conv1d and D without multipliers; ours: less that with multipliers."""
    limit, matters, parts = criterion["thresholds"]["growth"], criterion["smallest_effect"], []
    for name, (plain, learned) in ARMS.items():
        for text, tensor in OF_SSM.items():
            free, own = (
                _grown(sweep.table(arm, tensor, "weight_norm"), points) for arm in (plain, learned)
            )
            more = f"{name} {text} by more than with multipliers"
            parts += [
                at_least(f"{name}, without multipliers: growth of {text} (ln)", free, limit,
                         f"{name} {text}", matters=matters),
                at_least(f"{name}: growth of {text}, without less with multipliers (ln)",
                         free - own, limit, more, ours=True, matters=matters),
            ]  # fmt: skip
    return judgement(criterion, parts)


@_over_points
def m5d(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Without multipliers: attention's output grows, less than the SSM's; its matrices grow."""
    limit, matters, parts = criterion["thresholds"]["growth"], criterion["smallest_effect"], []
    for name, (plain, _) in _arms(criterion).items():
        attention, ssm = (
            _grown(sweep.output(plain, block), points) for block in ("attention", "SSM")
        )
        merged = _grown(sweep.merged(plain, QKV), points)
        out = _grown(sweep.merged(plain, ("attention.out",)), points)
        output = f"{name} attention outputs"
        parts += [
            at_least(f"{name}: growth of the attention output (ln)", attention, 0.0, output,
                     matters=matters),
            at_most(f"{name}: growth of the attention output less that of the SSM's (ln)",
                    attention - ssm, 0.0, output, matters=matters),
            at_least(f"{name}: growth of ‖W‖ of queries, keys and values (ln)", merged, limit,
                     f"{name} QKV matrix", matters=matters),
            at_least(f"{name}: growth of ‖W‖ of attention's output matrix (ln)", out, limit,
                     f"{name} attention's output matrix", matters=matters),
        ]  # fmt: skip
    return judgement(criterion, parts)


@_over_points
def m5e(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Without multipliers: the embedding matrix stays, its output grows slightly."""
    limits, parts = criterion["thresholds"], []
    for name, (plain, _) in ARMS.items():
        matrix = _grown(sweep.matrices(plain, "embedding"), points).abs()
        output = _grown(sweep.output(plain, "embedding"), points)
        parts += [
            at_most(f"{name}: size of the change of the embedding's ‖W‖ (ln)", matrix,
                    limits["constant"], f"{name} embedding matrix"),
            within(f"{name}: growth of the embedding's output (ln)", output, *limits["growth"],
                   f"{name} embedding output", matters=criterion["smallest_effect"]),
        ]  # fmt: skip
    return judgement(criterion, parts)


@reads("embedding")
@_over_points
def m5f(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Growth of frequent and rare tokens' rows over their masked Brownian motion.

    Noise is that of one mask (the batches of seed 0) and the same at every S, so that it drops out
    of the growth; how far rows lie above it stands in the note.
    """
    limits, parts, notes = criterion["thresholds"], [], []
    rows = by_frequency(sweep.tables)
    above = rows.assign(above=np.log(rows["norm"] / rows["noise"]))
    for name, (plain, _) in ARMS.items():
        table = above[above["arm"] == plain].pivot_table("above", "seed", ["S", "decile"])
        grown = table[points[-1]] - table[1.0]
        rare, frequent = grown[grown.columns[0]], grown[grown.columns[-1]]
        parts += [
            at_least(f"{name}: growth of the most frequent tenth's rows less the rarest's (ln)",
                     frequent - rare, limits["escape"], name, matters=criterion["smallest_effect"]),
            at_most(f"{name}: size of the change of the rarest tenth's rows (ln)", rare.abs(),
                    limits["stay"], name),
        ]  # fmt: skip
        every = ", ".join(f"{value:+.3f}" for value in grown.mean())
        levels = table[points[-1]].mean().iloc[[0, -1]]
        over = ", ".join(f"{level:+.2f}" for level in levels)
        notes.append(f"{name}, growth from rare to frequent: {every}; ln over noise, rarest and "
                     f"most frequent at S = {points[-1]:g}: {over}")  # fmt: skip
    return judgement(criterion, parts, "; ".join(notes))


@_over_points
def m6(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Adam less Muon, paired by seed, in the statistics of M1 to M4.

    The paper says that both behave alike in almost all aspects. Margins for norms and multipliers
    are ours, and so parts that they decide count as ours.
    """
    limits, last = criterion["thresholds"], points[-1]
    without = [
        at_least(f"{name}, without multipliers: excess loss at S = {last:g} (nats)",
                 excess(sweep.loss(ARMS[name][0]), last, points), limits["degradation"],
                 "both degrade without multipliers")
        for name in OPTIMIZERS
    ]  # fmt: skip
    groups = [
        "equal loss with multipliers",
        "equal slope of the matrices",
        "equal slope of the multipliers",
        "equal range of the MLP output",
    ]
    statistics = {
        f"excess loss with multipliers at S = {last:g} (nats)": lambda arm: excess(
            sweep.loss(arm), last, points
        ),
        "slope of ln ‖W‖ of the MLP matrices": lambda arm: slopes(
            sweep.matrices(arm, "MLP"), points
        ),
        "slope of ln |s|": lambda arm: slopes(sweep.multiplier(arm), points),
        "ln range of the MLP output": lambda arm: sweep.output(arm, "MLP")[points].apply(
            log_range, axis=1
        ),
    }
    (_, adam), (_, muon) = (ARMS[name] for name in OPTIMIZERS)
    gaps = [
        at_most(f"size of Adam less Muon: {text}", (of(adam) - of(muon)).abs(), limit, group,
                ours=number > 0)
        for number, ((text, of), limit, group) in enumerate(
            zip(statistics.items(), limits["gaps"], groups, strict=True)
        )
    ]  # fmt: skip
    return judgement(criterion, [*without, *gaps])


@_over_points
def m7(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Without multipliers: each layer's growth of the block output beside the mean of layers.

    Differences instead of quotients: the mean may be near 0 where a layer's output dies.
    """
    parts, (low, high) = [], criterion["thresholds"]["share"]
    for name, (plain, _) in _arms(criterion).items():
        for block in ("MLP", "SSM"):
            layers = sweep.layers(plain, BLOCKS[block], "activation_norm")
            grown = [_grown(sweep.output(plain, block, layer), points) for layer in layers]
            table = pd.concat(grown, axis=1)
            mean, text = table.mean(axis=1), f"{name} {block} output, growth of"
            parts += [
                at_least(f"{text} the least layer less {low:g} times the mean's (ln)",
                         table.min(axis=1) - low * mean, 0.0, f"{name} {block} outputs"),
                at_most(f"{text} the most layer less {high:g} times the mean's (ln)",
                        table.max(axis=1) - high * mean, 0.0, f"{name} {block} outputs"),
            ]  # fmt: skip
    return judgement(criterion, parts)


@_over_points
def m8(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """Best loss without less best loss with multipliers, each at its best judged S; paired."""
    return judgement(criterion, _best_losses(sweep, points, criterion["thresholds"]["margin"]))


@_over_points
def m8_2(sweep: MlpSweep, points: list[float], criterion: dict) -> Judgement:
    """The same, where the loss without multipliers varies over the sweep (the contrast)."""
    margin, contrast = criterion["thresholds"]["margin"], []
    for name, (plain, _) in ARMS.items():
        losses = sweep.loss(plain)[points]
        worst = losses[losses.mean().idxmax()]
        text = f"{name}, without multipliers: worst loss of the sweep less the best (nats)"
        contrast.append(at_least(text, worst - _best(losses), margin, name))
    return judgement(criterion, _best_losses(sweep, points, margin), contrast=contrast)


def _best_losses(sweep: MlpSweep, points: list[float], margin: float) -> list[Part]:
    parts = []
    for name, arms in ARMS.items():
        without, learned = (_best(sweep.loss(arm)[points]) for arm in arms)
        text = f"{name}: best loss without less best loss with multipliers (nats)"
        parts.append(at_least(text, without - learned, -margin, name))
    return parts


def _best(losses: pd.DataFrame) -> pd.Series:
    """The losses at the S whose mean is lowest."""
    return losses[losses.mean().idxmin()]


def _grown(table: pd.DataFrame, points: list[float]) -> pd.Series:
    """Growth from S = 1 to the largest judged S."""
    return growth(table, [1.0, points[-1]])


# With the optimizers that the criterion names.
m1_2, m3_2, m5b_2, m5d_2, m7_2 = m1, m3, m5b, m5d, m7
