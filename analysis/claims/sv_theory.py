"""Judging functions of SVT1 to SVT7: the theorems on scale vectors, simulated (second paper).

A value of a seed is its worst over eight teachers, unless a part's name says of which one it is.
"""

from __future__ import annotations

import numpy as np

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, within
from analysis.quantities import sv_theory
from analysis.quantities.sv_theory import DESIGNS, at_end, course, largest, least
from analysis.tables.results import Tables

_NAMES = {"standard": "standard", "ap": "AP", "dp": "DP", "or": "OR", "er": "ER", "hg": "HG"}
# (target, noise) of the stochastic equations.
_POINTS = ((1.0, 0.1), (1.0, 0.02), (0.0, 0.1), (0.0, 0.02))


def svt1(tables: Tables, criterion: dict) -> Judgement:
    """Theorem 2.2: the standard vector against none."""
    limits = criterion["thresholds"]
    faster, exact = "a lower loss at all times", "the mechanism"
    return judgement(criterion, [
        _faster(tables, "standard", limits, faster),
        at_most("rise of e^{2t}ℓ_j in any column, relative",
                largest(tables, "standard", "columns_rise"), limits["rise"], faster),
        _conserved(tables, "standard", limits, exact),
        at_most("distance of ȧ_j from P_j (w⋆_j − a_j), relative",
                largest(tables, "standard", "preconditioner_error"), limits["exact"], exact),
        at_least("least eigenvalue of P_j", least(tables, "standard", "least_eigenvalue"),
                 1 - limits["rise"], exact),
    ])  # fmt: skip


def svt2(tables: Tables, criterion: dict) -> Judgement:
    """Theorems 3.1 and 9.1: DP against the standard vector."""
    return judgement(criterion, _of_theorem(tables, criterion["thresholds"], "dp", "diagonal"))


def svt3(tables: Tables, criterion: dict) -> Judgement:
    """Theorems 3.2 and 9.2: OR against the standard vector."""
    limits = criterion["thresholds"]
    parts = _of_theorem(tables, limits, "or", "balanced")
    distance = "distance of γ̇ from (qqᵀ + β²(I − qqᵀ/d)) s, relative"
    found = largest(tables, "or", "preconditioner_error")
    parts.append(at_most(distance, found, limits["exact"], "conserved quantities"))
    return judgement(criterion, parts)


def _of_theorem(tables: Tables, limits: dict, design: str, special: str) -> list[Part]:
    """The parts (i) to (iii) of theorems 9.1 and 9.2, and what the flow conserves."""
    slower = "by what share of the standard rate it is ever slower at the same state"
    same, later = "(i) the same state", "(iii) the teachers of the theorem"
    return [
        at_most(f"{slower}, along its own trajectory",
                largest(tables, design, "rate_deficit"), limits["rise"], same),
        at_most(f"{slower}, random states with the conserved quantities",
                largest(tables, design, "rate_deficit", "kept"), limits["rise"], same),
        _coefficient(tables, design, limits, "(ii) the early phase"),
        _faster(tables, design, limits, later, special),
        at_most("distance from the closed form, relative",
                largest(tables, design, "closed_form_error", special), limits["closed_form"],
                later),
        _conserved(tables, design, limits, "conserved quantities"),
        _faster(tables, design, limits, "all eight teachers, at all times", ours=True),
    ]  # fmt: skip


def _faster(
    tables: Tables, design: str, limits: dict, group: str, *of: str, ours: bool = False
) -> Part:
    where = f"of the {of[0]} teacher" if of else "of all teachers"
    name = f"share of times at which the loss lies below the reference's, {where}"
    values = least(tables, design, "faster_share", *of)
    return at_least(name, values, limits["share"], group, ours=ours)


def _conserved(tables: Tables, design: str, limits: dict, group: str) -> Part:
    name = "largest departure from the conserved quantities"
    return at_most(name, largest(tables, design, "invariant_error"), limits["exact"], group)


def _coefficient(tables: Tables, design: str, limits: dict, group: str) -> Part:
    name = f"{_NAMES[design]}: |measured / derived − 1| of the coefficient of t³"
    values = largest(tables, design, "coefficient_error")
    return at_most(name, values, limits["coefficient"], group)


def svt4(tables: Tables, criterion: dict) -> Judgement:
    """Theorems 2.3 and 8.1: bounded with weight decay on γ, unbounded without."""
    limits = criterion["thresholds"]
    grows, bounded = "without decay on γ: E γ² grows", "with decay on γ: bounded"
    bounds, exact = "the bound on E w²", "the identity of γ² − w²"
    parts = []
    for target, noise in _POINTS:
        point = (target, noise)
        where = f"a = {target:g}, q = {noise:g}"
        growth = sv_theory.growth(tables, *point, "undecayed")
        still = sv_theory.growth(tables, *point, "decayed")
        share = sv_theory.share_of_bound(tables, *point, "scale_square", "decayed")
        both = [
            sv_theory.share_of_bound(tables, *point, "matrix_square", tensor)
            for tensor in ("undecayed", "decayed")
        ]
        errors = [
            np.abs(at_end(tables, "identity_error", tensor, arm="SDE", target=target, noise=noise))
            for tensor in ("undecayed", "decayed")
        ]
        parts += [
            at_least(f"{where}: exponent of E γ² over two decades of t, without decay", growth,
                     limits["growth"], grows),
            at_most(f"{where}: exponent of E γ² over two decades of t, with decay", still,
                    limits["still"], bounded),
            at_most(f"{where}: largest E γ² over its bound, with decay", share, limits["bound"],
                    bounded),
            at_most(f"{where}: largest E w² over its bound", np.max(both, axis=0), limits["bound"],
                    bounds),
            at_most(f"{where}: |error| of the identity, relative", np.max(errors, axis=0),
                    limits["identity"], exact),
        ]  # fmt: skip
    sharper = [
        course(tables, *point, "sharpness", "undecayed").iloc[-1]
        / course(tables, *point, "sharpness", "decayed").iloc[-1]
        for point in _POINTS
    ]
    name = "E λ_max at the end without decay over that with it, least of four points"
    parts.append(at_least(name, np.min(sharper, axis=0), limits["sharper"], grows))
    return judgement(criterion, parts)


def svt4_2(tables: Tables, criterion: dict) -> Judgement:
    """What SVT4 asks, with room for the chance of few paths."""
    return svt4(tables, criterion)


def svt5(tables: Tables, criterion: dict) -> Judgement:
    """Coefficients of t³ that the paper does not give, and HG's sign."""
    limits = criterion["thresholds"]
    parts = [
        _coefficient(tables, design, limits, f"{_NAMES[design]} against {reference}")
        for design, reference in (
            ("standard", "none"), ("ap", "none"), ("er", "standard"), ("hg", "shared")
        )
    ]  # fmt: skip
    ahead = largest(tables, "hg", "faster_share")
    name = "HG: share of times at which it lies below the shared vector, largest of all teachers"
    parts.append(at_most(name, ahead, 1 - limits["share"], "HG against shared"))
    for design, reference in (("ap", "none"), ("er", "standard")):
        name = f"{_NAMES[design]}: share of times at which its loss is lower, least of all teachers"
        ahead = least(tables, design, "faster_share")
        group = f"{_NAMES[design]} against {reference}"
        parts.append(at_least(name, ahead, limits["share"], group))
    return judgement(criterion, parts)


def svt6(tables: Tables, criterion: dict) -> Judgement:
    """Where the theorems on gradient flow from W = 0 stop."""
    limits = criterion["thresholds"]
    state, start = "(a) other states", "(b) a nonzero start"
    even, uneven = "(c) Adam, even columns", "(c) Adam, uneven columns"
    times, above = (sv_theory.started(tables, stat) for stat in ("time_to_done", "above_none"))
    parts = [
        at_most(f"{_NAMES[design]}: its rate over the standard one's at the counterexample",
                largest(tables, design, "rate_ratio", "counterexample"), limits["slower"], state)
        for design in ("dp", "or")
    ]  # fmt: skip
    for size in (0.1, 0.3):
        ratio = times[size, "or"] / times[size, "standard"]
        name = f"start of {size:g} ‖W⋆‖: OR's time to 1% of the loss over the standard vector's"
        parts.append(at_most(name, ratio, limits["sooner"], start))
    all_above = above[1.0][list(DESIGNS)].min(axis=1)
    name = "start of ‖W⋆‖: share of times at which a design lies above none, least of five"
    parts.append(at_least(name, all_above, limits["above"], start))
    gains = {design: sv_theory.gain_under_adam(tables, "gaussian", design, "none")
             for design in DESIGNS}  # fmt: skip
    name = "even columns: |ln of the loss without scales over the design's|, largest of five"
    parts.append(at_most(name, np.max(np.abs(list(gains.values())), axis=0), limits["even"], even))
    for design in ("standard", "dp", "or", "er"):
        found = sv_theory.gain_under_adam(tables, "uneven", design, "none")
        name = f"uneven columns: ln of the loss without scales over that of {_NAMES[design]}"
        parts.append(at_least(name, found, limits["uneven"], uneven))
    for design in ("dp", "or", "er"):
        found = sv_theory.gain_under_adam(tables, "uneven", design, "standard")
        name = f"uneven columns: ln of the standard vector's loss over that of {_NAMES[design]}"
        group = "(c) Adam: no gain over the standard vector"
        parts.append(at_most(name, found, limits["no_gain"], group))
    edges = [sv_theory.edges(tables, teacher) for teacher in ("gaussian", "uneven")]
    inside = at_most("share of best LRs at an edge of the grid", np.max(edges, axis=0),
                     limits["edges"])  # fmt: skip
    return judgement(criterion, parts, contrast=[inside])


def svt7(tables: Tables, criterion: dict) -> Judgement:
    """What weight decay on γ does to the loss, which theorem 2.3 does not bound."""
    limits = criterion["thresholds"]
    bias, discrete = "the bias", "SGD"
    predicted = 0.5 * criterion["decay"] ** 2  # ½λμ
    parts = [
        within("no noise: loss with decay over ½λμ", _still(tables, "decayed") / predicted,
               1 - limits["exact"], 1 + limits["exact"], bias),
        at_most("no noise: loss without decay over ½λμ", _still(tables, "undecayed") / predicted,
                limits["none"], bias),
        within("q = 0.02, a = 1: what decay adds to the loss over ½λμ",
               _added(tables, arm="SDE", target=1.0, noise=0.02) / predicted,
               1 - limits["bias"], 1 + limits["bias"], bias),
    ]  # fmt: skip
    for enters, lr, sign in (("parameters", 0.01, 1), ("parameters", 0.1, -1), ("target", 0.01, -1),
                             ("target", 0.1, -1)):  # fmt: skip
        point = {"arm": "SGD", "enters": enters, "lr": lr}
        without = at_end(tables, "loss", "undecayed", **point)
        share = _added(tables, **point) / without
        name = f"noise in the {enters}, η = {lr:g}: what decay adds to the loss, relative"
        group = f"{discrete}, noise in the {enters}, η = {lr:g}"
        part = at_least if sign > 0 else at_most
        parts.append(part(name, share, sign * limits[enters], group))
    return judgement(criterion, parts)


def _still(tables: Tables, tensor: str) -> np.ndarray:
    return at_end(tables, "loss", tensor, arm="STILL")


def _added(tables: Tables, **point) -> np.ndarray:
    """By seed the loss with weight decay on γ less that without."""
    with_decay, without = (
        at_end(tables, "loss", tensor, **point) for tensor in ("decayed", "undecayed")
    )
    return with_decay - without
