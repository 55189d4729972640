"""Which experiments and runs a command line asks for, and whether these can be had."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lrm.cli import parse_seeds
from lrm.errors import UserError, shown
from lrm.plan.experiment import Experiment, NoSuchRun, load, matches_any
from lrm.plan.run import Run


def by_folder(options: argparse.Namespace) -> dict[Path, argparse.Namespace]:
    """By folder of an experiment the options, with those patterns of ``--only`` that are for it.

    Experiments of which no pattern selects a run are left out, and told. Raises UserError for a
    search, and for a pattern that selects nothing of the experiment, or of any, that it is for.
    """
    folders = dict.fromkeys(folder.resolve() for folder in options.folders)
    names = {folder.name for folder in folders}
    experiments = {folder: no_search(load(folder / "config.yaml")) for folder in folders}
    for pattern in options.only:
        if "/" in pattern and pattern.partition("/")[0] not in names:
            raise UserError(f"--only {shown(pattern)}: before the slash stands the name of one of "
                            f"the experiments: {', '.join(sorted(names))}")  # fmt: skip
    found, of_none = {}, [pattern for pattern in options.only if "/" not in pattern]
    for folder, experiment in experiments.items():
        own = [pattern.removeprefix(f"{folder.name}/") for pattern in options.only]
        own = [pattern for pattern in own if "/" not in pattern]
        addressed = [pattern for pattern in own if pattern not in options.only]
        given = argparse.Namespace(**{**vars(options), "only": own})
        given.only = _selecting(experiment, given, addressed)
        of_none = [pattern for pattern in of_none if pattern not in given.only]
        if given.only or not own:
            found[folder] = given
    if of_none:
        said = " ".join(f"--only {shown(pattern)}" for pattern in of_none)
        raise NoSuchRun(f"{said} selects no run of {', '.join(sorted(names))}", of_none)
    for folder in experiments:
        if folder not in found:
            print(f"{folder.name}: none of its runs is asked for")
    return found


def _selecting(
    experiment: Experiment, options: argparse.Namespace, addressed: Sequence[str]
) -> list[str]:
    """The patterns without those that select no run; UserError where one is ``addressed`` to it."""
    left = [*options.only]
    while left:
        try:
            experiment.runs(options.scale, parse_seeds(options.seeds), options.set, left)
            break
        except NoSuchRun as error:
            if any(pattern in addressed for pattern in error.patterns):
                raise NoSuchRun(f"{experiment.name}: {error}", error.patterns) from None
            left = [pattern for pattern in left if pattern not in error.patterns]
    return left


def no_search(experiment: Experiment, by_itself: bool = False) -> Experiment:
    """``experiment``; UserError where it is a search, whose runs follow from what it finds.

    ``by_itself``: its own ``run.py`` was called.
    """
    if experiment.header.search is not None:
        if by_itself:
            raise UserError(
                f"{experiment.name} is a search, but its run.py is not that of one; copy "
                "experiments/tuning_search/run.py, or take search out of config.yaml"
            )
        raise UserError(f"{experiment.name} is a search; run python experiments/"
                        f"{experiment.name}/run.py")  # fmt: skip
    return experiment


def check_sources(runs: Sequence[Run], options: argparse.Namespace) -> None:
    """UserError where a run begins with what one has found that is neither finished nor asked for.

    An evaluation reads the run that it is of, and ``after`` names others.
    """
    asked = {run.label for run in runs}
    lacking: dict[str, str] = {}
    for run in runs:
        if run.after is None or run.after.label in asked or run.is_finished(options.results):
            continue
        if not dataclasses.replace(run.after, corpus=run.corpus).is_finished(options.results):
            lacking[run.label] = run.after.label
    if lacking:
        first, source = next(iter(lacking.items()))
        more = f" (and {len(lacking) - 1} more like it)" if len(lacking) > 1 else ""
        wanted = dict.fromkeys(f"{one.rpartition(' ')[0]} *" for one in lacking.values())
        mine = [one for one in options.only if any(matches_any(label, [one]) for label in lacking)]
        raise UserError(
            f"{first}{more} reads what {source} has found, which has not finished; add "
            f"{' '.join(f'--only {shown(one)}' for one in wanted)}, or leave out "
            f"{' '.join(f'--only {shown(one)}' for one in mine)}"
        )
