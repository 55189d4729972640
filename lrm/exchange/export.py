"""``lrm export RUN FOLDER``: a finished run as a folder of transformers."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import torch

from lrm import data
from lrm.cli import Parser, a_folder
from lrm.data import Corpus
from lrm.data.tokenizer import end_token
from lrm.errors import UserError, first_line
from lrm.exchange.card import card
from lrm.model.falcon_h1 import FalconH1
from lrm.model.transformers import save_transformers
from lrm.plan.config import Settings, validate
from lrm.plan.run import TrainRun
from lrm.plan.schedule import snapshot_steps
from lrm.store.files import unwritable, write_atomic
from lrm.store.rundir import (
    is_complete,
    read_description,
    read_file,
    read_outcome,
    weights_file,
)
from lrm.train import probes
from lrm.train.learner import build

# What a run is: in its directory, and in a folder that was exported of it.
RUN = "run.json"


def training(path: Path) -> tuple[dict[str, Any], Settings]:
    """What ``run.json`` says of the finished training in ``path``, and its settings.

    Raises UserError where there is no finished run, or one that is no planned training.
    """
    if not is_complete(path):
        raise UserError(f"{path} is no finished run; give a folder of results/runs/<experiment>")
    return origin(path)


def origin(path: Path) -> tuple[dict[str, Any], Settings]:
    """As ``training``, of a run or of a folder that ``export`` has written of one."""
    description = read_description(path, f"export the run again, or take {RUN} away")
    if description["kind"] != TrainRun.kind:
        raise UserError(f"{path} is no planned training (kind {description['kind']}); give one of "
                        "an experiment that is no search")  # fmt: skip
    return description, validate(Settings, description["settings"], str(path / RUN))


def corpus_of(path: Path, corpora: Path | None = None) -> Corpus:
    """The corpus of the finished training in ``path``, beside its results.

    With ``corpora`` that of an exported folder, below ``corpora``, and built there first if it is
    not there. Raises UserError as ``training`` does, and where that corpus is another now.
    """
    description, settings = training(path) if corpora is None else origin(path)
    if corpora is None:
        parents = path.resolve().parents
        if len(parents) < 3 or parents[1].name != "runs":
            raise UserError(f"{path} lies outside of results/runs/<experiment>; move it there, "
                            "beside the folder data of its corpus")  # fmt: skip
        corpora = parents[2] / "data"
    expected = description["corpus"]["hash"]
    if (there := data.built(expected, corpora)) is not None:
        return there
    corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
    if corpus.hash != expected:
        raise UserError(
            f"the corpus of {path}, {description['corpus']['name']}, is not in {corpora}, and what "
            "is built today is another; bring it there, install the versions of packages that it "
            "was built from, or train the run again"
        )
    return corpus


def kept_step(path: Path, settings: Settings, step: int | None) -> int | None:
    """The snapshot of the run in ``path`` after ``step`` steps; None is its end.

    Raises UserError where no weights of that step are kept.
    """
    kept = snapshot_steps(settings.train)
    if step is None or step == settings.train.steps:
        return None
    if step not in kept:
        steps = f"those of the steps {', '.join(map(str, kept))}" if kept else "the last alone"
        raise UserError(f"{path} keeps no weights of step {step}; there are {steps}")
    return step


def trained(path: Path, step: int | None = None) -> FalconH1:
    """The plain model of the finished run in ``path``, its multipliers merged.

    It is that at the end, or after ``step`` steps. Raises UserError as ``training`` does, where no
    weights of that step are kept, where it diverged, and where files are damaged.
    """
    description, settings = training(path)
    if "diverged" in read_outcome(path):
        raise UserError(f"{path} diverged, which is its result, and keeps no weights")
    file = weights_file(kept_step(path, settings, step))
    # Its weights are read below; the model that it began with may have gone.
    begun = settings.train.model_copy(update={"start": None})
    learner = build(settings.model_copy(update={"train": begun}), description["seed"])
    try:
        content = io.BytesIO(read_file(path, file))
        weights = torch.load(content, weights_only=True, map_location="cpu")
        views = probes.Views(learner.model, learner.plans, learner.multipliers)
        with torch.no_grad():
            for plan in views.plans:
                _take(views.weight(plan), weights[plan.key], plan.key)
            for name, _, parameter in learner.multipliers.named():
                _take(parameter, weights[name], name)
    except UserError:
        raise
    except Exception as error:  # a damaged file raises whatever its reader likes
        raise UserError(
            f"{path / file} is missing or damaged ({first_line(error)}); "
            f"remove {path} and run again"
        ) from None
    return learner.multipliers.merge()


def _take(target: torch.Tensor, value: torch.Tensor, name: str) -> None:
    # copy_ would broadcast a tensor of another shape.
    if value.shape != target.shape:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}, not {tuple(target.shape)}")
    target.copy_(value)


def export(path: Path, folder: Path, fold: bool = False, step: int | None = None) -> None:
    """Write the run in ``path`` to ``folder``, with its tokenizer, ``run.json`` and a model card.

    It is the model at the end, or after ``step`` steps. Forward multipliers stay in the
    configuration, or with ``fold`` are in the weights. ``folder`` appears when it is whole. Raises
    UserError where it holds something already or cannot be written, the corpus is no longer there,
    and as ``trained`` does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give the name of a new folder")
    model = trained(path, step)
    tokenizer = corpus_of(path).path / "tokenizer.json"
    description, settings = training(path)
    at_end = step in (None, settings.train.steps)
    text = card(
        description,
        settings,
        sum(parameter.numel() for parameter in model.parameters()),
        None if at_end else step,
        read_outcome(path)["validation_loss"] if at_end else None,
    )
    # Whoever is killed meanwhile leaves no folder that looks like a model.
    target = folder.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as beside:
            whole = Path(beside) / "model"
            save_transformers(model, whole, tokenizer, end_token(tokenizer), keep=not fold)
            write_atomic(whole / "README.md", text.encode())
            # Whoever has the folder alone can build its text, and ask the same questions.
            write_atomic(whole / RUN, read_file(path, RUN))
            whole.replace(target)
    except OSError as error:
        raise unwritable(folder, error) from None


def main(arguments: list[str]) -> None:
    """Parse the command line and export."""
    parser = Parser(prog="lrm export", description=__doc__)
    parser.add_argument("run", type=a_folder, help="results/runs/<experiment>/<id>")
    parser.add_argument("folder", type=a_folder, help="new folder for from_pretrained")
    parser.add_argument(
        "--fold", action="store_true", help="forward multipliers into the weights as well"
    )
    parser.add_argument("--step", type=int, help="a snapshot of the run, not its end")
    options = parser.parse_args(arguments)
    export(options.run, options.folder, options.fold, options.step)
    print(f"wrote {options.folder}")
