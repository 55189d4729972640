"""Several processes that train one run together: who they are, and how they end together.

Processes come from ``torchrun`` (or anything that sets its environment variables). Gradients
are averaged by torch's DistributedDataParallel, over NCCL on GPUs and gloo elsewhere. All else
that is exchanged is small and goes over gloo.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lrm.cli import stop_delayed
from lrm.errors import Stopped, UserError, ending

_POLL = 0.1  # seconds between two looks at whether another process has failed
_PATIENCE = 10.0  # seconds for the others to take note of it
# The first process may read and encode a corpus for days before the others have work; what
# fails is noticed by the watch, not by running out of time.
_FOREVER = timedelta(days=365)
# Of GPUs, where all take the same steps: one that hangs must not hold the others for a job's time.
_HANGS = timedelta(hours=1)


class Group:
    """One process by itself; the methods say what several make of them."""

    rank = 0
    world = 1
    local_rank = 0  # among those of this machine: the number of its GPU

    def first(self, value: Any) -> Any:
        """What the first process calls ``value``; waits for it."""
        return value

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the processes, in float64 and on the CPU; the same bits in all of them."""
        return values

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set in any process."""
        return flag

    def meet(self) -> None:
        """Wait until all processes are here."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """What to call for a forward pass whose backward averages gradients."""
        return model

    def accumulating(self, model: nn.Module, more: bool) -> contextlib.AbstractContextManager:
        """Around forward and backward of a micro-batch: nothing is sent while ``more`` follow."""
        return contextlib.nullcontext()


ALONE = Group()


class Processes(Group):
    """One of several; made by ``join``."""

    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world
        self.local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self._small = dist.new_group(backend="gloo", timeout=_FOREVER)
        # For a thread beside training, whose messages must not mix with those of training.
        self.beside = dist.new_group(backend="gloo", timeout=_FOREVER)

    def first(self, value: Any) -> Any:
        box = [value if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0, group=self._small)
        return box[0]

    def mean(self, values: Tensor) -> Tensor:
        if self.world == 1:
            return values
        total = values.detach().to("cpu", torch.float64, copy=True)
        dist.all_reduce(total, group=self._small)
        return total / self.world

    def any(self, flag: bool) -> bool:
        return self.mean(torch.tensor(float(flag))).item() > 0

    def meet(self) -> None:
        # What is broadcast does not wait for all that hear it.
        dist.barrier(group=self._small)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.world == 1:
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def accumulating(self, model: nn.Module, more: bool) -> contextlib.AbstractContextManager:
        # A model in parts sends every time, and so never has all of its gradients in one place.
        waits = more and isinstance(model, DistributedDataParallel)
        return model.no_sync() if waits else contextlib.nullcontext()


@contextlib.contextmanager
def join() -> Iterator[Group]:
    """The group of this process, as ``torchrun``'s environment variables describe it.

    An exception on any process, or its exit with a code, ends all of them at once with one
    exit code, wherever they wait; the first process prints the line for people, if there is
    one. Raises UserError where the processes do not find each other.
    """
    try:
        store, rank, world = next(dist.rendezvous("env://"))
        watch = _Watch(store.clone(), rank, world)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"the processes do not meet ({reason}); start them by torchrun") from None
    watch.start()
    # A signal is reported where it is heard. Two at once would raise a second exception on the way
    # to the report, and an ordinary exit, while the watch calls the store, ends in C++'s terminate.
    with stop_delayed(lambda: watch.report(Stopped(stops[0]))) as stops:
        try:
            # Without a name torch takes the accelerator's backend alone, and runs on the CPU have
            # none. Where the first process measures for hours the others wait in the group of
            # small things, which has no limit.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            limit = _HANGS if torch.cuda.is_available() else _FOREVER
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=world, timeout=limit
            )
            group = Processes(rank, world)
            if torch.cuda.is_available() and group.local_rank < torch.cuda.device_count():
                torch.cuda.set_device(group.local_rank)  # what cuda stands for in this process
            yield group
            group.meet()  # all have done their work
            watch.stop()
            group.meet()  # nobody watches any more: the store may go
        except BaseException as error:
            watch.report(error)
    dist.destroy_process_group()


class _Watch(threading.Thread):
    """Ends this process when any has failed, also while it is blocked in a collective.

    Told through the store of the rendezvous, over a connection of its own.
    """

    def __init__(self, store: dist.Store, rank: int, world: int):
        super().__init__(daemon=True)
        self._store, self._rank, self._world = store, rank, world
        self._over = threading.Event()
        self._reported = False

    def stop(self) -> None:
        """No failure is expected any more."""
        self._over.set()
        self.join()

    def report(self, error: BaseException) -> None:
        """Tell all processes how to end, unless another has already; never returns.

        Called again meanwhile, for a signal, it returns: the first call goes on.
        """
        if self._reported:
            return
        self._reported = True
        if self._store.add("lrm/failures", 1) == 1:
            known = ending(error, resumes=True)
            if known is None:
                traceback.print_exception(error)
            self._store.set("lrm/ending", json.dumps(known or (1, None)))
        time.sleep(2 * _PATIENCE)
        os._exit(1)

    def run(self) -> None:
        while not self._over.wait(_POLL):
            try:
                if self._store.check(["lrm/ending"]):
                    self._end(*json.loads(self._store.get("lrm/ending")))
            except RuntimeError:  # the process that keeps the store has gone
                os._exit(1)

    def _end(self, code: int, line: str | None) -> None:
        """The first process speaks when all have heard, the others leave when it has spoken."""
        # torchrun ends all processes as soon as one has failed, spoken or not.
        with contextlib.suppress(RuntimeError):
            self._store.add("lrm/heard", 1)
            if self._rank == 0:
                self._until(lambda: self._store.add("lrm/heard", 0) >= self._world)
                if line is not None:
                    print(line, file=sys.stderr)
                with contextlib.suppress(BrokenPipeError):
                    sys.stdout.flush()
                self._store.set("lrm/spoken", "")
            else:
                self._until(lambda: self._store.check(["lrm/spoken"]))
        sys.stderr.flush()
        # Not an ordinary exit: the main thread may never come back from what it waits for.
        os._exit(code)

    def _until(self, happened) -> None:
        limit = time.monotonic() + _PATIENCE
        while not happened() and time.monotonic() < limit:
            time.sleep(_POLL / 10)
