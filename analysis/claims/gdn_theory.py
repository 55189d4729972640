"""Judging functions of GD0, GD12 and GD13: exponents of a Gated Delta Network (third paper).

A value of a seed is an exponent of the width, or its largest difference over widths and epsilons.
"""

from __future__ import annotations

from analysis.claims.judging import (
    Judgement,
    Part,
    at_least,
    at_most,
    judgement,
    within,
)
from analysis.quantities import gdn_theory as found
from analysis.quantities.gdn_theory import DERIVED, FEW, GATES, MANY
from analysis.tables.results import Tables

# In SP these are as in muP, so that it is no contrast.
_ALIKE_IN_SP = ("⟨q, k⟩",)
_BATCHES = {FEW: "few tokens", MANY: "many tokens"}
_DIFFER = {"loss": "the loss", "gradient": "the gradient", "weight": "the parameters"}
# Of a step with the gates' LR constant in d, and with the paper's; of what has one number a head.
_GATE, _HEAD, _CONSTANT = 0.5, -0.5, 0.0


def gd0(tables: Tables, criterion: dict) -> Judgement:
    """A factor in front of the RMSNorm of the read acts through epsilon alone."""
    limits = criterion["thresholds"]
    parts = []
    for stat, name in _DIFFER.items():
        parts.append(at_most(f"epsilon 0: what a factor changes of {name} in six steps, relative",
                             found.largest_difference(tables, stat, "factor", eps=0.0),
                             limits["exact"], "without epsilon"))  # fmt: skip
    for stat, name in _DIFFER.items():
        parts.append(at_most(f"epsilon times the factor's square: what is left of that in {name}",
                             found.largest_difference(tables, stat, "rescaled"),
                             limits["exact"], "a factor is a smaller epsilon"))  # fmt: skip
    parts.append(at_least("exponent of epsilon in the change of the first gradient",
                          found.growth_with_eps(tables), limits["growth"],
                          "grows with epsilon"))  # fmt: skip
    return judgement(criterion, parts)


def gd12(tables: Tables, criterion: dict) -> Judgement:
    """Exponents of the width at initialisation under the paper's recipe, against SP."""
    limits = criterion["thresholds"]
    parts, contrast = [], []
    for quantity, (_, tensor, derived) in DERIVED.items():
        group = f"{quantity} of short memories" if tensor.endswith(".short") else quantity
        values = found.of_quantity(tables, quantity, "PAPER")
        parts.append(_near(f"{group}: exponent", values, derived, limits["margin"], group))
        if quantity not in _ALIKE_IN_SP:
            gap = (found.of_quantity(tables, quantity, "SP") - derived).abs()
            contrast.append(at_least(f"SP, {group}: |exponent − derived|", gap,
                                     limits["contrast"], group))  # fmt: skip
    of_read = {"S": "gdn.state", "o": "gdn.read"}
    for quantity, tensor in of_read.items():
        values = found.exponents(tables, "size", tensor, arm="SIZES_PAPER")
        parts.append(_near(f"{quantity} of all heads: exponent", values, DERIVED[quantity][2],
                           limits["margin"], "S and o of all heads", ours=True))  # fmt: skip
    for quantity, tensor in of_read.items():
        values = found.exponents(tables, "size", f"{tensor}.long", arm="SIZES_PAPER")
        parts.append(at_least(f"{quantity} of long memories: exponent", values, limits["long"],
                              "S and o of long memories fall less", ours=True))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def gd13(tables: Tables, criterion: dict) -> Judgement:
    """How far SGD moves the gates, with few tokens in the batch for the width and with many."""
    limits, parts = criterion["thresholds"], []
    margin = limits["margin"]
    for sequences, batch in _BATCHES.items():
        first, tenth = f"{batch}, first step", f"{batch}, ten steps"
        for name, tensor in GATES.items():
            constant = found.of_step(tables, "change", tensor, sequences)
            scaled = found.of_ten(tables, tensor, "SCALED", sequences, step=1)
            parts += [
                _near(f"{first}: exponent of {name}, constant LR", constant, _GATE, margin, first),
                _near(f"{first}: exponent of {name}, LR m^-1/2", scaled, _CONSTANT, margin, first),
            ]
            for lr, said, derived in (("CONSTANT", "constant LR", _GATE),
                                      ("SCALED", "LR m^-1/2", _CONSTANT)):  # fmt: skip
                values = found.of_ten(tables, tensor, lr, sequences)
                parts.append(_near(f"{tenth}: exponent of {name}, {said}", values, derived, margin,
                                   tenth))  # fmt: skip
        values = found.of_step(tables, "change", "gdn.a_log", sequences)
        parts.append(_near(f"{first}: exponent of Δa_log, constant LR", values, _HEAD, margin,
                           "a_log"))  # fmt: skip
    # One number a head: with many tokens, of few models, ten steps would leave too much to chance.
    values = found.of_ten(tables, "gdn.a_log", "SCALED", FEW)
    parts.append(_near("few tokens, ten steps: exponent of Δa_log, LR m^1/2", values, _CONSTANT,
                       margin, "a_log"))  # fmt: skip
    for name, tensor in GATES.items():
        for sequences, batch in _BATCHES.items():
            values = found.of_step(tables, "own", tensor, sequences)
            parts.append(_near(f"{batch}: exponent of a token's own part of {name}", values, _GATE,
                               margin, "a token's own part as derived", ours=True))  # fmt: skip
        few, many = (found.of_step(tables, "change", tensor, each) for each in (FEW, MANY))
        parts.append(at_least(f"exponent of {name}, constant LR: few tokens less many tokens",
                              few - many, limits["tokens"], "the batch decides",
                              ours=True))  # fmt: skip
    return judgement(criterion, parts)


def _near(name: str, values, derived: float, margin: float, group: str, **more) -> Part:
    """Within ``margin`` of what is derived."""
    return within(name, values, derived - margin, derived + margin, group, **more)
