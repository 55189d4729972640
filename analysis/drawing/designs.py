"""Looks of the designs of scale vectors (second paper), the same in every figure of them."""

from __future__ import annotations

# By design: colour, name, marker. Designs have colours of their own: none of these is an arm's.
LOOKS = {
    "none": ("#222222", "none", "o"), "final": ("#888888", "final only", "X"),
    "standard": ("#332288", "standard", "s"), "hg": ("#117733", "HG", "P"),
    "ap": ("#3FA7C9", "AP", "^"), "dp": ("#999933", "DP", "D"), "dnp": ("#CC6677", "DNP", "p"),
    "gemma": ("#B8860B", "Gemma's norms", "h"), "or": ("#AA4499", "OR", "o"),
    "er": ("#661100", "ER", "v"), "unified": ("#DDAA33", "unified", "*"),
    "scalar": ("#7F6BB0", "one number", "d"), "frozen": ("#6B8E6B", "frozen", "H"),
}  # fmt: skip
# Of optimizers, where a figure sets them apart: neither has the colour of a design or an arm.
OPTIMIZERS = {"Muon": "#00796B", "AdamW": "#D1495B"}
