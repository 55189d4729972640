"""Batches as a pure function of the step, and the fixed sequences of validation."""

from __future__ import annotations

import hashlib

import numpy as np

from lrm.data.build import Corpus
from lrm.data.shards import Tokens
from lrm.errors import UserError
from lrm.plan.config import ScheduleConfig, Settings
from lrm.plan.schedule import batch_size_at, sequences_before

_CONSTANT = ScheduleConfig()


class Batches:
    """Shuffled windows of a token stream; any step can be asked for, in any order.

    Window ``w`` is ``tokens[w * L : w * L + L + 1]`` with ``L = sequence_length``: inputs and
    targets come from the same row, shifted by one, and every token is a target at most once an
    epoch. Row ``r`` of a step is sample ``i = r`` plus the sequences of all batches before it,
    and that is entry ``i % windows`` of the permutation of epoch ``i // windows``: a batch may
    cross from one epoch into the next, and a ramp of the batch size leaves no gap.
    """

    def __init__(
        self,
        tokens: np.ndarray | Tokens,
        batch_size: int,
        sequence_length: int,
        seed: int,
        schedule: ScheduleConfig = _CONSTANT,
        order: int = 0,
    ) -> None:
        """``tokens`` is one-dimensional, of any integer type; ``schedule`` holds the ramp.

        Each ``order`` of a seed is another permutation.

        Raises UserError if it holds no full window of ``sequence_length + 1`` tokens.
        """
        self.windows = (len(tokens) - 1) // sequence_length
        if self.windows < 1:
            raise UserError(
                f"the training split has {len(tokens)} tokens, less than one window of "
                f"{sequence_length + 1}; lower train.sequence_length or add documents"
            )
        self._tokens = tokens
        self._batch_size = batch_size
        self._schedule = schedule
        self._sequence_length = sequence_length
        self._seed = f"{seed}/{order}" if order else str(seed)
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """Tokens of one step, int64, of shape ``(batch // world, sequence_length + 1)``.

        ``batch`` is ``batch_size``, or what the ramp says. With ``world > 1``, the rows of
        ``rank``: stacked by rank they are the batch of ``world = 1``. Raises UserError if
        ``world`` does not divide the batch.
        """
        size = batch_size_at(self._schedule, self._batch_size, step)
        rows = rows_of_each(size, world)
        first = sequences_before(self._schedule, self._batch_size, step) + rank * rows
        windows = self._windows_of(np.arange(first, first + rows))
        return _gather(self._tokens, windows * self._sequence_length, self._sequence_length)

    def _windows_of(self, samples: np.ndarray) -> np.ndarray:
        epochs, positions = np.divmod(samples, self.windows)
        chosen = np.empty_like(samples)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            chosen[here] = self._permutation(int(epoch))[positions[here]]
        return chosen

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            key = hashlib.sha256(f"{self._seed} {epoch}".encode()).digest()[:16]
            # numpy keeps the raw stream of a bit generator across its versions, but not what
            # Generator.permutation makes of it.
            draws = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(self.windows)
            self._order = np.argsort(draws, kind="stable")
            self._epoch = epoch
        return self._order


def rows_of_each(batch_size: int, world: int) -> int:
    """Sequences of a batch for each of ``world`` processes; UserError if they do not divide it."""
    if batch_size % world:
        raise UserError(
            f"a batch of {batch_size} sequences (train.batch_size, or a stage of its ramp) cannot "
            f"be split over {world} processes; make it a multiple of {world}"
        )
    return batch_size // world


def batches_of(settings: Settings, corpus: Corpus, seed: int) -> Batches:
    """The training batches of a run, with its ramp and its order of the data."""
    train = settings.train
    sizes = (train.batch_size, train.sequence_length)
    return Batches(corpus.train, *sizes, seed, settings.schedule, train.data_order)


def fixed_sequences(tokens: np.ndarray | Tokens, count: int, sequence_length: int) -> np.ndarray:
    """Evenly spaced windows, int64, of shape ``(count, sequence_length + 1)``.

    They depend on nothing but the arguments, and no token is a target twice. Raises UserError
    if ``tokens`` is too short for that.
    """
    needed = count * sequence_length + 1
    if len(tokens) < needed:
        raise UserError(
            f"the validation split has {len(tokens)} tokens, but {count} sequences of "
            f"{sequence_length} need {needed}; lower train.validation_sequences or "
            f"train.sequence_length, or raise data.validation_fraction"
        )
    last = len(tokens) - sequence_length - 1
    starts = np.arange(count) * last // max(count - 1, 1)
    return _gather(tokens, starts, sequence_length)


def recalled(sequences: np.ndarray) -> np.ndarray:
    """Which targets of ``sequences`` (count, length + 1) end a pair that came before; bool.

    Of shape (count, length): whether a target and the token before it stand next to each other
    earlier in the same sequence. A model that can copy knows them ("associative recall" in Arora
    et al. 2023, arXiv 2312.04927), and some runs learn to do so sooner than others.
    """
    found = np.ones((len(sequences), sequences.shape[1] - 1), dtype=bool)
    for row, tokens in zip(found, sequences, strict=True):
        _, first = np.unique(np.stack([tokens[:-1], tokens[1:]]), axis=1, return_index=True)
        row[first] = False
    return found


def _gather(tokens: np.ndarray | Tokens, starts: np.ndarray, sequence_length: int) -> np.ndarray:
    return tokens[starts[:, None] + np.arange(sequence_length + 1)].astype(np.int64)
