"""The command line of every experiment: plan, train what is missing, or only show the plan.

``experiments/<name>/run.py`` is ``main(__file__)``; ``python -m lrm.sweep experiments/a
experiments/b`` trains several in one sweep, which leaves no worker idle between them. The planner
does not import torch, so that a call with nothing to do ends in about a second.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lrm import data
from lrm.cli import Display, Once, Parser, a_folder, counted, guarded, parse_seeds, positive
from lrm.errors import UserError, line_of, printable, shown
from lrm.plan.claims import asked_by, criteria_in
from lrm.plan.evaluation import harness_version
from lrm.plan.experiment import load, selecting_none
from lrm.plan.identity import criterion_hash, read_locks, weight_files
from lrm.plan.run import Run
from lrm.plan.schedule import batch_size_at
from lrm.store.files import make_folder
from lrm.store.rundir import damage, is_complete
from lrm.sweep import dry_run, machine, together, twins
from lrm.sweep.chosen import by_folder, check_sources, no_search
from lrm.sweep.cluster.settings import ENGINES, Cluster, read
from lrm.sweep.scheduler import sweep, sweep_together
from lrm.sweep.twins import Job

_SEEDS = "1"  # the number that is trained unless another is asked for
# Seconds; what is longer has to be asked for.
_DAY = 86400.0
# Tokens; to prepare more, the processes of a job should not wait.
_MANY = 1_000_000_000
# What torchrun tells each of its processes.
_TORCHRUN = {"RANK", "WORLD_SIZE"}


@dataclass(frozen=True)
class _Plan:
    """The jobs that are missing, and by directory what is wrong with finished runs."""

    missing: list[Job]
    damaged: dict[Path, str]

    def __add__(self, other: _Plan) -> _Plan:
        return _Plan(self.missing + other.missing, self.damaged | other.damaged)


def main(file: str, arguments: list[str] | None = None) -> None:
    """Run the experiment whose ``run.py`` is ``file``; exits with 2 on bad input.

    Started by ``torchrun``, every run is trained by all of its processes together.
    """
    folder = Path(file).resolve().parent
    parser = Parser(
        prog=f"python experiments/{folder.name}/run.py",
        description="Train the missing runs of this experiment; finished ones are kept.",
    )

    parser.add_argument(
        "--claim",
        action=Once,
        metavar="ID",
        help="what judges a claim: its seeds, and the runs that it reads",
    )

    def parsed() -> argparse.Namespace:
        return _parse(parser, arguments, folder.parents[1] / "results", folder)

    def by_workers() -> None:
        options = parsed()
        plan = _plan(folder, options)
        _submit(plan, options)
        _finish(plan, options)

    def by_torchrun() -> None:
        """The first process plans for all of them."""
        machine.check_places()
        from lrm.train import distributed

        with distributed.join() as group:
            plan = None
            if group.rank == 0:
                options = parsed()
                if options.cluster:
                    raise UserError("--cluster starts processes itself; call it without torchrun")
                if options.workers:
                    raise UserError("--workers has no use under torchrun, whose processes train "
                                    "each run together; leave it out")  # fmt: skip
                plan = _plan(folder, options, group.world), options.results / "data"
            plan, corpora = group.first(plan)
            _then_tell_damage(plan, lambda: sweep_together(plan.missing, corpora, group))

    guarded(by_torchrun if os.environ.keys() >= _TORCHRUN else by_workers, resumes=True)


def main_of_several(arguments: list[str] | None = None) -> None:
    """Run the experiments in the folders that are named first, together.

    A pattern such as ``projector/FPN*`` chooses runs of one of them. What no pattern chooses from
    is trained whole.

    Exits with 3 where some runs diverged, had bad input or are damaged: all others are trained
    then.
    """
    parser = Parser(
        prog="python -m lrm.sweep", description="Train the missing runs of experiments."
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="experiments/<name>"
    )

    def several() -> None:
        options = _parse(parser, arguments, Path("results"))
        if os.environ.keys() >= _TORCHRUN:
            raise UserError("torchrun trains one experiment at a time: experiments/<name>/run.py")
        asked = by_folder(options)
        plan, known = _Plan([], {}), _finished(asked)
        for folder, own in asked.items():
            plan += _plan(folder, own, known=known)
        if plan.missing and not options.cluster:
            runs = [run for run, _ in plan.missing]
            workers = options.workers or machine.default_workers(runs)
            _check_length(runs, workers, options.yes)
        _submit(plan, options)
        try:
            _finish(plan, options)
        except UserError as error:
            print(line_of(error), file=sys.stderr)
            raise SystemExit(3) from None

    guarded(several, resumes=True)


def _parse(
    parser: argparse.ArgumentParser,
    arguments: list[str] | None,
    results: Path,
    claims: Path | None = None,
) -> argparse.Namespace:
    """The options; ``claims`` is the folder of the experiment whose claims may be asked for."""
    add = parser.add_argument
    add("--scale", action=Once, default="tiny",
        help="smoke, tiny (default), mini, small or paper")  # fmt: skip
    add("--seeds", action=Once,
        help="a number of seeds (3: seeds 0 to 2; default 1) or a list (100-107,200)")  # fmt: skip
    add("--workers", type=positive, help="processes; default one a core or GPU")
    add("--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a setting, e.g. train.steps=200, which shortens all stages (repeatable)",
    )  # fmt: skip
    add("--only", metavar="PATTERN", action="append", default=[],
        help="only runs whose label matches, e.g. 'FPN*' (repeatable); of several experiments "
        "'projector/FPN*' is for one")  # fmt: skip
    add("--dry-run", action="store_true", help="show the plan, train nothing")
    add("--corpus", action="store_true", help="build the text that the runs read, train nothing")
    add("--yes", action="store_true", help="begin even if it takes more than a day without a GPU")
    add("--cluster", choices=ENGINES,
        help="train by jobs: of SLURM, or of this machine to try it out")  # fmt: skip
    add("--cluster-file", type=Path, metavar="FILE",
        help="what jobs ask for; default cluster.yaml, if there is one")  # fmt: skip
    add("--cluster-set", action="append", default=[], metavar="KEY=VALUE",
        help="override one of its settings, e.g. partition=gpu (repeatable)")  # fmt: skip
    add("--detach", action="store_true", help="do not wait for the jobs; make list shows them")
    add("--results", type=a_folder, default=results, help="folder of runs and corpora")
    options = parser.parse_args(arguments)
    if claims is not None and options.claim is not None:
        _ask_for_claim(options, claims)
    options.seeds = _SEEDS if options.seeds is None else options.seeds
    if options.dry_run and options.corpus:
        raise UserError("--dry-run builds nothing; leave out --corpus, or --dry-run")
    options.asked = _asked(options)
    return options


def _ask_for_claim(options: argparse.Namespace, folder: Path) -> None:
    """Set the seeds and patterns of ``options`` to those of a claim of this experiment."""
    seeds, only = asked_by(folder, options.claim, options.scale)
    if options.only or options.seeds is not None:
        raise UserError("--claim says which seeds and runs; leave out --seeds and --only")
    options.seeds, options.only = f"{','.join(map(str, seeds))},", only


def _asked(options: argparse.Namespace) -> Cluster | None:
    """What jobs are to ask for, where there are to be any."""
    if options.cluster:
        if options.workers:
            raise UserError(
                "--workers is for this machine; jobs have one for each of --cluster-set gpus=1, "
                "or without GPUs for each execution.threads of cpus=1"
            )
        return read(options.cluster, options.cluster_file, options.cluster_set)
    if options.cluster_file or options.cluster_set or options.detach:
        raise UserError("--cluster-file, --cluster-set and --detach are for jobs; add "
                        "--cluster slurm")  # fmt: skip
    return None


def _submit(plan: _Plan, options: argparse.Namespace) -> None:
    """Ask a cluster for jobs, if one is to train."""
    if plan.missing and options.cluster:
        from lrm.sweep.cluster import submit

        submit.submit(plan.missing, options.results, options.cluster, options.asked)


def _finish(plan: _Plan, options: argparse.Namespace) -> None:
    """Train what is missing, or wait for the cluster that does.

    Raises UserError where runs failed, or are damaged: once the others are trained.
    """
    trains = bool(plan.missing) and not options.detach
    _then_tell_damage(plan, lambda: _train(plan.missing, options) if trains else None)


def _train(missing: list[Job], options: argparse.Namespace) -> None:
    if options.cluster:
        from lrm.sweep.cluster import submit

        submit.wait(missing, options.results)
    else:
        workers = options.workers or machine.default_workers([run for run, _ in missing])
        sweep(missing, options.results / "data", workers)
    folders = ", ".join(sorted({str(path.parent) for _, path in missing}))
    they = "it lies" if len(missing) == 1 else "they lie"
    print(f"trained {counted(len(missing), 'run')}; {they} in {folders} (make list shows them, "
          "make help says what can be drawn)")  # fmt: skip


def _then_tell_damage(plan: _Plan, train: Callable[[], None]) -> None:
    """Call ``train``, and raise UserError with what went wrong in it and what is damaged."""
    told = []
    try:
        train()
    except UserError as error:
        if not plan.damaged:
            raise
        told.append(str(error))
    if plan.damaged:
        first, *more = plan.damaged
        told.append(plan.damaged[first])
        if more:
            told.append(f"damaged as well: {', '.join(map(str, more))}")
        raise UserError("; ".join(told))


def _check_length(runs: list[Run], workers: int, agreed: bool) -> None:
    """UserError where a machine without a GPU would be busy for over a day, unless ``agreed``.

    Of runs that compute the same one counts, as far as their ids tell.
    """
    alike = {twins.kind(run) if run.has_id else number: run for number, run in enumerate(runs)}
    seconds = sum(run.estimate().seconds for run in alike.values()) / workers
    if seconds > _DAY and not agreed and not machine.gpus():
        raise UserError(
            f"{len(runs)} runs would take {dry_run.duration(seconds)} or more on this machine, "
            "which has no GPU; use --yes (of make: YES=1) to begin, or look at --dry-run"
        )


def _finished(asked: Mapping[Path, argparse.Namespace]) -> list[Job]:
    """What of several experiments is finished already, with the directories."""
    jobs: list[Job] = []
    for folder, options in asked.items():
        experiment, results = load(folder / "config.yaml"), options.results
        seeds = parse_seeds(options.seeds)
        runs = experiment.runs(options.scale, seeds, options.set, options.only)
        runs = with_corpora(runs, results / "data", build=False)
        jobs += [(run, run.path(results)) for run in runs if run.has_id]
    return [job for job in jobs if is_complete(job[1]) and damage(job[1]) is None]


def _plan(
    folder: Path, options: argparse.Namespace, processes: int = 0, known: Sequence[Job] = ()
) -> _Plan:
    """The runs to train, with their directories; none in a dry run, which prints the plan.

    Builds and verifies their corpora; with ``--corpus`` that is all. ``processes`` are to train
    each run together, one run at a time; 0 stands for workers. What one of ``known``, runs of other
    experiments, has computed is copied. Finished runs that are damaged are told, and so are runs
    that would begin with them.
    """
    experiment = no_search(load(folder / "config.yaml"), by_itself=True)
    experiment.check_names()
    runs = experiment.runs(options.scale, parse_seeds(options.seeds), options.set, options.only)
    if left_out := selecting_none([run.label for run in runs], options.only):
        print(f"there are no runs {', '.join(map(shown, left_out))} at {options.scale}")
    if untuned := experiment.untuned(options.scale):
        print(f"left out of {experiment.name}, as no search has tuned them at {options.scale}: "
              f"{', '.join(untuned)}")  # fmt: skip
    runs = _with_criteria(runs, folder)
    check_inputs(runs, here=not options.cluster)
    results, corpora = options.results, options.results / "data"
    runs = with_corpora(runs, corpora, build=False)
    check_sources(runs, options)
    if options.cluster and any(run.execution.parallel for run in runs):
        raise UserError("--cluster trains each run by one process; for execution.parallel call "
                        "torchrun in a job, as lrm/sweep/cluster/README.md shows")  # fmt: skip
    if options.dry_run:
        print(dry_run.text(experiment, runs, results))
        if options.cluster:
            print(dry_run.of_cluster(runs, results, options.asked))
        return _Plan([], {})
    if options.corpus:
        built = {run.corpus for run in with_corpora(runs, corpora, build=True)} - {None}
        verify_corpora(runs, corpora)
        where = f"is in {corpora}: {', '.join(sorted(built))}" if built else "is no corpus"
        print(f"what the runs of {experiment.name} read {where}")
        return _Plan([], {})
    if processes and machine.gpus():
        for run in runs:
            if not run.has_id and (run.settings.data.tokens or 0) > _MANY:
                raise UserError("the corpus is not built yet, and all GPUs would wait for it; call "
                                "the same without torchrun, with --corpus")  # fmt: skip
    _check_batches(runs, processes or 1)
    unfinished = [run for run in runs if not run.is_finished(results)]
    if any(run.kind == "evaluation" for run in unfinished):
        harness_version()  # else it would be missed after the training
    if processes:
        machine.check_memory_of_one(unfinished, processes)
        _check_length(unfinished, processes, options.yes)
    elif not options.cluster:
        workers = options.workers or machine.default_workers(runs)
        at_once = max(map(together.most, unfinished), default=1)
        machine.check_memory(unfinished, workers, at_once)
        _check_length(unfinished, workers, options.yes)
    jobs = [(run, run.path(results)) for run in with_corpora(runs, corpora, build=True)]
    damaged = {path: str(error) for _, path in jobs if (error := damage(path)) is not None}
    sound = [job for job in jobs if job[1] not in damaged]
    copied = twins.copy_finished([*known, *sound])
    missing = [job for job in sound if not is_complete(job[1])]
    kept = len(sound) - len(missing)
    missing = [job for job in missing if twins.source(*job) not in damaged]
    alike = f" ({copied} copied from others that compute the same)" if copied else ""
    harmed = f", {len(damaged)} damaged" if damaged else ""
    print(f"{experiment.name} at {options.scale}: {len(missing)} to train, "
          f"{kept} finished{alike}{harmed}")  # fmt: skip
    for line in damaged.values():
        print(printable(line))
    if waiting := len(sound) - kept - len(missing):
        print(f"{counted(waiting, 'run')} left out, as what they begin with is damaged")
    if missing:
        verify_corpora([run for run, _ in missing], corpora)
        make_folder(results / "runs" / experiment.name)
    return _Plan(missing, damaged)


def check_inputs(runs: list[Run], here: bool = True) -> None:
    """Tell of a device or a file that is not there before anything is built.

    Of devices only where the runs are trained ``here``.
    """
    if here:
        machine.check_devices(runs)
    for start in {run.settings.train.start for run in runs} - {None}:
        weight_files(Path(start))
    for key in {_corpus_of(run) for run in runs if run.reads_corpus}:
        data.check(*key)


def _check_batches(runs: list[Run], processes: int) -> None:
    """Raise UserError where a batch, at any stage, cannot be shared out over ``processes``.

    Also where a run asks for another number of them.
    """
    for run in filter(lambda run: run.trains, runs):
        if run.execution.parallel is not None:
            run.execution.parallel.check(processes)
        schedule, train = run.settings.schedule, run.settings.train
        for step in (0, *(stage.until_step for stage in schedule.batch_ramp)):
            data.rows_of_each(batch_size_at(schedule, train.batch_size, step), processes)


def verify_corpora(runs: list[Run], corpora: Path) -> None:
    """Read every token of the runs' corpora; UserError where a file is damaged."""
    for key in {_corpus_of(run) for run in runs if run.reads_corpus}:
        data.verify(data.prepare(*key, corpora, _print_progress))


def _corpus_of(run: Run) -> tuple:
    """What tells its corpus from others: the settings of the data, and the vocabulary's size."""
    return run.settings.data, run.settings.model.vocab_size


def with_corpora(runs: list[Run], corpora: Path, build: bool) -> list[Run]:
    """The runs with their corpus hash; with ``build``, corpora that are missing are made."""
    hashes: dict[tuple, str | None] = {}
    for key in dict.fromkeys(_corpus_of(run) for run in runs if run.reads_corpus):
        hashes[key] = data.identity(*key, corpora)
        if hashes[key] is None and build:
            folder, display = make_folder(corpora), Display(["corpus"])
            hashes[key] = data.prepare(*key, folder, _print_progress, display).hash
    return [
        dataclasses.replace(run, corpus=hashes[_corpus_of(run)]) if run.reads_corpus else run
        for run in runs
    ]


def _print_progress(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _with_criteria(runs: list[Run], folder: Path) -> list[Run]:
    """Note in each run the hash of every criterion that it will be judged by."""
    criteria, locks = criteria_in(folder), read_locks(folder)
    hashes = {claim: criterion_hash(one, locks.get(claim)) for claim, one in criteria.items()}
    return [dataclasses.replace(run, criteria=hashes) for run in runs] if hashes else runs
