"""Where documents come from: one small object per source, behind ``SOURCES``."""

from __future__ import annotations

import hashlib
import io
import itertools
import platform
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrm.config import DataConfig
from lrm.errors import UserError

# Name and text; None in place of a text that cannot be decoded.
Document = tuple[str, str | None]


@dataclass(frozen=True)
class Source:
    """One kind of corpus. All four functions raise UserError for what the user can repair."""

    # Short human name, which also opens the name of the prepared folder.
    label: Callable[[DataConfig], str]
    # What decides the documents, as plain data, found without reading them.
    recipe: Callable[[DataConfig], dict[str, Any]]
    documents: Callable[[DataConfig], Iterator[Document]]
    # What to say, and to do, when there are no documents or too few.
    remedy: Callable[[DataConfig], str]


# Third-party code, and files that describe one installation and would tie the corpus to it.
_FOREIGN = re.compile(
    r"(^|/)(site-packages|dist-packages|__pycache__|config-[^/]*|_sysconfigdata[^/]*"
    r"|sitecustomize\.py|usercustomize\.py)(/|$)"
)


def _stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _stdlib_documents(config: DataConfig) -> Iterator[Document]:
    root = _stdlib_root()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not _FOREIGN.search(name) and path.is_file():
            yield name, _decode_python(_read(path))


def _decode_python(content: bytes) -> str | None:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        return None


def _folder_files(config: DataConfig) -> list[tuple[str, Path]]:
    root = _folder_root(config)
    if not root.is_dir():
        raise UserError(f"data.path = {config.path} is not a folder; name one that exists")
    try:
        paths = [path for path in root.glob(config.pattern) if path.is_file()]
    except (NotImplementedError, ValueError) as error:
        raise UserError(
            f"data.pattern = {config.pattern!r} cannot be used ({error}); write one such as "
            f"'**/*.txt', relative to data.path"
        ) from None
    return sorted((path.relative_to(root).as_posix(), path) for path in paths)


def _folder_root(config: DataConfig) -> Path:
    return Path(config.path or "").expanduser()


def _folder_recipe(config: DataConfig) -> dict[str, Any]:
    try:
        stats = [(name, path.stat()) for name, path in _folder_files(config)]
    except OSError as error:
        raise UserError(
            f"the files below data.path = {config.path} cannot be listed ({error}); make them "
            f"readable and leave them alone meanwhile"
        ) from None
    return {"files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}


def _folder_documents(config: DataConfig) -> Iterator[Document]:
    for name, path in _folder_files(config):
        try:
            yield name, _read(path).decode("utf-8-sig")
        except UnicodeDecodeError:
            yield name, None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); make it readable or leave it out"
        ) from None


_WORDS = 256
_SUCCESSORS = 8
_LENGTHS = (150, 450)  # words of a document


def _synthetic_documents(config: DataConfig) -> Iterator[Document]:
    rng = _uniform(config.synthetic_seed)
    words = _made_up_words(rng)
    zipf = np.cumsum(1 / np.arange(1, _WORDS + 1))
    zipf /= zipf[-1]
    # Favourite successors follow the same skewed distribution, so it stays the marginal one.
    successors = np.searchsorted(zipf, rng.random((_WORDS, _SUCCESSORS)))
    low, high = _LENGTHS
    for number in range(config.synthetic_documents):
        # A generator per document: asking for more documents leaves the first ones alone.
        rng = _uniform(config.synthetic_seed, number)
        length = low + int(rng.random() * (high - low))
        free = np.searchsorted(zipf, rng.random(length))
        kinds, picks = rng.random(length), (rng.random(length) ** 2 * _SUCCESSORS).astype(int)
        word, text = free[0], []
        for position in range(length):
            follows = kinds[position] < 0.8
            word = successors[word, picks[position]] if follows else free[position]
            # A free choice opens a new line, which makes its entropy visible to a model.
            text.append((" " if follows else "\n") + words[word])
        yield f"{number:08d}", "".join(text)[1:] + "\n"


def _made_up_words(rng: np.random.Generator) -> list[str]:
    syllables = [a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou")]
    words: dict[str, None] = {}
    while len(words) < _WORDS:
        count = 1 + int(rng.random() * 3)
        words["".join(syllables[int(x * len(syllables))] for x in rng.random(count))] = None
    return list(words)


def _uniform(*key: int) -> np.random.Generator:
    # Of its methods only random() is used: a scaled raw draw, the same in all versions of numpy.
    digest = hashlib.sha256(repr(key).encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def _huggingface_documents(config: DataConfig) -> Iterator[Document]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(
            "data.source = huggingface needs the data extra: pip install -e .[data]"
        ) from None
    where = f"data set {config.path} (subset {config.subset}, split {config.split})"
    try:
        rows = load_dataset(config.path, config.subset, split=config.split, streaming=True)
        for number, row in enumerate(rows):
            if config.text_field not in row:
                raise UserError(
                    f"{where} has no field {config.text_field!r}; set data.text_field to one of "
                    f"{', '.join(row)}"
                )
            yield f"{number:012d}", row[config.text_field]
    except (OSError, ValueError) as error:
        raise UserError(
            f"{where} cannot be read ({error}); check data.path, data.subset, data.split and the "
            f"network"
        ) from None


def _huggingface_recipe(config: DataConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("path", "subset", "split", "text_field")}


SOURCES: dict[str, Source] = {
    "stdlib": Source(
        label=lambda config: f"stdlib {platform.python_version()}",
        recipe=lambda config: {"python": platform.python_version()},
        documents=_stdlib_documents,
        remedy=lambda config: (
            f"the standard library in {_stdlib_root()} holds too few .py files; use a Python "
            f"that ships its sources"
        ),
    ),
    "folder": Source(
        label=lambda config: f"folder {_folder_root(config).resolve().name}",
        recipe=_folder_recipe,
        documents=_folder_documents,
        remedy=lambda config: (
            f"too few UTF-8 files below {config.path} match {config.pattern!r}; set data.path "
            f"and data.pattern, or add files"
        ),
    ),
    "synthetic": Source(
        label=lambda config: f"synthetic {config.synthetic_documents}",
        recipe=lambda config: {
            "documents": config.synthetic_documents,
            "seed": config.synthetic_seed,
        },
        documents=_synthetic_documents,
        remedy=lambda config: "raise data.synthetic_documents",
    ),
    "huggingface": Source(
        label=lambda config: f"huggingface {config.path}",
        recipe=_huggingface_recipe,
        documents=_huggingface_documents,
        remedy=lambda config: (
            f"data set {config.path}, split {config.split}, holds too few texts; set data.split "
            f"or data.path"
        ),
    ),
}
