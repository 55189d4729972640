"""Speed of training steps on random tokens, for any settings and machine.

``python -m lrm.bench.throughput --scale paper --peak-flops 989e12`` (an H100 in bfloat16) measures
the step of Falcon-H1-0.5B on this machine's GPU and prints a JSON record.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from lrm.bench.trainers import BatchTrainer, SuiteTrainer
from lrm.cli import Parser, guarded, positive_number
from lrm.errors import UserError, shown
from lrm.plan import cost
from lrm.plan.experiment import load
from lrm.plan.run import TrainRun
from lrm.store.files import make_folder, write_json
from lrm.train.device import environment, equip


def throughput(
    run: TrainRun, steps: int = 20, warmup: int = 5, peak_flops: float | None = None
) -> dict[str, Any]:
    """Train ``warmup + steps`` steps of ``run`` from a fresh start and time the last ``steps``.

    Everything is as in the run, compiled layers included, but for data, probes, validation and
    checkpoints, which are left out. Where the execution asks for several runs at once
    (``batch_runs``), that many are trained, and tokens are those of all.

    ``utilisation`` is the share of ``peak_flops`` (per second) that goes into
    ``lrm.plan.cost.flops_per_token``; it is None without a peak, and ``peak_memory`` (bytes that
    torch held at once) is None off CUDA.

    Raises UserError where the execution asks for what is not usable here, and where layers were
    compiled while they were timed.
    """
    model, train = run.settings.model, run.settings.train
    equipment = equip(run.execution, model)
    device = equipment.device
    torch.set_num_threads(run.execution.threads)
    at_once = run.execution.at_once
    batch = random_batch(run, device)
    if at_once == 1:
        trainer = SuiteTrainer(run, 0, equipment)
    else:
        trainer, batch = BatchTrainer(run, 0, equipment), torch.stack(at_once * [batch])
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    parts, began = 0, 0.0
    for step in range(warmup + steps):
        if step == warmup:
            wait(device)
            parts, began = _compiled_parts(), time.perf_counter()
        measured = trainer.step(batch, step % train.steps)
    wait(device)
    seconds = time.perf_counter() - began
    if more := _compiled_parts() - parts:
        raise UserError(
            f"compiled parts made in the {steps} steps that are timed, behind {warmup} of warm-up: "
            f"{more}; give it more of these, or set execution.compile=never"
        )
    tokens = at_once * train.batch_size * train.sequence_length
    tokens_per_second = steps * tokens / seconds
    flops = tokens_per_second * cost.flops_per_token(model, train.sequence_length)
    return {
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "precision": equipment.precision,
        "kernels": equipment.kernels.record(),
        "compiled": trainer.is_compiled,
        "note": equipment.summary,
        "runs": at_once,
        "steps": steps,
        "seconds_per_step": seconds / steps,
        "tokens_per_second": tokens_per_second,
        "flops_per_second": flops,
        "utilisation": None if peak_flops is None else flops / peak_flops,
        "peak_memory": torch.cuda.max_memory_allocated(device) if cuda else None,
        # Of the first run, whose seed is 0.
        "loss": (measured if at_once == 1 else measured[0])[0].item(),
    }


def _compiled_parts() -> int:
    """How many pieces of code this process has compiled so far."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def random_batch(run: TrainRun, device: torch.device) -> torch.Tensor:
    """A batch of ``run`` of random tokens, (sequences, length + 1), the same at each call."""
    train = run.settings.train
    shape = (train.batch_size, train.sequence_length + 1)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(run.settings.model.vocab_size, shape, generator=generator).to(device)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Parse the command line, measure, print JSON; with ``--record`` also write it to a file."""
    parser = Parser(
        prog="python -m lrm.bench.throughput",
        description="Tokens per second of an experiment's step.",
    )
    add = parser.add_argument
    add("--experiment", type=Path, default=Path("experiments/projector"), help="folder or name")
    add("--scale", default="paper")
    add("--only", metavar="PATTERN", default="*", help="the first run whose label matches")
    add("--set", action="append", default=[], metavar="KEY=VALUE")
    add("--steps", type=int, default=20)
    add("--warmup", type=int, default=5)
    add("--peak-flops", type=positive_number, help="of the device, per second")
    add("--record", type=Path, metavar="FILE", help="write the record there too")
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _folder(experiment: Path) -> Path:
    """The folder of an experiment that is given as such, or by its name."""
    by_name = Path("experiments") / experiment
    return by_name if by_name.exists() and not experiment.exists() else experiment


def _main(options: argparse.Namespace) -> None:
    if options.steps < 1 or options.warmup < 0:
        raise UserError("--steps must be at least 1, --warmup at least 0")
    if options.record and options.record.exists():
        raise UserError(f"--record: {options.record} is there already; name another file")
    experiment = load(_folder(options.experiment) / "config.yaml")
    runs = experiment.runs(options.scale, [0], options.set, [options.only])
    run = next((each for each in runs if isinstance(each, TrainRun)), None)
    if run is None:
        raise UserError(f"{experiment.name} trains no model in {shown(options.only)}; name another "
                        "--experiment or --only")  # fmt: skip
    record = {
        "run": run.label,
        "scale": run.scale,
        **throughput(run, options.steps, options.warmup, options.peak_flops),
        "environment": environment(),
    }
    print(json.dumps(record, indent=1))
    if options.record:
        make_folder(options.record.parent)
        write_json(options.record, record)


if __name__ == "__main__":
    main()
