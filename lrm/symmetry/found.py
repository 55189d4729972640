"""Rescalings of multipliers that leave a model's output as it is, found and derived (4.1).

``lrm symmetries all symmetry_free`` compares, for any placements among the presets, the
null space of a small model's Jacobian with what ``lrm.symmetry.derived`` derives on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, vmap

from lrm.cli import Parser
from lrm.errors import UserError
from lrm.model import blocks
from lrm.model.config import ModelConfig
from lrm.model.init import named_generator
from lrm.multipliers.multiplier import MAGNITUDES
from lrm.multipliers.parametrization import DIRECT
from lrm.plan.config import Settings
from lrm.plan.rules import TensorPlan, resolve
from lrm.plan.yaml import merge, preset_rules
from lrm.symmetry import derived as gauge
from lrm.train.learner import Learner, build


def small(mixer: str = "both") -> ModelConfig:
    """A model with these mixers at the small sizes that its blocks declare.

    Raises UserError where there is no such mixer.
    """
    try:
        found: dict[str, Any] = {"mixer": mixer}
        for block in blocks.every(blocks.named(mixer)):
            found = merge(found, block.small)
    except ValueError as error:
        raise UserError(f"--mixer {mixer}: {error}") from None
    return ModelConfig(**found)


SMALL = small()
# Spread of the logarithms of multipliers and norm weights at which the Jacobian is taken.
_SPREAD = 0.3
# More combinations of the logits than there are log-scales, so that none is missed.
_SPARE = 16
# Of them as many go through copies of the model in one pass; more take no less time.
_AT_ONCE = 32
# Singular values below this times the largest are 0 but for rounding.
_THRESHOLD = 1.0e-10


@dataclass(frozen=True)
class Found:
    """The null space of ∂logits/∂ln(multipliers and norm weights) at one point.

    ``basis`` (count, entries) is orthonormal, its columns in the order of ``scales``; ``null`` and
    ``other`` are the largest singular value in it and the smallest beside it, over the largest of
    all: how clearly the two part.
    """

    plans: Sequence[TensorPlan]
    scales: list[gauge.Scales]
    basis: np.ndarray
    null: float
    other: float


def find(settings: Settings, seed: int = 0, filters: bool = False) -> Found:
    """The symmetries of a model of ``settings``, found in float64 without knowing them.

    At random weights, multipliers and norm weights, on random orders of the vocabulary. Meant for
    small models: takes a backward pass for 32 log-scales. ``filters`` as in
    ``lrm.symmetry.derived.scales``.
    Raises UserError where nothing has a scale that learns.
    """
    settings = settings.model_copy(
        update={"train": settings.train.model_copy(update={"multiplier_implementation": "forward"})}
    )
    # What leaves the output as it is does not depend on the parametrization.
    learner = build(settings, seed, dtype=torch.float64, plans=_direct(resolve(settings)))
    scales = gauge.scales(learner.plans, filters)
    if not scales:
        raise UserError("no multiplier and no RMSNorm weight learns here; place one")
    parameters = [parameter_of(learner, block) for block in scales]
    for block, parameter in zip(scales, parameters, strict=True):
        if block.axis == "filter":
            continue  # random already
        generator = named_generator(seed, f"symmetry/{block.key}.{block.axis}")
        logarithms = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter.copy_((_SPREAD * logarithms).exp())
    tokens = _tokens(settings.model, sum(block.size for block in scales), seed)
    rows = [_rows_of(learner, block) for block in scales]
    jacobian = _jacobian(learner.model, scales, parameters, rows, tokens, seed)
    return Found(learner.plans, scales, *_null_space(jacobian.numpy()))


def _direct(plans: Sequence[TensorPlan]) -> list[TensorPlan]:
    """The same with multipliers that are learned themselves."""
    found = []
    for plan in plans:
        own = [each for each in plan.multipliers if each.axis not in MAGNITUDES.values()]
        direct = tuple(replace(each, parametrization=DIRECT) for each in own)
        found.append(replace(plan, multipliers=direct))
    return found


def parameter_of(learner: Learner, block: gauge.Scales) -> torch.nn.Parameter:
    """The parameter that holds the scales of ``block``, perhaps in some of its rows."""
    if block.axis in ("weight", "filter"):
        [plan] = [plan for plan in learner.plans if plan.key == block.key]
        return learner.model.get_parameter(plan.address.parameter)
    return getattr(learner.multipliers.scalings[block.key], block.axis)


def _rows_of(learner: Learner, block: gauge.Scales) -> slice:
    """Which rows of ``parameter_of`` they are."""
    if block.axis not in ("weight", "filter"):
        return slice(None)
    [plan] = [plan for plan in learner.plans if plan.key == block.key]
    return slice(*plan.address.rows) if plan.address.rows else slice(None)


def _tokens(config: ModelConfig, entries: int, seed: int) -> torch.Tensor:
    """Random orders of the vocabulary, shape (sequences, vocabulary).

    Twice as many as ``entries`` directions need: a token's logits are d numbers of fixed norm.
    """
    per_order = config.vocab_size * (config.hidden_size - 1)
    generator = named_generator(seed, "symmetry/tokens")
    orders = range(1 + 2 * entries // max(per_order, 1))
    return torch.stack([torch.randperm(config.vocab_size, generator=generator) for _ in orders])


def _jacobian(
    model: torch.nn.Module,
    scales: list[gauge.Scales],
    parameters: list[torch.nn.Parameter],
    rows_of: list[slice],
    tokens: torch.Tensor,
    seed: int,
) -> torch.Tensor:
    """Of random combinations of the logits by the log-scales, shape (many, entries).

    There are more combinations than entries, so that it has the null space of the whole.
    """
    generator = named_generator(seed, "symmetry/combinations")
    every = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in every.items()}
    wanted = [names[id(parameter)] for parameter in parameters]
    rows = []
    left = sum(block.size for block in scales) + _SPARE
    while left > 0:
        count = min(_AT_ONCE, left)
        left -= count
        copies = {name: p.detach().expand(count, *p.shape).clone() for name, p in every.items()}
        leaves = [copies[name].requires_grad_() for name in wanted]
        logits = vmap(lambda own: functional_call(model, own, (tokens,)))(copies)
        weights = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in logits]
        gradients = torch.autograd.grad(logits, leaves, torch.stack(weights))
        # The scale of a filter is that of all its entries.
        parts = [
            (gradient * leaf.detach())[:, own].reshape(count, block.size, -1).sum(2)
            for block, own, gradient, leaf in zip(scales, rows_of, gradients, leaves, strict=True)
        ]
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows)


def _null_space(jacobian: np.ndarray) -> tuple[np.ndarray, float, float]:
    _, values, right = np.linalg.svd(jacobian, full_matrices=False)
    values = values / values[0]
    rank = int((values > _THRESHOLD).sum())
    null = float(values[rank]) if rank < len(values) else 0.0
    return right[rank:], null, float(values[rank - 1])


def distance(found: np.ndarray, derived: np.ndarray) -> float:
    """Sine of the largest angle between two spaces given by orthonormal rows; 1 if sizes differ."""
    if len(found) != len(derived):
        return 1.0
    if not len(found):
        return 0.0
    cosines = np.linalg.svd(found @ derived.T, compute_uv=False)
    return float(np.sqrt(max(0.0, 1.0 - cosines.min() ** 2)))


def main(arguments: list[str]) -> None:
    """The command line: one line a placement, and what frees its symmetries."""
    parser = Parser(prog="lrm symmetries", description=__doc__)
    parser.add_argument("placements", nargs="+", metavar="PLACEMENT", help="a preset, e.g. all")
    parser.add_argument("--mixer", default="both", help="as in model.mixer (default: both)")
    parser.add_argument("--layers", type=int, default=SMALL.num_hidden_layers)
    parser.add_argument("--inner-norm", action="store_true", help="an RMSNorm inside the SSM")
    parser.add_argument(
        "--filters", action="store_true", help="count the scales of conv1d's filters too"
    )
    given = parser.parse_args(arguments)
    if given.layers < 1:
        raise UserError(f"--layers {given.layers}: at least one layer")
    shape = {"num_hidden_layers": given.layers, "mamba_rms_norm": given.inner_norm}
    model = small(given.mixer).model_copy(update=shape)
    # So small a model is many times slower with several threads.
    torch.set_num_threads(1)
    for name in given.placements:
        settings = Settings(model=model, rules=tuple(preset_rules(f"placement/{name}")))
        found = find(settings, filters=given.filters)
        derived = gauge.symmetries(found.plans, model, given.filters)
        print(
            f"{name}: {sum(block.size for block in found.scales)} scales, "
            f"{len(derived)} symmetries derived, {len(found.basis)} found "
            f"(singular values {found.null:.0e} and {found.other:.0e}; "
            f"angle between the two spaces {distance(found.basis, derived):.0e})",
            flush=True,
        )
        for freedom, count in gauge.count(found.plans, model, given.filters).items():
            if count:
                print(f"  {count:4d}  {gauge.freedoms()[freedom]}")
