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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lrm import data
from lrm.cli import Display, guarded, parse_seeds, positive
from lrm.errors import UserError, line_of, printable, shown
from lrm.plan.claims import asked_by
from lrm.plan.experiment import NoSuchRun, load
from lrm.plan.identity import criterion_hash, read_locks, weight_files
from lrm.plan.run import Run
from lrm.plan.schedule import batch_size_at
from lrm.plan.yaml import read_yaml
from lrm.store.files import make_folder
from lrm.store.rundir import is_complete, read_description, read_outcome
from lrm.sweep import dry_run, machine, together, twins
from lrm.sweep.cluster.settings import ENGINES, Cluster, read
from lrm.sweep.scheduler import sweep, sweep_together
from lrm.sweep.twins import Job

_SEEDS = "1"  # the number that is trained unless another is asked for
# Seconds; what is longer has to be asked for.
_DAY = 86400.0
# What torchrun tells each of its processes.
_TORCHRUN = {"RANK", "WORLD_SIZE"}


def main(file: str, arguments: list[str] | None = None) -> None:
    """Run the experiment whose ``run.py`` is ``file``; exits with 2 on bad input.

    Started by ``torchrun``, every run is trained by all of its processes together.
    """
    folder = Path(file).resolve().parent
    parser = argparse.ArgumentParser(
        prog=f"python experiments/{folder.name}/run.py",
        description="Train the missing runs of this experiment; finished ones are kept.",
    )

    parser.add_argument(
        "--claim", metavar="ID", help="what judges a claim: its seeds, and the runs that it reads"
    )

    def parsed() -> argparse.Namespace:
        options = _parse(parser, arguments, folder.parents[1] / "results")
        if options.claim is not None:
            _ask_for_claim(options, folder)
        return options

    def by_workers() -> None:
        options = parsed()
        missing = _missing(folder, options)
        _submit(missing, options)
        _finish(missing, options)

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
                plan = _missing(folder, options, group.world), options.results / "data"
            missing, corpora = group.first(plan)
            sweep_together(missing, corpora, group)

    guarded(by_torchrun if os.environ.keys() >= _TORCHRUN else by_workers)


def main_of_several(arguments: list[str] | None = None) -> None:
    """Run the experiments in the folders that are named first, together.

    A pattern such as ``projector/FPN*`` chooses runs of one of them. What no pattern chooses from
    is trained whole.

    Exits with 3 where some runs diverged or had bad input: all others are trained then.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lrm.sweep", description="Train the missing runs of experiments."
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="experiments/<name>"
    )

    def several() -> None:
        options = _parse(parser, arguments, Path("results"))
        if os.environ.keys() >= _TORCHRUN:
            raise UserError("torchrun trains one experiment at a time: experiments/<name>/run.py")
        asked = _by_folder(options)
        missing, known = [], _finished(asked)
        absent: list[NoSuchRun] = []
        for folder, own in asked.items():
            try:
                missing += _missing(folder, own, known=known)
            except NoSuchRun as error:
                absent.append(error)
        if len(absent) == len(asked):
            raise absent[0]
        _submit(missing, options)
        try:
            _finish(missing, options)
        except UserError as error:
            print(line_of(error), file=sys.stderr)
            raise SystemExit(3) from None

    guarded(several)


def _parse(
    parser: argparse.ArgumentParser, arguments: list[str] | None, results: Path
) -> argparse.Namespace:
    add = parser.add_argument
    add("--scale", default="tiny", help="smoke, tiny (default), mini, small or paper")
    add("--seeds", default=_SEEDS,
        help="a number of seeds (3: seeds 0 to 2) or a list (100-107,200)")  # fmt: skip
    add("--workers", type=positive, help="processes; default one a core or GPU")
    add("--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a setting, e.g. train.steps=200, which shortens all stages (repeatable)",
    )  # fmt: skip
    add("--only", metavar="PATTERN", action="append", default=[],
        help="only runs whose label matches, e.g. 'FPN*' (repeatable); of several experiments "
        "'projector/FPN*' is for one")  # fmt: skip
    add("--dry-run", action="store_true", help="show the plan, train nothing")
    add("--yes", action="store_true", help="begin even if it takes more than a day without a GPU")
    add("--cluster", choices=ENGINES,
        help="train by jobs: of SLURM, or of this machine to try it out")  # fmt: skip
    add("--cluster-file", type=Path, metavar="FILE",
        help="what jobs ask for; default cluster.yaml, if there is one")  # fmt: skip
    add("--cluster-set", action="append", default=[], metavar="KEY=VALUE",
        help="override one of its settings, e.g. partition=gpu (repeatable)")  # fmt: skip
    add("--detach", action="store_true", help="do not wait for the jobs; make list shows them")
    add("--results", type=Path, default=results, help="folder of runs and corpora")
    options = parser.parse_args(arguments)
    options.asked = _asked(options)
    return options


def _ask_for_claim(options: argparse.Namespace, folder: Path) -> None:
    """Set the seeds and patterns of ``options`` to those of a claim of this experiment."""
    seeds, only = asked_by(folder, options.claim)
    if options.only or options.seeds != _SEEDS:
        raise UserError("--claim says which seeds and runs; leave out --seeds and --only")
    options.seeds, options.only = f"{','.join(map(str, seeds))},", only


def _asked(options: argparse.Namespace) -> Cluster | None:
    """What jobs are to ask for, where there are to be any."""
    if options.cluster:
        return read(options.cluster, options.cluster_file, options.cluster_set)
    if options.cluster_file or options.cluster_set or options.detach:
        raise UserError("--cluster-file, --cluster-set and --detach are for jobs; add "
                        "--cluster slurm")  # fmt: skip
    return None


def _submit(missing: list[Job], options: argparse.Namespace) -> None:
    """Ask a cluster for jobs, if one is to train."""
    if missing and options.cluster:
        from lrm.sweep.cluster import submit

        submit.submit(missing, options.results, options.cluster, options.asked)


def _finish(missing: list[Job], options: argparse.Namespace) -> None:
    """Train what is missing, or wait for the cluster that does."""
    if not missing or options.detach:
        return
    runs = [run for run, _ in missing]
    if options.cluster:
        from lrm.sweep.cluster import submit

        submit.wait(missing, options.results)
    else:
        workers = options.workers or machine.default_workers(runs)
        sweep(missing, options.results / "data", workers)
    folders = ", ".join(sorted({str(path.parent) for _, path in missing}))
    print(f"trained {len(missing)} runs; they lie in {folders} (make list shows them, "
          "make help says what can be drawn)")  # fmt: skip


def _check_length(runs: list[Run], workers: int, agreed: bool) -> None:
    """UserError where a machine without a GPU would be busy for over a day, unless ``agreed``."""
    seconds = sum(run.estimate().seconds for run in runs) / workers
    if seconds > _DAY and not agreed and not machine.gpus():
        raise UserError(
            f"{len(runs)} runs would take {dry_run.duration(seconds)} or more on this machine, "
            "which has no GPU; use --yes (of make: YES=1) to begin, or look at --dry-run"
        )


def _by_folder(options: argparse.Namespace) -> dict[Path, argparse.Namespace]:
    """By folder of an experiment the options, with those patterns of ``--only`` that are for it."""
    folders = dict.fromkeys(folder.resolve() for folder in options.folders)
    names = {folder.name for folder in folders}
    for pattern in options.only:
        if "/" in pattern and pattern.partition("/")[0] not in names:
            raise UserError(f"--only {shown(pattern)}: before the slash stands the name of one of "
                            f"the experiments: {', '.join(sorted(names))}")  # fmt: skip
    found = {}
    for folder in folders:
        own = [pattern.removeprefix(f"{folder.name}/") for pattern in options.only]
        own = [pattern for pattern in own if "/" not in pattern]
        found[folder] = argparse.Namespace(**{**vars(options), "only": own})
    return found


def _finished(asked: Mapping[Path, argparse.Namespace]) -> list[Job]:
    """What of several experiments is finished already, with the directories."""
    jobs: list[Job] = []
    for folder, options in asked.items():
        experiment, results = load(folder / "config.yaml"), options.results
        if experiment.header.search is not None:
            continue
        with suppress(NoSuchRun):
            seeds = parse_seeds(options.seeds)
            runs = experiment.runs(options.scale, seeds, options.set, options.only)
            runs = with_corpora(runs, results / "data", build=False)
            jobs += [(run, run.path(results)) for run in runs if run.has_id]
    return [job for job in jobs if is_complete(job[1])]


def _missing(
    folder: Path, options: argparse.Namespace, processes: int = 0, known: Sequence[Job] = ()
) -> list[Job]:
    """The runs to train, with their directories; none in a dry run, which prints the plan.

    Builds and verifies their corpora. ``processes`` are to train each run together, one run at a
    time; 0 stands for workers. What one of ``known``, runs of other experiments, has computed is
    copied.
    """
    experiment = load(folder / "config.yaml")
    if experiment.header.search is not None:
        raise UserError(f"{experiment.name} is a search; run python experiments/"
                        f"{experiment.name}/run.py")  # fmt: skip
    runs = experiment.runs(options.scale, parse_seeds(options.seeds), options.set, options.only)
    if untuned := experiment.untuned(options.scale):
        print(f"left out of {experiment.name}, as no search has tuned them at {options.scale}: "
              f"{', '.join(untuned)}")  # fmt: skip
    runs = _with_criteria(runs, folder / "criteria.yaml")
    check_inputs(runs, here=not options.cluster)
    results, corpora = options.results, options.results / "data"
    runs = with_corpora(runs, corpora, build=False)
    if options.dry_run:
        print(dry_run.text(experiment, runs, results))
        if options.cluster:
            print(dry_run.of_cluster(runs, results, options.asked))
        return []
    if options.cluster and any(run.execution.parallel for run in runs):
        raise UserError("--cluster trains each run by one process; for execution.parallel call "
                        "torchrun in a job, as lrm/sweep/cluster/README.md shows")  # fmt: skip
    _check_batches(runs, processes or 1)
    unfinished = [run for run in runs if not run.is_finished(results)]
    if processes:
        machine.check_memory_of_one(unfinished, processes)
        _check_length(unfinished, processes, options.yes)
    elif not options.cluster:
        workers = options.workers or machine.default_workers(runs)
        at_once = max(map(together.most, unfinished), default=1)
        machine.check_memory(unfinished, workers, at_once)
        _check_length(unfinished, workers, options.yes)
    jobs = [(run, run.path(results)) for run in with_corpora(runs, corpora, build=True)]
    copied = twins.copy_finished([*known, *jobs])
    missing = [job for job in jobs if not _has_finished(job[1])]
    kept = len(jobs) - len(missing)
    alike = f" ({copied} copied from others that compute the same)" if copied else ""
    print(f"{experiment.name} at {options.scale}: {len(missing)} to train, "
          f"{kept} finished{alike}")  # fmt: skip
    if missing:
        verify_corpora([run for run, _ in missing], corpora)
        make_folder(results / "runs" / experiment.name)
    return missing


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


def _has_finished(path: Path) -> bool:
    """Whether the run in ``path`` has; raises UserError where what it left is damaged."""
    if not is_complete(path):
        return False
    read_description(path), read_outcome(path)
    return True


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


def _with_criteria(runs: list[Run], path: Path) -> list[Run]:
    """Note in each run the hash of every criterion that it will be judged by."""
    if not path.exists():
        return runs
    locks = read_locks(path.parent)
    hashes = {
        claim: criterion_hash(criterion, locks.get(claim))
        for claim, criterion in read_yaml(path).items()
    }
    return [dataclasses.replace(run, criteria=hashes) for run in runs]
