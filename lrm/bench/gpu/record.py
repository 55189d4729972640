"""What ``make gpu`` has found on one device, kept item by item. No torch here.

While it is taken a record lies in the user's results, ``gpu/<name>/record.json``, and is written
whole after each item. What was found on a GPU is then copied to ``reference/gpu/<name>.json``. An
item that stands there is not measured again, and never replaced. A toy stays in ``gpu``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lrm.errors import UserError, shown
from lrm.store.digests import sealed
from lrm.store.files import as_json, make_folder, read_json, write_listed, write_sealed
from lrm.store.lock import publishing

_KEYS = ("name", "toy", "calls", "parts")


def name_of(device: str, toy: bool) -> str:
    """The name of a device as that of a file: "NVIDIA H100 PCIe" is nvidia-h100-pcie."""
    plain = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:70] or "device"
    return f"toy-{plain}" if toy else plain


class Record:
    """The record ``name`` in the folder ``results``, with what it holds already.

    ``parts`` maps a part to its items: by name each item's ``result``, or the line with which it
    ``failed``, its ``seconds``, and by ``call`` the entry of ``calls`` that says on what machine,
    with what versions and when it was taken. Raises UserError for a damaged file, and for a name
    that is no name of a file.
    """

    def __init__(self, results: Path, name: str, toy: bool):
        if not re.fullmatch(r"\w[\w.-]{0,79}", name):
            raise UserError(f"--name {shown(name)}: write up to 80 letters, digits, . and -")
        self.folder = results / "gpu" / name
        self.path = self.folder / "record.json"
        self.published = None if toy else results / "reference" / "gpu" / f"{name}.json"
        self.content: dict[str, Any] = {"name": name, "toy": toy, "calls": {}, "parts": {}}
        self._machine: dict[str, Any] = {}
        self._call = ""
        for path in filter(None, (self.path, self.published)):
            if path.exists():
                self._take(path)

    def _take(self, path: Path) -> None:
        """What stands in ``path`` comes before what was known."""
        remedy = "restore it from the repository" if path == self.published else f"remove {path}"
        found = read_json(path, _KEYS, remedy)
        if found["toy"] != self.content["toy"]:
            kind = "a toy" if found["toy"] else "no toy"
            raise UserError(f"{path} is {kind}; choose another --name")
        for part, items in found["parts"].items():
            known = self.items(part)
            # A failure that was overcome, but not yet published, is overcome.
            kept = {n: i for n, i in items.items() if "result" in i or n not in known}
            found["parts"][part] = {**known, **kept}
        found["parts"] = {**self.content["parts"], **found["parts"]}
        found["calls"] = {**self.content["calls"], **found["calls"]}
        self.content |= {key: value for key, value in found.items() if key != "digest"}

    def begin(self, device: dict[str, Any], machine: dict[str, Any], **values: Any) -> None:
        """A call on ``machine`` begins; ``device`` and ``values`` hold for the whole record.

        Raises UserError where the record is of another device.
        """
        known = self.content.setdefault("device", device)
        if known["name"] != device["name"]:
            raise UserError(
                f"{self.path.parent.name} is a record of {known['name']}, and this is "
                f"{device['name']}; choose another --name"
            )
        self.content |= values
        self._machine = machine
        # Calls of one second have names of their own.
        same = sum(call.startswith(machine["started"]) for call in self.content["calls"])
        self._call = machine["started"] + (f" ({same + 1})" if same else "")

    def items(self, part: str) -> dict[str, Any]:
        """What is known of a part, by the names of its items."""
        return self.content["parts"].get(part, {})

    def forget_failures(self, part: str) -> None:
        """Have what failed measured again; what was found stays."""
        kept = {name: item for name, item in self.items(part).items() if "failed" not in item}
        self.content["parts"][part] = kept

    def add(self, part: str, name: str, item: dict[str, Any]) -> None:
        """Keep an item of this call; it is on disk when this returns."""
        self.content["calls"][self._call] = self._machine
        self.content["parts"].setdefault(part, {})[name] = {**item, "call": self._call}
        self._write()

    def _write(self) -> None:
        make_folder(self.folder)
        write_sealed(self.path, self.content)

    def publish(self) -> Path:
        """Copy the record to where it is published, unless it is a toy; where it is to be read."""
        if self.published is None:
            if not self.path.exists():  # nothing was taken in time
                self._write()
            return self.path
        make_folder(self.published.parent)
        content = {self.published.name: as_json(sealed(self.content))}
        with publishing(self.published.parents[2]):
            write_listed(self.published.parent, content)
        return self.published
