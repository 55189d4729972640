"""``python -m analysis.explore.pilot --scale mini``: what the search tells before seeds judge.

The runs that ``long_run_search`` chose are read as ``long_run`` reads its own: which tasks count,
by the rule in experiments/long_run/README.md, and how much a seed moves what its claims judge.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.quantities.long_run import (
    ARMS,
    HALVES,
    at_minimum,
    gains,
    over_tasks,
    scores,
    validated,
    while_constant,
)
from analysis.tables.criteria import criteria_of
from analysis.tables.find import RESULTS, NothingFound, relative
from analysis.tables.results import Tables
from lrm.cli import a_folder, columns, guarded
from lrm.errors import UserError
from lrm.plan.config import TrainConfig
from lrm.plan.evaluation import SUITE
from lrm.plan.scales import SCALES
from lrm.plan.schedule import snapshot_steps
from lrm.plan.yaml import read_yaml
from lrm.store.files import read_json
from lrm.store.rundir import is_complete, read_description, read_file

SEARCH, BASELINE = "long_run_search", "ADAM_FULL"


def main() -> None:
    """Parse the command line and print; exits with 2 where runs or evaluations are missing."""
    parser = argparse.ArgumentParser(prog="python -m analysis.explore.pilot", description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="mini")
    parser.add_argument("--results", type=a_folder, default=RESULTS)
    parser.add_argument("--examples", type=int, default=400, help="of each task, in the lines")
    parser.add_argument("--lines", action="store_true",
                        help="print the commands of evaluations that are missing")  # fmt: skip
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    runs = chosen(options.scale, options.results)
    missing = [(path, step) for path, _ in runs for step in _steps(path)
               if _evaluated(path, step, options.results) is None]  # fmt: skip
    if options.lines:
        how = f"--examples {options.examples} --results {relative(options.results)}"
        for path, step in missing:
            print(f".venv/bin/lrm evaluate {relative(path)} --step {step} {how}")
        return
    if missing:
        raise UserError(f"{len(missing)} evaluations of the chosen runs are missing; run the "
                        "commands that --lines prints")  # fmt: skip
    print("\n".join(told(tables(runs, options.results))))


def chosen(scale: str, results: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Folder and ``run.json`` of the finished runs at the rates that the search has chosen.

    Raises NothingFound where no arm's search has ended, and UserError where a run is not there.
    """
    presets = {path.stem.removesuffix("_LONG"): read_yaml(path)["optimizer"]["lr"]
               for path in (results / "tuning" / scale).glob("*_LONG.yaml")}  # fmt: skip
    if not presets:
        raise NothingFound(f"no arm's search has ended at {scale} in {relative(results)}; run make "
                           f"tune SEARCH={SEARCH} SCALE={scale}")  # fmt: skip
    folder = results / "runs" / SEARCH
    every = [(path, read_description(path)) for path in sorted(folder.glob("*"))
             if is_complete(path)]  # fmt: skip
    found = [
        (path, said)
        for path, said in every
        if said["scale"] == scale and said["arm"] in presets
        and math.isclose(said["settings"]["optimizer"]["lr"], presets[said["arm"]], rel_tol=1e-4)
    ]  # fmt: skip
    seeds = {arm: {said["seed"] for _, said in found if said["arm"] == arm} for arm in presets}
    for arm, own in seeds.items():
        if len(own) < 2:
            raise UserError(f"{relative(folder)}: {arm} has {len(own)} of 2 runs at its chosen "
                            "rate; their folders are needed, so bring them back")  # fmt: skip
    return found


def _steps(path: Path) -> list[int]:
    """The checkpoints that count: those at the minimum LR."""
    settings = read_description(path)["settings"]
    train = TrainConfig.model_validate(settings["train"])
    after = train.steps - settings["schedule"]["minimum_steps"]
    return [step for step in snapshot_steps(train) if step > after]


def _evaluated(path: Path, step: int, results: Path) -> dict[str, Any] | None:
    """What ``lrm evaluate`` has kept of a checkpoint; UserError where that is damaged."""
    for file in sorted((results / "evaluations").glob("*.json")):
        said = read_json(file, ("source", "scores", "suite"), f"remove {file} and evaluate again")
        if Path(said["source"]).name == path.name and said["step"] == step:
            return said
    return None


def tables(runs: Iterable[tuple[Path, dict[str, Any]]], results: Path) -> Tables:
    """Trials and evaluations of trials as tables of ``long_run``."""
    described, rows = [], []
    tasks = {name: task.model_dump() for name, task in SUITE.items()}
    for path, said in runs:
        who = {name: said[name] for name in ("arm", "seed", "scale")} | {"run": said["id"]}
        described.append(who | {"kind": "train", "description": said})
        scalars = pd.read_parquet(io.BytesIO(read_file(path, "scalars.parquet")))
        of_validation = scalars[scalars["stat"] == "validation_loss"]
        rows.append(of_validation.assign(**who, kind="train"))
        for step in _steps(path):
            found = _evaluated(path, step, results)
            execution = {"suite": found["suite"]["digest"]}
            description = {"tasks": tasks, "execution": execution, "id": f"{said['id']}-{step}"}
            described.append(who | {"kind": "evaluation", "description": description})
            scored = pd.DataFrame({
                "step": step, "stat": "score", "value": found["scores"].values(),
                "tensor": [f"task.{name}" for name in found["scores"]],
            })  # fmt: skip
            rows.append(scored.assign(**who, kind="evaluation"))
    return Tables(pd.DataFrame(described), pd.concat(rows, ignore_index=True))


def told(found: Tables) -> list[str]:
    """The tasks and which count, then gains by seed in what claims of the long run judge."""
    late, clear = at_minimum(found, scores(found)).mean(), _clear()
    arms = [arm for arm in ARMS if arm in set(found.runs["arm"])]
    counting, table = [], [("task", "half", *arms, "counts")]
    for name, task in SUITE.items():
        own = {arm: late[(*ARMS[arm], name)] for arm in arms}
        if counts := 100 * task.chance + clear <= own.get(BASELINE, math.nan) <= 100 - clear:
            counting.append(name)
        table.append((name, task.half, *(f"{own[arm]:.1f}" for arm in arms),
                      "yes" if counts else "no"))  # fmt: skip
    losses = -validated(found)
    judged = {
        "loss, constant LR": while_constant(found, losses),
        "loss, minimum LR": at_minimum(found, losses),
        "score, minimum LR": at_minimum(found, over_tasks(scores(found), counting)),
    }
    for half in HALVES:
        names = [name for name in counting if SUITE[name].half == half]
        judged[f"score of {half}"] = at_minimum(found, over_tasks(scores(found), names))
    lines = [("gain with multipliers", "optimizer", *(f"seed {seed}" for seed in found.seeds))]
    for what, values in judged.items():
        own = gains(values).dropna(axis=1, how="all")
        lines += [(what, optimizer, *(f"{x:.4f}" for x in own[optimizer])) for optimizer in own]
    said = f"Means over seeds and checkpoints at the minimum LR; {BASELINE} says which count."
    return [*columns(table), "", said, "", *columns(lines)]


def _clear() -> float:
    """How many points a task must lie from chance and from 100, by the claims."""
    return criteria_of("long_run")["L1"]["thresholds"]["clear"]


if __name__ == "__main__":
    main()
