"""The stamp of a figure, ``.fig1.json``: digests of what it was drawn from, and of its files."""

from __future__ import annotations

import json
from pathlib import Path

from lrm.errors import UserError
from lrm.store.digests import digest, read_checked
from lrm.store.files import read_json, write_json


def stamp_of(folder: Path, figure: str) -> Path:
    """The path of the stamp of ``figure``, which was drawn into ``folder``."""
    return folder / f".{figure}.json"


def write_stamp(stamp: Path, inputs: dict[str, str], outputs: dict[str, bytes]) -> None:
    """Note the digests of the files of a figure, by name, and those of its ``inputs``."""
    drawn = {name: digest(outputs[name]) for name in sorted(outputs)}
    write_json(stamp, {"inputs": inputs, "outputs": drawn})


def is_current(stamp: Path, inputs: dict[str, str]) -> bool:
    """Whether a stamp tells of these inputs, and of the files that lie beside it."""
    try:
        said = json.loads(stamp.read_bytes())
        drawn: dict[str, str] = said["outputs"]
        return said["inputs"] == inputs and all(
            digest((stamp.parent / Path(name).name).read_bytes()) == found
            for name, found in drawn.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def inputs_of(stamp: Path) -> dict[str, str]:
    """What a stamp says that its figure was drawn from; nothing where it cannot be read."""
    try:
        said = json.loads(stamp.read_bytes())["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return said if isinstance(said, dict) else {}


def drawn_files(stamp: Path, remedy: str) -> dict[str, str]:
    """The digests of the files of a figure by name; none in a stamp of an earlier version.

    Raises UserError, which ends with the remedy, where the stamp is missing or damaged.
    """
    said = read_json(stamp, (), remedy)
    if isinstance(said, dict) and isinstance(drawn := said.get("outputs", {}), dict):
        return drawn
    raise UserError(f"{stamp} is damaged; {remedy}")


def read_drawn(path: Path, remedy: str) -> bytes:
    """A file of a figure, as it was drawn.

    Raises UserError, which ends with the remedy, where it or the stamp is missing or damaged.
    """
    drawn = drawn_files(stamp_of(path.parent, path.stem), remedy)
    return read_checked(path, str(drawn.get(path.name)), remedy)
