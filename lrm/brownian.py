"""Brownian motion (ABM for Adam): the real optimizer on pure noise, and its closed form.

Section 3: gradients g_t ~ N(0, 1), independent in time and entries, fed to the run's optimizer,
AdamW or Muon, with its weight decay and LR schedule. What a tensor's norm does then is what it
would do if the data had no say. Matrices start from the run's initial norm, multipliers and norm
weights from their initial value; gradients are not clipped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrm import data, linear_layer, token_noise
from lrm.compose import Run
from lrm.config import Settings
from lrm.errors import UserError
from lrm.model.tensors import DECAYED, matches
from lrm.muon_theory import FEWEST, noise_draws
from lrm.muon_theory import covariances as muon_covariances
from lrm.optim import Optimizer
from lrm.products import initial_norm, products
from lrm.rules import TensorPlan, resolve, table
from lrm.rundir import RunDirectory, open_run
from lrm.schedule import constant_end, lr_factor, lr_factors
from lrm.walker import Walker, entries_of

# Adam's entries are independent, so that a larger tensor is represented by this many in all.
_MAX_ENTRIES = 1 << 14
# Values of a walked vector that are kept, of all its draws together.
_KEPT = 1 << 12


def walkers(plans: list[TensorPlan], patterns: tuple[str, ...], settings: Settings) -> list[Walker]:
    """The learnable tensors and multipliers of the addresses that ``patterns`` match.

    Raises UserError for conv1d, A_log and dt_bias, whose start is no constant and no norm.
    """
    found = []
    for plan in plans:
        if not any(matches(pattern, plan.address) for pattern in patterns):
            continue
        if plan.trainable:
            vector = plan.address.kind == "norm" or plan.address.name == "ssm.D"
            if not vector and plan.address.kind not in DECAYED:
                raise UserError(
                    f"brownian: {plan.address.name} cannot be walked; match matrices, the "
                    "embedding, norms, ssm.D or multipliers"
                )
            start = 1.0 if vector else initial_norm(plan, settings)
            size, matrix = plan.address.size, plan.matrix
            found.append(
                Walker(plan.key, size, plan.lr, plan.weight_decay, start, vector, matrix=matrix)
            )
        for factor in plan.factors:
            key = f"{plan.key}.{factor.axis}"
            log = factor.parametrization == "log"
            found.append(
                Walker(key, factor.size, factor.lr, factor.weight_decay, factor.init, True, log)
            )
    return found


def simulate(
    walker: Walker,
    settings: Settings,
    draws: int,
    seed: int,
    every: int = 1,
    report: Callable[[int, Tensor], None] = lambda step, values: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Walk ``draws`` copies of one tensor with the run's optimizer and schedule.

    Returns (steps (n,), norms (n, draws)) at step 0, every ``every`` steps, and the end of each
    stage; ``report`` gets those steps and the values (draws, entries). A draw simulates at most
    2**14 / draws entries of a large tensor. What Muon moves is simulated in its true shape, and a
    slice within its matrix; of large matrices there are fewer draws than asked for
    (``noise_draws``).
    """
    generator = torch.Generator().manual_seed(_seed(seed, walker.key))
    if walker.matrix:
        rows, columns = walker.matrix.rows, walker.matrix.columns
        shape = (noise_draws(rows, columns, draws), rows, columns)
    else:
        shape = (draws, max(1, min(walker.size, _MAX_ENTRIES // draws)))
    if walker.constant:
        values = torch.full(shape, math.log(walker.start) if walker.log else walker.start)
    else:
        values = torch.randn(shape, generator=generator) * walker.start
    noise = torch.empty(shape)
    entries = entries_of(walker, values, noise)
    # Rows of noise are alike: the first stand for those of the slice.
    walked = values[:, : walker.size // shape[2]] if walker.matrix else values
    optimizer = Optimizer(entries, settings.optimizer, settings.train)
    total = settings.train.steps
    ends = (constant_end(settings.schedule, total), total)
    steps, norms = [0], [_norms(walked, walker.log)]
    for step in range(total):
        noise.normal_(generator=generator)
        optimizer.step(lr_factor(settings.schedule, total, step))
        if (step + 1) % every == 0 or step + 1 in ends:
            report(step + 1, walked)
            steps.append(step + 1)
            norms.append(_norms(walked, walker.log))
    return np.array(steps), torch.stack(norms).numpy()


def _norms(values: Tensor, log: bool) -> Tensor:
    return (values.exp() if log else values).square().flatten(1).mean(1).sqrt()


def _seed(seed: int, key: str) -> int:
    digest = hashlib.sha256(f"brownian/{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def has_closed_form(walker: Walker) -> bool:
    """Not for logarithms, nor under Muon for matrices of fewer than four rows or columns."""
    matrix = walker.matrix
    return not walker.log and (matrix is None or min(matrix.rows, matrix.columns) >= FEWEST)


def expected_square(walker: Walker, settings: Settings) -> np.ndarray:
    """Closed form of E‖W‖² under noise after each step, shape (steps + 1,).

    With w_t = (1 − η_t λ) w_{t−1} − η_t u_t, where u_t = m̂_t / sqrt(v̂_t) for Adam,

        E w_t² = a_t² E w_{t−1}² − 2 a_t η_t E[w_{t−1} u_t] + η_t² E u_t²,

    and E[w_{t−1} u_t] follows from the covariances E[u_t u_s]. Muon's are in
    ``lrm.muon_theory.covariances``, with their tolerance; Adam's are those of the
    bias-corrected first moment (β₁) times a correction for the fluctuation δ of v̂ about 1,
    v̂^(−1/2) ≈ 1 − δ/2 + 3δ²/8, to first order in 1 − β₂. Without it (v̂ = 1) the norm comes out
    1.5 to 3% too high at β₂ = 0.95. ε is neglected.
    """
    optimizer = settings.optimizer
    rates = walker.lr * lr_factors(settings.schedule, settings.train.steps)
    if walker.matrix:
        lags = muon_covariances(walker.matrix.rows, walker.matrix.columns, optimizer, len(rates))
    else:
        lags = _covariances(optimizer.beta1, optimizer.beta2, len(rates))
    keep = 1.0 - rates * walker.weight_decay
    squares = np.empty(len(rates) + 1)
    squares[0] = walker.start**2
    # past[L-1] = η_{t-L} times the decay that its update has suffered until t − 1.
    past = np.zeros(len(lags) - 1)
    for t, (rate, kept) in enumerate(zip(rates, keep, strict=True)):
        cross = -float(past @ lags[1:, t])
        squares[t + 1] = kept**2 * squares[t] - 2 * kept * rate * cross + rate**2 * lags[0, t]
        past *= kept
        past[1:] = past[:-1]
        past[0] = rate
    return squares


def _covariances(beta1: float, beta2: float, steps: int) -> np.ndarray:
    """E[u_t u_{t−L}] of pure noise, shape (lags, steps); column t is step t + 1 of Adam.

    Every term carries β₁^L, which bounds the lags that matter.
    """
    reach = 1 if beta1 == 0 else int(np.ceil(np.log(1e-9) / np.log(beta1)))
    lags = min(reach + 1, steps)
    later = np.arange(1, steps + 1, dtype=float)[None, :]  # t
    lag = np.arange(lags, dtype=float)[:, None]
    earlier = later - lag  # s
    exists = earlier >= 1
    s = np.where(exists, earlier, 1.0)
    first = (1 - beta1) ** 2 / ((1 - beta1**later) * (1 - beta1**s))

    def summed(ratio: float) -> np.ndarray:
        """Σ_{k ≤ s} ratio^(s − k)."""
        return (1 - ratio**s) / (1 - ratio)

    plain = first * beta1**lag * summed(beta1**2)  # E[m̂_t m̂_s]
    norm_t, norm_s = (1 - beta2) / (1 - beta2**later), (1 - beta2) / (1 - beta2**s)
    # −½ E[m̂ m̂ δ_t] − ½ E[m̂ m̂ δ_s], from E[g² (g² − 1)] = 2.
    mixed = first * beta1**lag * summed(beta1**2 * beta2)
    linear = -mixed * (norm_t * beta2**lag + norm_s)
    # ¼ E[δ_t δ_s] + ⅜ E[δ_t²] + ⅜ E[δ_s²], times E[m̂_t m̂_s].
    square_t = 2 * norm_t**2 * (1 - beta2 ** (2 * later)) / (1 - beta2**2)
    square_s = 2 * norm_s**2 * summed(beta2**2)
    product = 2 * norm_t * norm_s * beta2**lag * summed(beta2**2)
    quadratic = plain * (product / 4 + 3 * (square_t + square_s) / 8)
    return np.where(exists, plain + linear + quadratic, 0.0)


def run(
    run: Run,
    path: Path,
    corpora: Path,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """A Brownian motion as a run of its own kind: the same directory, the same table.

    Probes ``weight_norm`` (mean over draws), ``weight_norm_sd`` (over draws) and
    ``expected_norm`` (square root of the closed form, where there is one); the vectors hold every
    draw's norm, at the stages' ends ``values`` of each vector, draw by draw, and with
    ``brownian.occurrences`` the embedding's ``row_norms`` and its tokens' ``frequency``. With
    ``brownian.linear_layers`` nothing of this, but what ``lrm.linear_layer`` measures of each
    matrix, under ``<tensor>.<case>``.

    Raises UserError for a corpus that is not the one of the run's identity.
    """
    settings = run.settings
    plans = resolve(settings)
    matched = [
        plan
        for plan in plans
        if any(matches(pattern, plan.address) for pattern in run.brownian.match)
    ]
    with open_run(path) as directory:
        if directory.complete:
            return
        directory.load_checkpoint()
        corpus = None
        if run.reads_corpus:
            corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
            if corpus.hash != run.corpus:
                raise UserError(
                    f"the corpus {corpus.name} has changed since this run was planned; run again"
                )
        directory.start(
            {
                **run.describe(),
                "corpus": None,
                "rules": table(matched, settings),
                "products": products(matched, settings),
                "execution": {"device": "cpu", "precision": "float32"},
            }
        )
        torch.set_num_threads(run.execution.threads)
        log = _Log()
        layers = run.brownian.linear_layers
        found = matched if layers else walkers(plans, run.brownian.match, settings)
        for position, walker in enumerate(found):
            done = settings.train.steps * position

            def tell(step: int, done: int = done) -> None:
                report((done + step) // len(found), float("nan"))

            if layers:
                _walk_layer(log, walker, run, tell)
            elif walker.key == "embedding" and corpus is not None:
                _walk_tokens(log, walker, run, corpus, tell)
            else:
                _walk(log, walker, run, tell)
        log.write(directory)
        directory.finish({"validation_loss": None}, None)


class _Log:
    """What the walks gave, by step, until it is written in the order of steps."""

    def __init__(self) -> None:
        self.scalars: dict[int, dict[str, dict[str, float]]] = {}
        self.vectors: dict[int, dict[str, dict[str, list[float]]]] = {}

    def vector(self, step: int, stat: str, key: str, value: np.ndarray | Tensor) -> None:
        self.vectors.setdefault(step, {}).setdefault(stat, {})[key] = value.tolist()

    def norms(self, key: str, steps: np.ndarray, norms: np.ndarray, closed=None) -> None:
        """``norms`` (steps, draws), and the closed form of every step."""
        for step, row in zip(steps.tolist(), norms, strict=True):
            values = {"weight_norm": row.mean(), "weight_norm_sd": row.std(ddof=1)}
            if closed is not None:
                values["expected_norm"] = closed[step]
            for stat, value in values.items():
                self.scalars.setdefault(step, {}).setdefault(stat, {})[key] = float(value)
            self.vector(step, "weight_norm_draws", key, row)

    def write(self, directory: RunDirectory) -> None:
        for step in sorted(self.scalars):
            directory.append("probes.jsonl", {"step": step, "values": self.scalars[step]})
            directory.append("vectors.jsonl", {"step": step, "values": self.vectors[step]})


def _walk(log: _Log, walker: Walker, run: Run, tell: Callable[[int], None]) -> None:
    settings = run.settings
    total = settings.train.steps
    ends = (constant_end(settings.schedule, total), total)

    def report(step: int, values: Tensor) -> None:
        tell(step)
        if step in ends and walker.constant:
            kept = values.flatten()[:_KEPT]
            log.vector(step, "values", walker.key, kept.exp() if walker.log else kept)

    every = settings.probes.every
    steps, norms = simulate(walker, settings, run.brownian.draws, run.seed, every, report)
    closed = np.sqrt(expected_square(walker, settings)) if has_closed_form(walker) else None
    log.norms(walker.key, steps, norms, closed)


def _walk_layer(log: _Log, plan: TensorPlan, run: Run, tell: Callable[[int], None]) -> None:
    """The output of the linear layer ``plan``, from gradients of one input and of noise."""
    every, draws, cases = run.settings.probes.every, run.brownian.draws, linear_layer.CASES
    for position, case in enumerate(cases):
        done = run.settings.train.steps * position
        generator = torch.Generator().manual_seed(_seed(run.seed, f"{plan.key}.{case}"))
        found = linear_layer.simulate(
            plan, run.settings, case, draws, generator, every,
            lambda step, done=done: tell((done + step) // len(cases)),
        )  # fmt: skip
        key = f"{plan.key}.{case}"
        for number, step in enumerate(found.steps.tolist()):
            for stat, values in found.stats.items():
                log.scalars.setdefault(step, {}).setdefault(stat, {})[key] = float(
                    values[number].mean()
                )
                log.vector(step, f"{stat}_draws", key, values[number])


def _walk_tokens(
    log: _Log, walker: Walker, run: Run, corpus: data.Corpus, tell: Callable[[int], None]
) -> None:
    settings, train = run.settings, run.settings.train
    batches = data.Batches(
        corpus.train,
        train.batch_size,
        train.sequence_length,
        run.seed,
        settings.schedule,
        train.data_order,
    )
    generator = torch.Generator().manual_seed(_seed(run.seed, walker.key))
    draws, rates = run.brownian.draws, (walker.lr, walker.weight_decay)
    found = token_noise.simulate(settings, batches, draws, generator, walker.start, *rates, tell)
    log.norms(walker.key, found.steps, found.norms)
    for step, norms in found.row_norms.items():
        log.vector(step, "row_norms", walker.key, norms)
        log.vector(step, "frequency", walker.key, found.frequency)
