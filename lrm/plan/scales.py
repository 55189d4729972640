"""The names of the scales, from the smallest to the paper's."""

from __future__ import annotations

SCALES = ("smoke", "tiny", "mini", "small", "paper")
