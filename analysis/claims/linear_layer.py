"""Judging function of WS5.2: the linear layer of table 1 in equilibrium, by more draws (4.2)."""

from __future__ import annotations

from analysis.claims.judging import Judgement
from analysis.claims.table1 import ws5
from analysis.tables.results import Tables


def ws5_2(tables: Tables, criterion: dict) -> Judgement:
    """What WS5 asks of layers, of new draws; the criterion has no threshold for models."""
    return ws5(tables, criterion)
