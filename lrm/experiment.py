"""The command line of every experiment: plan, train what is missing, or only show the plan.

``experiments/<name>/run.py`` is ``main(__file__)``; ``python -m lrm.experiment experiments/a
experiments/b`` trains several in one sweep, which leaves no worker idle between them. The planner
does not import torch, so that a call with nothing to do ends in about a second.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import sys
from pathlib import Path

from lrm import data
from lrm.compose import Experiment, Run, load, read_yaml
from lrm.cost import estimate
from lrm.display import Display, columns
from lrm.errors import UserError, ending
from lrm.products import products
from lrm.rules import resolve, table
from lrm.rundir import is_complete, make_folder, read_description, read_outcome
from lrm.schedule import batch_size_at
from lrm.sweep import default_workers, sweep, sweep_together

# What torchrun tells each of its processes.
_TOGETHER = {"RANK", "WORLD_SIZE"}


def main(file: str, arguments: list[str] | None = None) -> None:
    """Run the experiment whose ``run.py`` is ``file``; exits with 2 on bad input.

    Started by ``torchrun``, every run is trained by all of its processes together.
    """
    folder = Path(file).resolve().parent
    together = os.environ.keys() >= _TOGETHER
    guarded(lambda: (_main_together if together else _main)(folder, arguments))


def main_of_several(arguments: list[str] | None = None) -> None:
    """Run the experiments in the folders that are named first, together.

    Exits with 3 where some runs diverged or had bad input: all others are trained then.
    """
    guarded(lambda: _main_of_several(arguments))


def _main_of_several(arguments: list[str] | None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lrm.experiment", description="Train the missing runs of experiments."
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="experiments/<name>"
    )
    _add_options(parser, Path("results"))
    options = parser.parse_args(arguments)
    if os.environ.keys() >= _TOGETHER:
        raise UserError("torchrun trains one experiment at a time: experiments/<name>/run.py")
    folders = dict.fromkeys(folder.resolve() for folder in options.folders)
    missing = [job for folder in folders for job in _missing(folder, options)]
    try:
        _sweep(missing, options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(3) from None


def _parse(folder: Path, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python experiments/{folder.name}/run.py",
        description="Train the missing runs of this experiment; finished ones are kept.",
    )
    _add_options(parser, folder.parents[1] / "results")
    return parser.parse_args(arguments)


def _add_options(parser: argparse.ArgumentParser, results: Path) -> None:
    parser.add_argument("--scale", default="tiny", help="smoke, tiny (default), small or paper")
    parser.add_argument(
        "--seeds", default="1", help="a number of seeds (3: seeds 0 to 2) or a list (100-107,200)"
    )
    parser.add_argument("--workers", type=_positive, help="processes; default one a core or GPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=(
        "override a setting, e.g. train.steps=200, which shortens all stages (repeatable)"
    ))  # fmt: skip
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[],
        help="only runs whose label matches, e.g. 'FPN*' (repeatable)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="show the plan, train nothing")
    parser.add_argument("--results", type=Path, default=results,
                        help="folder of runs and corpora")  # fmt: skip


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def guarded(action) -> None:
    """Call ``action``; a UserError becomes one line and exit code 2, Ctrl-C exit code 130."""
    try:
        action()
    except BaseException as error:
        known = ending(error)
        if known is None:
            raise
        code, line = known
        if line is not None:
            print(line, file=sys.stderr)
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(code) from None


def _main(folder: Path, arguments: list[str] | None) -> None:
    options = _parse(folder, arguments)
    _sweep(_missing(folder, options), options)


def _sweep(missing: list[tuple[Run, Path]], options: argparse.Namespace) -> None:
    if missing:
        workers = options.workers or default_workers([run for run, _ in missing])
        sweep(missing, options.results / "data", workers)


def _main_together(folder: Path, arguments: list[str] | None) -> None:
    """The first process plans for all of them."""
    from lrm import distributed

    with distributed.join() as group:
        plan = None
        if group.rank == 0:
            options = _parse(folder, arguments)
            if options.workers:
                raise UserError("--workers has no use under torchrun, whose processes train each "
                                "run together; leave it out")  # fmt: skip
            plan = _missing(folder, options, group.world), options.results / "data"
        missing, corpora = group.first(plan)
        sweep_together(missing, corpora, group)


def _missing(
    folder: Path, options: argparse.Namespace, processes: int = 1
) -> list[tuple[Run, Path]]:
    """The runs to train, with their directories; none in a dry run, which prints the plan.

    Builds and verifies their corpora. ``processes`` are to train each run together.
    """
    experiment = load(folder / "config.yaml")
    seeds = parse_seeds(options.seeds)
    runs = experiment.runs(options.scale, seeds, options.set, options.only)
    runs = _with_criteria(runs, experiment, folder.parents[1] / "analysis" / "criteria.yaml")
    for run in runs:
        resolve(run.settings)  # a rule that matches nothing is told before anything is built
    corpora = options.results / "data"
    if options.dry_run:
        print(_plan(experiment, _identified(runs, corpora, build=False), options.results))
        return []
    for run in runs:
        schedule, train = run.settings.schedule, run.settings.train
        for step in (0, *(stage.until_step for stage in schedule.batch_ramp)):
            data.rows_of_each(batch_size_at(schedule, train.batch_size, step), processes)
    runs = _identified(runs, corpora, build=True)
    jobs = [(run, run_path(options.results, run)) for run in runs]
    for _, path in jobs:
        if is_complete(path):
            read_description(path), read_outcome(path)  # told if damaged
    missing = [(run, path) for run, path in jobs if not is_complete(path)]
    kept = len(jobs) - len(missing)
    print(f"{experiment.name} at {options.scale}: {len(missing)} to train, {kept} finished")
    if missing:
        for key in {(r.settings.data, r.settings.model.vocab_size) for r, _ in missing}:
            data.verify(data.prepare(*key, corpora, _say))
        make_folder(options.results / "runs" / experiment.name)
    return missing


def run_path(results: Path, run: Run) -> Path:
    """Where a run lies: ``results/runs/<experiment>/<id>``."""
    return results / "runs" / run.experiment / run.id


def parse_seeds(text: str) -> list[int]:
    """``3`` is seeds 0 to 2; ``100-102,7`` and ``5,`` are lists. Raises UserError."""
    try:
        if text.strip().isdigit():
            found = list(range(int(text)))
        else:
            found = []
            for part in filter(None, text.split(",")):
                first, _, last = part.partition("-")
                found += range(int(first), int(last or first) + 1)
    except ValueError:
        found = []
    if not found:
        raise UserError(f"seeds {text!r}: write a number such as 3, or a list such as 100-107")
    return list(dict.fromkeys(found))


def _identified(runs: list[Run], corpora: Path, build: bool) -> list[Run]:
    """The runs with their corpus hash; with ``build``, corpora that are missing are made."""
    hashes: dict[tuple, str | None] = {}
    found = []
    for run in runs:
        if not run.reads_corpus:
            found.append(run)
            continue
        key = (run.settings.data, run.settings.model.vocab_size)
        if key not in hashes:
            hashes[key] = data.identity(*key, corpora)
            if hashes[key] is None and build:
                folder, display = make_folder(corpora), Display(["corpus"])
                hashes[key] = data.prepare(*key, folder, _say, display).hash
        found.append(dataclasses.replace(run, corpus=hashes[key]))
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _with_criteria(runs: list[Run], experiment: Experiment, path: Path) -> list[Run]:
    """Note in each run the hash of every criterion that it will be judged by."""
    if not path.exists():
        return runs
    criteria = read_yaml(path)
    hashes = {
        claim: criterion_hash(criteria[claim])
        for claim in experiment.header.claims
        if claim in criteria
    }
    return [dataclasses.replace(run, criteria=hashes) for run in runs]


def criterion_hash(criterion: dict) -> str:
    """Identity of one claim's criterion."""
    text = json.dumps(criterion, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plan(experiment: Experiment, runs: list[Run], results: Path) -> str:
    """The dry run's text."""
    lines = [f"{experiment.name}: {experiment.header.title}", ""]
    seconds = dollars = 0.0
    rate = _measured_rate(results, runs[0])
    seen = None
    for run in runs:
        cost = estimate(run)
        own = cost.tokens / rate if rate else cost.seconds
        seconds += own
        dollars += cost.dollars
        lines.append(f"{run.label}  [{_state(run, results)}]")
        if run.kind == "train":
            lines.append(
                f"  {cost.parameters:,} parameters, {cost.tokens:.3g} tokens, "
                f"{cost.flops:.2e} FLOPs, about {_duration(own)}"
            )
        else:
            lines.append(
                f"  noise only, {run.brownian.draws} draws of {run.settings.train.steps} steps"
            )
        plans = resolve(run.settings)
        text = _table(table(plans, run.settings)) + [""] + _products(products(plans, run.settings))
        # Seeds share their table.
        lines += ["  (same table as above)"] if text == seen else ["  " + line for line in text]
        lines.append("")
        seen = text
    cost = runs[0].cost
    source = "measured on finished runs" if rate else f"assumed for {cost.device}"
    lines.append(
        f"{len(runs)} runs, {_duration(seconds)} of {cost.devices} × {cost.device} "
        f"({source}), about ${dollars:,.0f}"
    )
    return "\n".join(lines)


def _state(run: Run, results: Path) -> str:
    if run.reads_corpus and run.corpus is None:
        return "id once the corpus is built"
    path = run_path(results, run)
    state = "finished" if is_complete(path) else "unfinished" if path.exists() else "missing"
    return f"{run.id} {state}"


def _measured_rate(results: Path, run: Run) -> float | None:
    """Median tokens per second of this experiment's finished runs at this scale."""
    rates = []
    for path in (results / "runs" / run.experiment).glob("*/done.json"):
        try:
            description, outcome = read_description(path.parent), read_outcome(path.parent)
        except UserError:
            continue  # an estimate need not stop at a damaged run
        if description["scale"] == run.scale and "tokens_per_second" in outcome:
            # The plan counts on one process a run.
            rates.append(outcome["tokens_per_second"] / outcome.get("processes", 1))
    return statistics.median(rates) if rates else None


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _table(records: list[dict]) -> list[str]:
    """Rows of equal settings in neighbouring layers are one row."""
    rows: dict[tuple, list[str]] = {}
    for record in records:
        name, _, layer = record["tensor"].partition("@")
        name += f" · {record['multiplier']}" if record["multiplier"] else ""
        key = (
            name,
            "×".join(map(str, record["shape"])),
            f"{record['forward']:.4g}",
            f"{record['init']:.4g}",
            record["optimizer"] if record["trainable"] else "",
            f"{record['lr']:.3g}" if record["trainable"] else "frozen",
            f"{record['weight_decay']:.3g}",
            f"{record['lr_wd']:.3g}",
            "yes" if record["in_clip_norm"] else "no",
        )
        rows.setdefault(key, []).append(layer)
    head = ("tensor", "layers", "shape", "forward", "init", "optimizer", "lr", "wd", "lr·wd",
            "clipped")  # fmt: skip
    body = [
        (key[0], f"{layers[0]}-{layers[-1]}" if layers[0] else "", *key[1:])
        for key, layers in rows.items()
    ]
    return columns([head, *body])


def _products(records: list[dict]) -> list[str]:
    rows: dict[tuple, None] = {}
    for record in records:
        name, _, rest = record["tensor"].partition("@")
        axis = rest.partition(".")[2]
        rows[
            (
                name + (f".{axis}" if axis else ""),
                f"{record['lr_wd_t']:.3g}",
                f"{record['needed']:.2g}" if "needed" in record else "",
                f"{record['travel']:.3g}" if "travel" in record else "",
                f"{record['step']:.2g}" if "step" in record else "",
            )
        ] = None
    return columns([("product", "Σηλ", "needed", "travel Ση", "step η/init"), *rows])


if __name__ == "__main__":
    main_of_several()
