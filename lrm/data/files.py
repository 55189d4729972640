"""Documents in local files: whole text files, JSON lines, Parquet. Files are read as a stream."""

from __future__ import annotations

import glob
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from lrm.errors import UserError, first_line, shown
from lrm.plan.config import DataConfig
from lrm.store.files import named

# None stands in place of a text that is missing or cannot be decoded.
Texts = Iterator[str | None]

PATTERNS = {
    "folder": ("**/*.txt",),
    "jsonl": ("**/*.jsonl", "**/*.jsonl.gz", "**/*.jsonl.zst", "**/*.json.gz", "**/*.json.zst"),
    "parquet": ("**/*.parquet",),
}
_ROWS = 256  # read at a time from a Parquet file


def named_files(config: DataConfig) -> list[tuple[str, Path]]:
    """Names and paths of the files that ``data.path`` and ``data.pattern`` name, by name.

    ``data.path`` is a file, a folder (``data.pattern`` chooses among the files below it), or
    itself a pattern. Raises UserError if it is none of the three.
    """
    root = named(config.path or "", "data.path")
    if root.is_file():
        return [(root.name, root)]
    if root.is_dir():
        patterns = (config.pattern,) if config.pattern else PATTERNS[config.source]
        if any(".." in Path(pattern).parts for pattern in patterns):
            raise UserError(
                f"data.pattern = {shown(config.pattern)} leads out of data.path; name that folder "
                "as data.path"
            )
        try:
            for pattern in patterns:
                before, deep, _ = pattern.partition("**")
                above = before.rpartition("/")[0]
                for top in (root.glob(above) if above else [root]) if deep else ():
                    _refuse_hidden(top)
            paths = {path for pattern in patterns for path in root.glob(pattern)}
        except (NotImplementedError, ValueError, IndexError) as error:  # by "." the last
            raise UserError(
                f"data.pattern = {config.pattern!r} cannot be used ({error}); write one such as "
                f"{PATTERNS[config.source][0]!r}, relative to data.path"
            ) from None
        return sorted((path.relative_to(root).as_posix(), path) for path in paths if path.is_file())
    matches = [Path(match) for match in glob.glob(str(root), recursive=True)]
    if not matches:
        raise UserError(
            f"data.path = {config.path} is not a file or folder, and no file matches it; name "
            f"one that exists"
        )
    return sorted((path.as_posix(), path) for path in matches if path.is_file())


def _refuse_hidden(root: Path) -> None:
    """Raise where ``**`` would leave folders below ``root`` out without a word."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, names, _ in os.walk(root, onerror=refuse):
        if links := [name for name in sorted(names) if os.path.islink(os.path.join(folder, name))]:
            raise UserError(
                f"{os.path.join(folder, links[0])} links to a folder, and links are not followed; "
                "put that folder in its place, or remove the link"
            )


def recipe(config: DataConfig) -> dict[str, Any]:
    """Names, sizes and times of the files, and the field that is read.

    Raises UserError where they cannot be listed.
    """
    try:
        stats = [(name, path.stat()) for name, path in named_files(config)]
    except OSError as error:
        raise UserError(
            f"the files of data.path = {config.path} cannot be listed ({error}); make them "
            f"readable and leave them alone meanwhile"
        ) from None
    files = {"files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}
    return files if config.source == "folder" else {**files, "text_field": config.text_field}


def label(config: DataConfig) -> str:
    """The kind of source and the last part of its path."""
    return f"{config.source} {named(config.path or '', 'data.path').resolve().name}"


def remedy(config: DataConfig) -> str:
    """What to do where there are too few documents."""
    pattern = config.pattern or ", ".join(PATTERNS[config.source])
    kind = "UTF-8 files" if config.source == "folder" else "texts in files that"
    return (
        f"too few {kind} below {config.path} match {pattern!r}; set data.path and data.pattern, "
        f"or add files"
    )


def text_files(config: DataConfig, skip: int) -> Texts:
    """Every file is a document; the first ``skip`` are left out."""
    for _, path in named_files(config)[skip:]:
        try:
            yield read(path).decode("utf-8-sig")
        except UnicodeDecodeError:
            yield None


def read(path: Path) -> bytes:
    """A whole file; UserError if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); make it readable or leave it out"
        ) from None


def json_lines(config: DataConfig, skip: int) -> Texts:
    """Every line that is not blank is a JSON object with a document in ``data.text_field``.

    Files that end in .gz or .zst are decompressed on the way. The first ``skip`` lines are
    passed over unparsed. Raises UserError, naming file and line, for what is not JSON or has
    no such field.
    """
    for _, path in named_files(config):
        number = 0
        try:
            with io.BufferedReader(pyarrow.input_stream(path)) as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    if skip:
                        skip -= 1
                        continue
                    yield _text(line, config.text_field, f"{path}, line {number}")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read after line {number} ({error}); repair it or leave it out"
            ) from None


def _text(line: bytes, field: str, where: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); repair the line or take it out") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not a JSON object; write one object a line")
    return text_of(row, field, where)


def text_of(row: dict[str, Any], field: str, where: str) -> str | None:
    """The text of a row; UserError, opened by ``where``, if the field is missing or no text."""
    if field not in row:
        raise UserError(
            f"{where}: no field {field!r}; set data.text_field to one of {', '.join(row)}"
        )
    text = row[field]
    if not isinstance(text, str | None):
        raise UserError(
            f"{where}: field {field!r} holds no text but {type(text).__name__}; set "
            f"data.text_field to a field of texts"
        )
    return text


def parquet_rows(config: DataConfig, skip: int) -> Texts:
    """Every row is a document; only the column ``data.text_field`` is read, some rows at a time.

    The first ``skip`` rows are left out, whole row groups of them unread. Raises UserError,
    naming the file, if it is damaged, or has no such column of texts.
    """
    for _, path in named_files(config):
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                _check_column(file.schema_arrow, config.text_field, path)
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    if skip >= rows:
                        skip -= rows
                        continue
                    for batch in file.iter_batches(_ROWS, [group], [config.text_field]):
                        yield from batch.column(0).slice(skip).to_pylist()
                        skip = max(0, skip - len(batch))
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise UserError(
                f"{path} cannot be read as Parquet ({first_line(error)}); repair it or leave it out"
            ) from None


def _check_column(schema: pyarrow.Schema, field: str, path: Path) -> None:
    if field not in schema.names:
        raise UserError(
            f"{path}: no column {field!r}; set data.text_field to one of {', '.join(schema.names)}"
        )
    if schema.names.count(field) > 1:
        raise UserError(f"{path}: several columns are called {field!r}; rename all but one")
    kind, types = schema.field(field).type, pyarrow.types
    held = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(held) or types.is_large_string(held) or types.is_string_view(held)):
        raise UserError(
            f"{path}: column {field!r} holds no text but {kind}; set data.text_field to a column "
            f"of texts"
        )
