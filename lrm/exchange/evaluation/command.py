"""``lrm evaluate RUN``: evaluate a finished run, or any exported folder.

Scores are printed and kept in ``results/evaluations``; what is there is not done again. Without
``--tasks`` the offline suite is made of the held-out documents of the run's own corpus, with the
questions of its seed: those that an evaluation planned with the run asks. A folder of
``lrm export`` says of which run it is. Its corpus is built in ``results/data`` if it is not there.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path

from lrm.cli import Parser, a_folder, columns
from lrm.errors import UserError
from lrm.exchange.evaluation import suite
from lrm.exchange.evaluation.harness import Harness, exported, quiet
from lrm.exchange.export import RUN, corpus_of, kept_step, origin, training
from lrm.model.transformers import check_transformers
from lrm.plan.config import validate
from lrm.plan.evaluation import SUITE_VERSION, Suite, Task, harness_version
from lrm.plan.identity import files_hash, weights_hash
from lrm.store.files import make_folder, read_json, write_sealed
from lrm.store.rundir import digest_of, is_complete, weights_file
from lrm.train.device import device_of

# Of files of a model's folder that hold no weights: its tokenizer's, and how it generates.
_BESIDE_WEIGHTS = (".json", ".txt", ".model", ".jinja")


def evaluate(
    source: Path, results: Path, tasks: list[str], step: int | None, wanted: Suite
) -> Path:
    """Score the run or the folder ``source``; returns the file of its scores.

    ``wanted`` is the suite for runs of seed 0, where no ``tasks`` are named.

    Raises UserError where it is neither, where it is no planned training, where it is a folder that
    ``lrm export`` has not written and no task is named, and as the harness does.
    """
    a_run = is_complete(source)
    if not a_run and not (source / "config.json").exists():
        raise UserError(f"{source} is no finished run and no model's folder; give one of both")
    if not a_run and step is not None:
        raise UserError(f"{source} is no run, and has no steps; leave out --step")
    if not a_run and not tasks and not (source / RUN).is_file():
        raise UserError(f"{source} is no run, and lrm export has not written it; name --tasks of "
                        "the harness")  # fmt: skip
    if a_run:
        description, settings = training(source)
        step = kept_step(source, settings, step)
        # One that was trained on other hardware, or in another precision, found something else.
        told = [description["id"], digest_of(source), weights_file(step)]
    else:
        # A repaired tokenizer has other scores.
        small = (f for f in source.iterdir()
                 if f.suffix in _BESIDE_WEIGHTS and f.name != RUN and f.is_file())  # fmt: skip
        told = [weights_hash(source), files_hash(sorted(small))]
        if not tasks:
            description, settings = origin(source)
            told.append(description["corpus"]["hash"])
    if not tasks:
        wanted = wanted.of_run(description["seed"])
    asked = tasks or [wanted, SUITE_VERSION]
    name = hashlib.sha256(repr([*told, asked, harness_version()]).encode()).hexdigest()[:16]
    file = make_folder(results / "evaluations") / f"{name}.json"
    if file.exists():
        read_json(file, ("source", "scores"), f"remove {file} and run again")
        return file
    folder = None
    if not tasks:
        corpus = corpus_of(source, None if a_run else results / "data")
        folder = suite.prepare(wanted, corpus, settings.data, results / "suites")
    harness = Harness({task: Task() for task in tasks} if tasks else wanted.chosen, folder)
    device = device_of("auto")
    if not a_run:
        with quiet():
            check_transformers(source)
    with exported(source, step, file.parent) if a_run else nullcontext(source) as model:
        if tasks:
            scores = harness.everything(model, device)
        else:
            scores = {name: score.mean for name, score in harness.score(model, device).items()}
    write_sealed(
        file,
        {
            "source": str(source),
            "step": step,
            "lm_eval": harness_version(),
            "suite": folder and {"folder": str(folder), "digest": suite.digest_of(folder)},
            "scores": scores,
        },
    )
    return file


def main(arguments: list[str]) -> None:
    """Parse the command line, evaluate, print the scores."""
    parser = Parser(prog="lrm evaluate", description=__doc__)
    parser.add_argument("source", type=a_folder, help="results/runs/<experiment>/<id>, or a folder")
    parser.add_argument("--step", type=int, help="a snapshot of the run, not its end")
    parser.add_argument("--tasks", nargs="+", default=[], help="the harness's own tasks")
    parser.add_argument("--examples", type=int,
                        help="of each task of the offline suite")  # fmt: skip
    parser.add_argument("--results", type=a_folder, default=Path("results"))
    options = parser.parse_args(arguments)
    if options.tasks and options.examples is not None:
        raise UserError("--examples is for the offline suite, and --tasks of the harness have "
                        "their own; drop one")  # fmt: skip
    given = {} if options.examples is None else {"examples": options.examples}
    wanted = validate(Suite, given, "lrm evaluate --examples")
    file = evaluate(options.source, options.results, options.tasks, options.step, wanted)
    scores = read_json(file, ("scores",))["scores"]
    print("\n".join(columns([("task", "score"), *((n, f"{s:.4f}") for n, s in scores.items())])))
    print(f"wrote {file}")
