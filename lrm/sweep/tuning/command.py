"""The command line of a search: run the trials that are missing, write what was found.

``experiments/tuning_search/run.py`` is ``main(__file__)``. The trials of all arms share the
workers. A search that was stopped goes on by the same command: its decisions are made again from
the log of its trials, which are not run twice.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from lrm.cli import Parser, a_folder, columns, guarded, positive, size
from lrm.errors import UserError, line_of, shown
from lrm.model.tensors import matches
from lrm.plan.experiment import Experiment, load, matches_any, selecting_none
from lrm.plan.run import TrainRun
from lrm.plan.search import Search, Stage
from lrm.plan.yaml import PRESETS
from lrm.store.digests import is_listed
from lrm.store.files import make_folder, write_atomic, write_listed
from lrm.store.lock import publishing
from lrm.sweep import machine
from lrm.sweep.command import check_inputs, verify_corpora, with_corpora
from lrm.sweep.dry_run import duration
from lrm.sweep.scheduler import sweep
from lrm.sweep.tuning.driver import ArmTuning, Tuning
from lrm.sweep.tuning.stages import ArmSearch, Trial
from lrm.sweep.tuning.trials import TrialLog


def main(file: str, arguments: list[str] | None = None) -> None:
    """Run the search whose ``run.py`` is ``file``; exits with 2 on bad input."""
    folder = Path(file).resolve().parent
    parser = Parser(
        prog=f"python experiments/{folder.name}/run.py",
        description="Search for hyperparameters; trials that have ended are kept.",
    )
    add = parser.add_argument
    add("--scale", default="tiny", help="smoke, tiny (default), mini, small or paper")
    add("--workers", type=positive, help="processes; default one a core or GPU")
    add("--only", metavar="PATTERN", action="append", default=[],
        help="only arms whose name matches, e.g. 'ADAM*' (repeatable)")  # fmt: skip
    add("--until", metavar="TIER", help="end with this tier; the whole search goes on from there")
    add("--results", type=a_folder, default=folder.parents[1] / "results", help="folder of runs")
    add("--presets", type=Path, default=PRESETS / "tuned", help="where --publish puts presets")
    add("--publish", action="store_true",
        help="publish the log, and have experiments use what is decided")  # fmt: skip
    add("--from-published", action="store_true",
        help="go on from the published log: its trials are not run again")  # fmt: skip
    add("--dry-run", action="store_true", help="show stages and cost, run nothing")
    guarded(lambda: _main(load(folder / "config.yaml"), parser.parse_args(arguments)),
            resumes=True)  # fmt: skip


def _main(experiment: Experiment, options: argparse.Namespace) -> None:
    scale, results = options.scale, options.results
    experiment.check_scale(scale)
    search = experiment.search(scale)
    arms = _arms(experiment, scale, options.only, options.until)
    bases = [_base(experiment, scale, arm) for arm in arms]
    arms = {base.arm: _fitting(search, arms[base.arm], base) for base in bases}
    check_inputs(bases)
    _check_names(experiment, search, scale)
    if options.dry_run:
        print(_plan(search, arms, bases))
        return
    workers = options.workers or machine.default_workers(bases)
    # The trials of one arm may be on all workers.
    machine.check_memory([base for base in bases for _ in range(workers)], workers)
    corpora = results / "data"
    bases = with_corpora(bases, corpora, build=True)
    verify_corpora(bases, corpora)
    make_folder(results / "runs" / experiment.name)
    folder = results / "tuning" / scale
    reference = results / "reference" / scale
    published = reference / f"{experiment.name}.jsonl"
    if options.from_published and not is_listed(published):
        raise UserError(f"--from-published: {published} is not there; leave the flag out")
    log = TrialLog(folder / published.name, published if options.from_published else None)
    tuning = Tuning([ArmTuning(experiment, base, arms[base.arm], log) for base in bases], results)
    first = tuning.first()
    there = {log.records[id]["arm"] for id in log.published}
    known = [arm for arm in tuning.arms if arm.name in there]
    strange = [arm.name for arm in known if not arm.goes_on]
    said = (f"of the trials of {', '.join(strange)} in {published} none is one that this search "
            "asks for: settings, text or versions of packages differ")  # fmt: skip
    if strange and len(strange) == len(known):
        raise UserError(f"--from-published: {said}; leave the flag out to begin anew")
    places = f"{log.path} and {published}" if options.from_published else log.path
    complete = not (options.only or options.until)
    if options.publish and not complete:
        _check_kept(log, published)  # before the trials, and not after them
    # Presets that others use lie in the tree, wherever the results do.
    shipped = PRESETS.parents[2] / "results" / "reference" / scale / published.name
    elsewhere = shipped.resolve() != published.resolve()
    if options.publish and options.presets.resolve() == (PRESETS / "tuned").resolve() and elsewhere:
        there = (path for arm in arms for path in (PRESETS / "tuned" / scale).glob(f"{arm}_*.yaml"))
        if is_listed(shipped) or any(there):
            raise UserError(f"--publish would replace presets of the search in {shipped.parent}; "
                            "leave --results out, or name another folder by "
                            "--presets")  # fmt: skip
    print(f"{experiment.name} at {scale}: {len(log.records)} trials in {places}", flush=True)
    if strange:
        print(f"{said}; they begin anew", flush=True)
    if is_listed(published) and (lost := log.lacks(published)):
        print(f"not begun from {lost} trials of {published}; --from-published does so", flush=True)

    def keep() -> None:
        log.complete()
        for name, text in tuning.presets():
            make_folder(folder)
            write_atomic(folder / f"{name}.yaml", text.encode())
        if options.publish:
            _publish(tuning, log, options.presets / scale, published, complete)

    try:
        sweep(first, corpora, workers, tuning.following)
    except BaseException:
        # What is decided stays decided, and what fails on the way out must not hide why.
        try:
            keep()
        except UserError as error:
            print(line_of(error), file=sys.stderr)
        raise
    keep()
    print("\n".join(_table(tuning)))
    for arm in tuning.arms:
        if not arm.finished:
            print(f"the search of {arm.name} has not ended: the same command goes on with it")


def _base(experiment: Experiment, scale: str, arm: str) -> TrainRun:
    """The run that an arm's trials change; UserError where shorter ones would have another LR."""
    base = TrainRun(experiment.name, scale, arm, {}, 0, *experiment.settings(scale, arm))
    if base.settings.optimizer.lr_power:
        raise UserError(
            f"{experiment.path}: {arm}: a search finds the LR of each length; leave out "
            "optimizer.lr_power"
        )
    return base


def _check_names(experiment: Experiment, search: Search, scale: str) -> None:
    """UserError where the search names tensors or arms that there are not."""
    for rule in ("first_stage_only", "only_changes"):
        for pattern in getattr(search, rule):
            if not fnmatch.filter(experiment.arms, pattern):
                raise UserError(
                    f"{experiment.path}: search.{rule} names {pattern!r}, which is no arm; "
                    f"there are {', '.join(experiment.arms)}"
                )
    names = [f"{arm}_{stage}" for arm in experiment.arms for stage in search.stages]
    for pattern in search.short_spread:
        if not fnmatch.filter(names, pattern):
            raise UserError(
                f"{experiment.path}: search.short_spread names {pattern!r}, which is no arm with a "
                f"stage; there are {names[0]} to {names[-1]}"
            )
    wanted = {(group, pattern) for group in search.groups for pattern in search.patterns(group)}
    for arm in experiment.arms_at(scale):
        plans = _base(experiment, scale, arm).plans
        wanted = {(group, pattern) for group, pattern in wanted
                  if not any(matches(pattern, plan.address) for plan in plans)}  # fmt: skip
        if not wanted:
            return
    group, pattern = min(wanted)
    raise UserError(
        f"{experiment.path}: search.groups.{group}: no tensor of any arm is {pattern!r}; correct "
        "it, or leave it out"
    )


def _arms(
    experiment: Experiment, scale: str, only: list[str], until: str | None = None
) -> dict[str, Mapping[str, Stage]]:
    """The arms to search, each with its stages up to ``until``."""
    search, there = experiment.search(scale), experiment.arms_at(scale)
    if until is not None and until not in search.stages:
        raise UserError(f"--until {shown(until)} is no tier; there are {', '.join(search.stages)}")
    for arm in (*search.trials_of, *search.trials_of.values()):
        if arm not in experiment.arms:
            raise UserError(
                f"{experiment.path}: search.trials_of: no arm {shown(arm)}; there are "
                f"{', '.join(experiment.arms)}"
            )
    names = list(search.stages)
    asked = names[: names.index(until) + 1] if until else names
    found = {}
    for arm in there:
        if not only or matches_any(arm, only):
            stages = search.stages_of(arm)
            found[arm] = {name: stages[name] for name in asked if name in stages}
    missed = selecting_none(there, only)
    if missed or not found:
        said = " ".join(f"--only {shown(pattern)}" for pattern in missed)
        raise UserError(f"{said} selects no arm; there are {', '.join(there)}")
    return found


def _fitting(search: Search, stages: Mapping[str, Stage], base: TrainRun) -> dict[str, Stage]:
    """The stages with the groups of which the arm has tensors, or multipliers."""
    fitting = {group for group in search.groups if search.has_multipliers(group)
               and any(plan.multipliers for plan in base.plans)}  # fmt: skip
    fitting |= {group for group in search.groups for pattern in search.patterns(group)
                if any(matches(pattern, plan.address) for plan in base.plans)}  # fmt: skip
    return {
        name: stage.model_copy(update={"groups": tuple(g for g in stage.groups if g in fitting)})
        for name, stage in stages.items()
    }


def _table(tuning: Tuning) -> list[str]:
    rows = [("arm", "trials", "base LR step", "kept")]
    for arm in tuning.arms:
        for decision in arm.search.decisions:
            name = f"{arm.name}_{decision.stage}"
            count = sum(record["stage"] == decision.stage for record in arm.records)
            kept = ", ".join(decision.point.said) or "nothing"
            rows.append((name, str(count), f"{decision.point.lr:+d}", kept))
    return columns(rows)


def _publish(tuning: Tuning, log: TrialLog, presets: Path, published: Path, complete: bool) -> None:
    """Put the presets of arms whose search has ended where YAML files find them, and the log.

    ``complete``: all arms and tiers were asked for. Raises UserError where a part of a search
    would replace trials that it lacks.
    """
    ended = [arm for arm in tuning.arms if arm.finished]
    whole = complete and len(ended) == len(tuning.arms)
    # A whole search replaces what is published of its own arms, and of no other.
    own = {arm.name for arm in tuning.arms} if whole else set()
    with publishing(published.parents[2]):
        log.read_again()
        _check_kept(log, published, own)
        _write(ended, log, presets, published)


def _write(ended: Sequence[ArmTuning], log: TrialLog, presets: Path, published: Path) -> None:
    """The log first: presets whose trials nobody can see would be the worse half."""
    texts = {}
    for arm in ended:
        for decision in arm.search.decisions:
            name, text = arm.preset(decision)
            file = presets / f"{name}.yaml"
            there = file.read_bytes() if file.exists() else b""
            if there.partition(b" SCALE=")[0] not in text.encode():
                raise UserError(f"{file} is of another search; give arm {arm.name} another name")
            texts[file] = text
    if log.records:
        make_folder(published.parent)
        write_listed(published.parent, {published.name: log.content()})
    for file, text in texts.items():
        write_atomic(make_folder(file.parent) / file.name, text.encode())
    if log.records:
        print(f"published {published}, and {presets} of {len(ended)} arms")


def _check_kept(log: TrialLog, published: Path, but_of: Collection[str] = ()) -> None:
    """UserError where a published log has trials that this one lacks, some arms left out."""
    if is_listed(published) and (lost := log.lacks(published, but_of)):
        raise UserError(f"{published} holds {lost} trials that are not in {log.path}; add "
                        "--from-published to go on from it")  # fmt: skip


def _plan(
    search: Search, arms: Mapping[str, Mapping[str, Stage]], bases: Sequence[TrainRun]
) -> str:
    """What the search may cost: where no change gains, and where every one does."""
    lines, total, disk = [], {False: 0.0, True: 0.0}, {False: 0, True: 0}
    for run, (name, stages) in zip(bases, arms.items(), strict=True):
        seconds, said = run.estimate().seconds, []
        for all_gain in (False, True):
            trials = _rehearsed(search, name, stages, all_gain)
            lengths = (1.0 if each.full else each.length or search.length for each in trials)
            cost = seconds * sum(lengths)
            total[all_gain] += cost
            disk[all_gain] += len(trials) * run.estimate().disk
            said.append(f"{len(trials)} trials, {duration(cost)}")
        lines.append(f"{name}: {', '.join(stages)}; {said[0]} if no change gains; "
                     f"{said[1]} if a factor of every group gains")  # fmt: skip
    run = bases[0]
    seconds = run.estimate().seconds
    hours, weights = (
        " to ".join(dict.fromkeys(map(said, (of[False], of[True]))))
        for of, said in ((total, duration), (disk, size))
    )
    lines.append(
        f"in all {hours} of {run.cost.machine} from an empty log, if a run of "
        f"{run.settings.train.steps} steps takes {duration(seconds)}; {weights} of weights on disk"
    )
    return "\n".join(lines)


def _rehearsed(
    search: Search, arm: str, stages: Mapping[str, Stage], all_gain: bool
) -> list[Trial]:
    """The trials that would be asked for if the best base LR were the arm's."""

    gaining = {(stage.tune, group): stage.changes.get(group, search.factors)[-1]
               for stage in stages.values() for group in stage.groups}  # fmt: skip

    def loss(trial: Trial) -> float:
        gain = sum(factor == gaining.get(change) for change, factor in trial.point.factors)
        return abs(trial.point.lr) + trial.seed % 7 * 1e-3 - all_gain * gain

    rehearsal = ArmSearch(search, stages, arm)
    asking = rehearsal.run()
    try:
        asked = next(asking)
        while True:
            asked = asking.send({trial: loss(trial) for trial in asked})
    except StopIteration:
        return list(rehearsal.losses)
