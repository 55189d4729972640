"""What would count for each claim: ``criteria.yaml`` beside the experiment that decides it.

Claims that no experiment decides stand with the benchmark, in ``lrm/bench/criteria.yaml``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lrm
from analysis.tables.find import EXPERIMENTS
from lrm.errors import UserError
from lrm.plan.claims import criteria_in
from lrm.plan.experiment import load
from lrm.plan.identity import read_locks
from lrm.plan.yaml import read_yaml

BENCH = Path(lrm.__file__).parent / "bench" / "criteria.yaml"


def criteria_of(experiment: str) -> dict[str, dict[str, Any]]:
    """The entries of ``experiments/<experiment>/criteria.yaml`` by claim; none without the file.

    Raises UserError for an entry that names another experiment.
    """
    folder = EXPERIMENTS / experiment
    criteria = criteria_in(folder)
    for claim, criterion in criteria.items():
        if criterion.get("experiment") != experiment:
            raise UserError(
                f"{folder / 'criteria.yaml'}: {claim}: write experiment: {experiment} in it; a "
                "copy of an experiment needs neither criteria.yaml nor locks.json: delete both"
            )
    return criteria


def locks_of(experiment: str) -> dict[str, dict[str, Any]]:
    """What beside its entry judges each claim of an experiment that has a lock, by claim."""
    return read_locks(EXPERIMENTS / experiment)


def every_criterion() -> dict[str, dict[str, Any]]:
    """All entries by claim, in the order in which they are published.

    Experiments come in the order of the number ``order`` in their YAML, those without one last,
    then the benchmark. Raises UserError where two files have the same claim.
    """
    headers = {path.parent.name: load(path).header for path in EXPERIMENTS.glob("*/config.yaml")}

    def place(name: str) -> tuple[float, str]:
        order = headers[name].order
        return math.inf if order is None else order, name

    criteria: dict[str, dict[str, Any]] = {}
    for name in sorted(headers, key=place):
        own = criteria_of(name)
        for claim in criteria.keys() & own.keys():
            other = criteria[claim]["experiment"]
            raise UserError(f"{claim}: experiments {other} and {name} have a claim of that name; "
                            "rename one")  # fmt: skip
        criteria |= own
    return criteria | read_yaml(BENCH)
