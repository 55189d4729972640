"""Looks of the designs of scale vectors (second paper), the same in every figure of them."""

from __future__ import annotations

from analysis.drawing.style import ARM_LOOKS

_SCALAR = (ARM_LOOKS["SPN"]["color"], "one number", ARM_LOOKS["SPN"]["marker"])
# By design: colour, name, marker. Designs have colours of their own: none of these is an arm's, but
# one number for each matrix, which is the main paper's scalar multiplier.
LOOKS = {
    "none": ("#222222", "none", "o"), "final": ("#888888", "final only", "X"),
    "standard": ("#332288", "standard", "s"), "hg": ("#117733", "HG", "P"),
    "ap": ("#3FA7C9", "AP", "^"), "dp": ("#999933", "DP", "D"), "dnp": ("#7F6BB0", "DNP", "p"),
    "gemma": ("#B8860B", "Gemma's norms", "h"), "or": ("#AA4499", "OR", "o"),
    "er": ("#661100", "ER", "v"), "unified": ("#DDAA33", "unified", "*"),
    "scalar": _SCALAR, "frozen": ("#6B8E6B", "frozen", "H"),
}  # fmt: skip
# Of optimizers, where a figure sets them apart: neither has the colour of a design or an arm.
OPTIMIZERS = {"Muon": "#00796B", "AdamW": "#8A4B2A"}
