"""``python -m analysis.notebooks``: run notebooks from top to bottom and store what they show.

Neither times nor names of the machine are stored, so that the same tables, drawn by the same
versions, give the same file. Needs the extra ``notebooks`` of pyproject.toml.
"""

from __future__ import annotations

import base64
import os
import tempfile
import time
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import nbformat
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets import DottedObjectName, Type

from analysis.drawing.pictures import in_palette
from analysis.tables.find import ROOT
from lrm.cli import Parser, guarded
from lrm.errors import UserError
from lrm.store.files import write_atomic

FOLDER = ROOT / "notebooks"
# Bytes of a stored notebook: every change of a figure stays in the repository's history.
LARGEST = 600_000
_CELL_SECONDS = 300
_LONGEST_FOLDER = 70  # characters, for sockets in it
_PNG = "image/png"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_NO_WIDGET = "Widgets appear here where a kernel runs: make lab"


class Seconds(NamedTuple):
    """What running a notebook took, with its kernel's start: by the clock, and of processors."""

    wall: float
    cpu: float


class Channel(AsyncZMQSocketChannel):
    """Looks for a message again after each second.

    A notebook once stood still for exactly the time that a cell may take, and then went on: its
    message had come, and nothing had woken who waited for it. Now that costs a second.
    """

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message; raises Empty if there is none after ``timeout`` seconds."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await super().get_msg(max(0.0, min(1.0, end - time.monotonic())))
            except Empty:
                if time.monotonic() >= end:
                    raise


class Client(AsyncKernelClient):
    """Listens to a kernel by ``Channel``."""

    shell_channel_class = Type(Channel)
    iopub_channel_class = Type(Channel)


class Manager(AsyncKernelManager):
    """Starts a kernel to which ``Client`` listens.

    They speak by files where the system can: a free port of the network that is chosen before the
    kernel binds it may be another process's by then.
    """

    client_class = DottedObjectName(f"{Client.__module__}.{Client.__qualname__}")
    # What is made in the end: its default in AsyncKernelManager does not look at client_class.
    client_factory = Type(Client)

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        # Not beside the connection file: a socket's name may have about a hundred characters.
        long = len(tempfile.gettempdir()) > _LONGEST_FOLDER
        self._folder = tempfile.TemporaryDirectory(prefix="lrm-", dir="/tmp" if long else None)
        if os.name == "posix":
            self.transport, self.ip = "ipc", f"{self._folder.name}/kernel"

    def cleanup_connection_file(self) -> None:
        """Remove all that this kernel was reached by."""
        super().cleanup_connection_file()
        self._folder.cleanup()


def main() -> None:
    """Parse the command line; run those notebooks, or all, and print a line for each."""
    parser = Parser(prog="python -m analysis.notebooks")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of notebooks/")
    options = parser.parse_args()
    guarded(lambda: _main(options.notebooks or sorted(FOLDER.glob("*.ipynb"))))


def _main(paths: list[Path]) -> None:
    for path in paths:
        took, size = run(path), path.stat().st_size / 1000
        print(f"{path.name}: {took.wall:.1f} s, {took.cpu:.1f} s of CPU, {size:.0f} kB", flush=True)


def run(path: Path) -> Seconds:
    """Run the notebook at ``path`` in its folder and store its outputs in it.

    Raises UserError, and leaves the file as it is, where a cell fails or the outputs are large.
    """
    if not path.is_file():
        raise UserError(f"there is no notebook {path}")
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # of whatever a file that is no notebook makes its reader raise
        raise UserError(f"{path} is no notebook ({error}); repair it") from None
    client = NotebookClient(
        notebook,
        kernel_manager_class=Manager,
        kernel_name="python3",
        timeout=_CELL_SECONDS,
        startup_timeout=_CELL_SECONDS,
        # Else what a busy kernel shows later than four seconds after a cell would be left out.
        iopub_timeout=_CELL_SECONDS,
        raise_on_iopub_timeout=True,
        resources={"metadata": {"path": str(path.resolve().parent)}},
        coalesce_streams=True,
        record_timing=False,
        # Else it warns of any local kernel, and of its end. Errors of cells come by another way.
        extra_arguments=["--Application.log_level=CRITICAL"],
    )
    wall, cpu = time.monotonic(), _children()
    try:
        client.execute()
    except CellExecutionError as error:
        raise UserError(f"{path}: a cell fails with {error.ename}: {error.evalue}") from error
    except DeadKernelError:
        raise UserError(
            f"{path}: its process has ended in a cell; memory may have run out"
        ) from None
    except CellTimeoutError:
        raise UserError(
            f"{path}: a cell takes longer than {_CELL_SECONDS} seconds; let it do less"
        ) from None
    seconds = Seconds(time.monotonic() - wall, _children() - cpu)
    _tidy(notebook)
    nbformat.validate(notebook)
    data = (nbformat.writes(notebook) + "\n").encode()
    if len(data) > LARGEST:
        raise UserError(
            f"{path} would have {len(data) / 1000:.0f} kB with its outputs, over "
            f"{LARGEST / 1000:.0f}: show fewer or smaller figures"
        )
    write_atomic(path, data)
    return seconds


def _children() -> float:
    """Seconds of CPU of all processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _tidy(notebook: NotebookNode) -> None:
    """Leave what the tables decide, and nothing that needs a kernel."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}  # else with the version
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if _WIDGET in data:
                output["data"] = {"text/plain": _NO_WIDGET}
            elif _PNG in data:
                data[_PNG] = base64.b64encode(in_palette(base64.b64decode(data[_PNG]))).decode()


if __name__ == "__main__":
    main()
