"""The tensors of a checkpoint that many processes write together, each its own part of them.

They lie in a folder in the format of torch.distributed.checkpoint (DCP), so that any number of
processes may read them. Each process writes one file, beside training: what it writes is a copy.
When all files are on disk the first process is told their digests, and the checkpoint that names
them counts from then on. This module loads torch, which the planner must not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata

from lrm.errors import UserError
from lrm.store.digests import check_file, digest_of_file
from lrm.store.files import sync_folder, unwritable

_INDEX = ".metadata"  # DCP's name for what tells where each tensor lies

Commit = Callable[[dict[str, str]], None]


class Saving:
    """Tensors that are being written; ``wait`` returns when the checkpoint counts."""

    def __init__(
        self, folder: Path, tensors: dict[str, Tensor], commit: Commit, group: dist.ProcessGroup
    ):
        """Begin to write ``tensors``, which may change as soon as this returns.

        All processes of ``group``, which belongs to this alone and is gloo's, call it alike. The
        first calls ``commit`` with the digests by file name when all is on disk.
        """
        # Whatever lies whole on each process is in the first file, so that a process that reads
        # needs few files. The copy is made by the writer, before this returns.
        self._folder = folder
        self._future: Future = checkpoint.async_save(
            tensors,
            storage_writer=_Writer(folder, commit),
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=group,
        )

    def wait(self) -> None:
        """Raises what kept any process from writing, or the first from counting it."""
        try:
            self._future.result()
        except CheckpointException as error:
            raise _unwritten(self._folder, _cause(error)) from None


def load(folder: Path, digests: Mapping[str, str], tensors: dict[str, Tensor], remedy: str) -> None:
    """Fill ``tensors`` with what was written, whatever part of each lies here.

    No process waits for another. Raises UserError, which ends with the remedy, where a file is
    missing or damaged, or where other tensors were written.
    """
    check_file(folder / _INDEX, digests.get(_INDEX, ""), remedy)
    reader = _Reader(folder, digests, remedy)
    if reader.read_metadata().state_dict_metadata.keys() != tensors.keys():
        raise UserError(f"{folder} is that of another model; {remedy}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            checkpoint.load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            raise _cause(error) from None


class _Writer(checkpoint.FileSystemWriter):
    """DCP's writer of files, which tells the first process their digests."""

    def __init__(self, folder: Path, commit: Commit):
        super().__init__(folder)
        self._commit = commit

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            results = super().write_data(plan, planner).value()
            names = {result.storage_data.relative_path for result in results}
            digests = {name: digest_of_file(self.path / name) for name in names}
            sync_folder(self.path)
        except Exception as error:
            raise _unwritten(self.path, error) from None
        told = torch.futures.Future()
        told.set_result([*results, digests])
        return told

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        digests: dict[str, str] = {}
        for *_, own in results:
            digests |= own
        try:
            super().finish(metadata, [written for *written, _ in results])
            digests[_INDEX] = digest_of_file(self.path / _INDEX)
            for folder in (self.path, self.path.parent):
                sync_folder(folder)
        except Exception as error:
            raise _unwritten(self.path, error) from None
        self._commit(digests)


class _Reader(checkpoint.FileSystemReader):
    """DCP's reader of files, which compares their digests before."""

    def __init__(self, folder: Path, digests: Mapping[str, str], remedy: str):
        super().__init__(folder)
        self._digests, self._remedy = digests, remedy

    def read_data(self, plan: Any, planner: Any) -> Any:
        names = {self.storage_data[item.storage_index].relative_path for item in plan.items}
        for name in sorted(names):
            check_file(self.path / name, self._digests.get(name, ""), self._remedy)
        return super().read_data(plan, planner)


def _unwritten(folder: Path, error: BaseException) -> BaseException:
    """The error of a full disk, which torch hides behind its own; others as they are."""
    cause: BaseException | None = None if isinstance(error, UserError) else error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return error if cause is None else unwritable(folder, cause)


def _cause(error: CheckpointException) -> BaseException:
    """What went wrong in the first of the processes in which anything did."""
    return error.failures[min(error.failures)][0]
