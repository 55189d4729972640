"""Whole matrices for Muon: which process orthogonalises which, and how rows get there and back.

Of a model in parts each process holds some rows of every matrix. Each matrix has an owner, which
gets the rows of the others, orthogonalises the matrix and sends every process its rows of the
update. One exchange brings all matrices to their owners, and another all updates back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lrm.optim.rows import Rows


def owners(shapes: Sequence[tuple[int, int]], processes: int) -> list[int]:
    """Who orthogonalises each matrix of these shapes (rows, columns), for equal shares of the work.

    A matrix costs rows × columns × the smaller of both. The most expensive goes first, always to
    the process that has least to do, and to the first of them where they are equal.
    """
    costs = [rows * columns * min(rows, columns) for rows, columns in shapes]
    work, found = [0] * processes, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda number: -costs[number]):
        found[number] = work.index(min(work))
        work[found[number]] += costs[number]
    return found


class Exchange:
    """Matrices, each a list of leaves with the rows that it is, in order.

    Where their rows lie on several processes, these call every method alike. Where copies of the
    model lie in parts, an owner gets the rows from its own copy and sends the update to all copies,
    which therefore stay equal to the last bit. Matrices that lie whole here are all owned here.
    """

    def __init__(self, matrices: Sequence[Sequence[tuple[nn.Parameter, Rows]]]):
        self.leaves = [leaf for matrix in matrices for leaf, _ in matrix]
        rows = [rows for matrix in matrices for _, rows in matrix]
        numbers = iter(range(len(rows)))
        self._members = [[next(numbers) for _ in matrix] for matrix in matrices]
        counts = [sum(rows[leaf].count for leaf in leaves) for leaves in self._members]
        self._columns = [leaf.shape[1] for leaf in self.leaves]
        columns = [self._columns[leaves[0]] for leaves in self._members]
        self.shapes = list(zip(counts, columns, strict=True))  # by matrix: rows, columns
        # Of the matrix of each leaf.
        self.matrix_shapes = [
            shape for shape, leaves in zip(self.shapes, self._members, strict=True) for _ in leaves
        ]
        self._counts = [each.count for each in rows]
        self._shards = rows[0].parts
        self._intervals = [[each.interval(n) for n in range(self._shards)] for each in rows]
        rank, world = 0, 1
        if rows[0].is_shared:
            rank, world = dist.get_rank(), dist.get_world_size()
        self._rank, self._ranks = rank, range(world)
        # Those that hold one copy of the model together with this process, in the order of rows.
        self._copy = [each for each in self._ranks if each // self._shards == rank // self._shards]
        self._owners = owners(self.shapes, world)
        self.own = [number for number, owner in enumerate(self._owners) if owner == rank]
        self._leaves: list[list[int]] = [[] for _ in self._ranks]  # by owner
        for leaves, owner in zip(self._members, self._owners, strict=True):
            self._leaves[owner] += leaves

    def gather(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The matrices ``own``, whole, from what lies here of every leaf."""
        mine = self._leaves[self._rank]
        sent: list[list[Tensor]] = [[] for _ in self._ranks]
        shapes: list[list[tuple[int, int]]] = [[] for _ in self._ranks]
        for rank in self._copy:
            sent[rank] = [parts[leaf] for leaf in self._leaves[rank]]
            shapes[rank] = [self._shape(leaf, rank) for leaf in mine]
        received = self._exchange(sent, shapes, parts[0])
        pieces = {
            leaf: [received[rank][place] for rank in self._copy] for place, leaf in enumerate(mine)
        }
        return [
            torch.cat([piece for leaf in self._members[number] for piece in pieces[leaf]])
            for number in self.own
        ]

    def scatter(self, updates: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """What lies here of the update of every leaf.

        ``updates`` holds those of the matrices ``own``, of the dtype and on the device of ``like``.
        """
        whole: dict[int, Tensor] = {}
        for number, update in zip(self.own, updates, strict=True):
            leaves = self._members[number]
            counts = [self._counts[leaf] for leaf in leaves]
            whole.update(zip(leaves, update.split(counts), strict=True))
        sent = [
            [update[slice(*self._interval(leaf, rank))] for leaf, update in whole.items()]
            for rank in self._ranks
        ]
        shapes = [[self._shape(leaf, self._rank) for leaf in leaves] for leaves in self._leaves]
        received = self._exchange(sent, shapes, like)
        found: dict[int, Tensor] = {}
        for leaves, pieces in zip(self._leaves, received, strict=True):
            found.update(zip(leaves, pieces, strict=True))
        return [found[leaf] for leaf in range(len(self.leaves))]

    def _interval(self, leaf: int, rank: int) -> tuple[int, int]:
        """Which rows of a leaf lie on ``rank``."""
        return self._intervals[leaf][rank % self._shards]

    def _shape(self, leaf: int, rank: int) -> tuple[int, int]:
        """Of what lies on ``rank`` of a leaf."""
        first, last = self._interval(leaf, rank)
        return last - first, self._columns[leaf]

    def _exchange(
        self, sent: list[list[Tensor]], shapes: list[list[tuple[int, int]]], like: Tensor
    ) -> list[list[Tensor]]:
        """Give rank r the tensors ``sent[r]``; from each r tensors of ``shapes[r]``."""
        if len(self._ranks) == 1:
            return sent
        sizes = [[rows * columns for rows, columns in each] for each in shapes]
        out = [sum(tensor.numel() for tensor in each) for each in sent]
        send = torch.cat([like.new_empty(0), *(t.flatten() for each in sent for t in each)])
        received = like.new_empty(sum(map(sum, sizes)))
        dist.all_to_all_single(received, send, [sum(each) for each in sizes], out)
        pieces = iter(received.split([size for each in sizes for size in each]))
        return [[next(pieces).view(shape) for shape in each] for each in shapes]
