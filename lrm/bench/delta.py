"""The gated delta rule on this machine: chunks, step by step, and transformers' torch version.

``python -m lrm.bench.delta`` times forward and backward, round by round in turn. It prints the
median time of each, and how many times as long it takes as ours does. The step-by-step form is what
the naive one of flash-linear-attention does: one token after the other, in plain torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrm.bench.measure import load_average, median
from lrm.cli import Parser, guarded, positive
from lrm.errors import UserError
from lrm.model import ops, recurrences
from lrm.store.files import make_folder, write_json
from lrm.train.device import environment

# Batch, length, heads, dk, dv: the narrowest and the widest model of gdn_transfer, and a head of
# the size that flash-linear-attention begins with.
SHAPES = {
    "width 32": (8, 128, 3, 8, 16),
    "width 256": (8, 128, 3, 64, 128),
    "long": (1, 1024, 2, 128, 256),
}
CHUNKS = (16, 32, 64)
_OURS = "chunks of 32"

Rule = Callable[..., tuple[Tensor, Tensor]]


def rules() -> dict[str, Rule]:
    """Each way to compute the rule, by name; all of them take q, k, v, g and beta."""
    found: dict[str, Rule] = {f"chunks of {n}": partial(ops.gated_delta, chunk=n) for n in CHUNKS}
    found["step by step"] = recurrences.gated_delta
    if importlib.util.find_spec("transformers") is not None:
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

        def theirs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor):
            # It multiplies queries by dk^(-1/2).
            return torch_chunk_gated_delta_rule(
                q * q.shape[-1] ** 0.5, k, v, g, beta, chunk_size=64, output_final_state=True
            )

        found["transformers"] = theirs
    return found


def inputs(shape: tuple[int, int, int, int, int]) -> list[Tensor]:
    """q, k, v, g and beta that need gradients; q and k of unit length, g as of short memories."""
    batch, length, heads, keys, values = shape
    draw = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw)

    q, k = (torch.nn.functional.normalize(normal(batch, length, heads, keys), dim=-1) for _ in "qk")
    v = normal(batch, length, heads, values)
    g, beta = -normal(batch, length, heads).exp(), normal(batch, length, heads).sigmoid()
    return [each.requires_grad_() for each in (q, k, v, g, beta)]


def seconds(rule: Rule, tensors: list[Tensor]) -> float:
    """Of one forward and backward pass."""
    began = time.perf_counter()
    o, _ = rule(*tensors)
    torch.autograd.grad(o.square().mean(), tensors)
    return time.perf_counter() - began


def measure(rounds: int, shapes: dict[str, tuple[int, int, int, int, int]] = SHAPES) -> list[dict]:
    """For each shape and rule the seconds of every round, rules in turn, behind one warm-up."""
    ways, found = rules(), []
    for name, shape in shapes.items():
        tensors = inputs(shape)
        for rule in ways.values():
            seconds(rule, tensors)
        every: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, rule in ways.items():
                every[way].append(seconds(rule, tensors))
        found += [{"shape": name, "sizes": shape, "rule": way, "seconds": taken}
                  for way, taken in every.items()]  # fmt: skip
    return found


def render(record: dict[str, Any]) -> str:
    """Milliseconds of each rule, and its time over that of ours in the same rounds."""
    lines = [f"{'shape':<10}  {'rule':<13}  {'ms':>9}  {'times ours':>10}  95%"]
    ours = {row["shape"]: row["seconds"] for row in record["rows"] if row["rule"] == _OURS}
    for row in record["rows"]:
        pairs = zip(row["seconds"], ours[row["shape"]], strict=True)
        ratio = median([theirs / mine for theirs, mine in pairs])
        taken = 1e3 * median(row["seconds"]).median
        lines.append(
            f"{row['shape']:<10}  {row['rule']:<13}  {taken:>9.2f}  {ratio.median:>10.2f}  "
            f"{ratio.low:.2f} to {ratio.high:.2f}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and keep the record where ``--record`` says."""
    parser = Parser(prog="python -m lrm.bench.delta", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--record", type=Path, help="a JSON file to write")
    options = parser.parse_args(arguments)
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    if options.rounds < 6:
        raise UserError("give --rounds of 6 or more, for an interval")
    if options.record and options.record.exists():
        raise UserError(f"--record: {options.record} is there already; name another file")
    torch.set_num_threads(options.threads)
    load = load_average()
    rows = measure(options.rounds)
    record = {"machine": environment(), "threads": options.threads, "load_at_start": load,
              "load_at_end": load_average(), "rows": rows}  # fmt: skip
    print(render(record))
    if options.record:
        make_folder(options.record.parent)
        write_json(options.record, record)


if __name__ == "__main__":
    main()
