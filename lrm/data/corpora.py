"""Where documents come from: one small object per source, behind ``SOURCES``."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import itertools
import platform
import re
import sysconfig
import time
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrm.data import files
from lrm.data.files import Texts
from lrm.errors import UserError, shown
from lrm.plan.config import DataConfig


@dataclass
class Place:
    """How far a source has been read, so that another process can go on from there."""

    documents: int = 0
    # Where a source that cannot count its way there has more to say, as plain data.
    state: Any = None
    save_state: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Source:
    """One kind of corpus. All four functions raise UserError for what the user can repair."""

    # Short human name, which also opens the name of the prepared folder.
    label: Callable[[DataConfig], str]
    # What decides the documents, as plain data, found without reading them.
    recipe: Callable[[DataConfig], dict[str, Any]]
    # Always in the same order, from the given place on. The caller counts ``documents``.
    documents: Callable[[DataConfig, Place], Texts]
    # What to say, and to do, when there are no documents or too few.
    remedy: Callable[[DataConfig], str]


# Third-party code, and files that describe one installation and would tie the corpus to it.
_FOREIGN = re.compile(
    r"(^|/)(site-packages|dist-packages|__pycache__|config-[^/]*|_sysconfigdata[^/]*"
    r"|sitecustomize\.py|usercustomize\.py)(/|$)"
)


def _stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _stdlib_documents(config: DataConfig, place: Place) -> Texts:
    root = _stdlib_root()
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    own = [name for name in names if not _FOREIGN.search(name) and (root / name).is_file()]
    for name in own[place.documents :]:
        yield _decode_python(files.read(root / name))


# How, from what and for whom a package was built; numpy.distutils is there for old Pythons only.
# All other sources are equal in the wheels of one version, for whatever system, device or Python.
_OF_ONE_BUILD = re.compile(
    r"(version|_version|_version_meson|release|__config__|_distributor_init(_local)?)\.py"
    r"|distutils/.*"
)


def _package_roots(name: str) -> list[Path]:
    """The folders of a package, which is not imported; UserError if it is not there."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # of __main__ and the like
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"data.source = packages: there is no package {shown(name)}; install it, or leave it "
            f"out of data.packages"
        )
    return [Path(root) for root in spec.submodule_search_locations]


def _package_version(name: str) -> str:
    _package_roots(name)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"data.source = packages: {shown(name)} has no version, since nothing was installed "
            f"under that name; leave it out of data.packages"
        ) from None


def _package_documents(config: DataConfig, place: Place) -> Texts:
    """The sources of all packages, mixed: in the order of the digests of their names.

    The tokenizer sees only the first texts, and ``data.tokens`` may keep only these. So they
    must be a fair sample of all packages.
    """
    found = {
        f"{package}/{name}": root / name
        for package in config.packages
        for root in _package_roots(package)
        for name in (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
        if not _OF_ONE_BUILD.fullmatch(name)
    }
    mixed = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
    for name in [name for name in mixed if found[name].is_file()][place.documents :]:
        yield _decode_python(files.read(found[name]))


def _decode_python(content: bytes) -> str | None:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        return None


_WORDS = 256
_SUCCESSORS = 8
_LENGTHS = (150, 450)  # words of a document


def _synthetic_documents(config: DataConfig, place: Place) -> Texts:
    rng = _uniform(config.synthetic_seed)
    words = _made_up_words(rng)
    zipf = np.cumsum(1 / np.arange(1, _WORDS + 1))
    zipf /= zipf[-1]
    # Favourite successors follow the same skewed distribution, so it stays the marginal one.
    successors = np.searchsorted(zipf, rng.random((_WORDS, _SUCCESSORS)))
    low, high = _LENGTHS
    for number in range(place.documents, config.synthetic_documents):
        # A generator per document: asking for more documents leaves the first ones alone.
        rng = _uniform(config.synthetic_seed, number)
        length = low + int(rng.random() * (high - low))
        free = np.searchsorted(zipf, rng.random(length))
        follows = rng.random(length) < 0.8
        ranks = (rng.random(length) ** 2 * _SUCCESSORS).astype(int)
        word, text = free[0], []
        for position in range(length):
            word = successors[word, ranks[position]] if follows[position] else free[position]
            # A free choice opens a new line, which makes its entropy visible to a model.
            text.append((" " if follows[position] else "\n") + words[word])
        yield "".join(text)[1:] + "\n"


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


_WAITS = (1, 5, 30, 120)  # seconds before the stream is opened again


def _huggingface_documents(config: DataConfig, place: Place) -> Texts:
    """Rows of a stream, opened again where it was when the connection is lost."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(
            "data.source = huggingface needs the data extra: pip install 'lrm-suite[data]'"
        ) from None
    where = f"data set {config.path} (subset {config.subset}, split {config.split})"
    # The caller moves ``place`` on with every document.
    first = number = place.documents
    state, failures = place.state, 0
    while True:
        try:
            rows = load_dataset(config.path, config.subset, split=config.split, streaming=True)
            # Of Parquet this reads one column only. Some streams learn their columns on the way.
            if config.text_field in (rows.column_names or ()):
                rows = rows.select_columns([config.text_field])
            if state is not None:
                rows.load_state_dict(state)
            place.save_state = rows.state_dict
            for row in rows:
                failures = 0
                yield files.text_of(row, config.text_field, where)
                number += 1
            return
        except UserError:
            raise
        except Exception as error:  # of the network, of its clients, of every file format
            # What fails at the first row has a wrong name or no network: waiting hardly helps.
            if number == 0 or failures == len(_WAITS) or isinstance(error, ValueError):
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UserError(
                    f"{where} cannot be read after row {number} ({reason}); check "
                    f"data.path, data.subset, data.split and the network, and run again"
                ) from None
            time.sleep(_WAITS[failures])
            failures += 1
            state = place.save_state() if number > first else state


def _local(documents: Callable[[DataConfig, int], Texts]) -> Source:
    return Source(
        label=files.label,
        recipe=files.recipe,
        documents=lambda config, place: documents(config, place.documents),
        remedy=files.remedy,
    )


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
    "packages": Source(
        label=lambda config: f"{len(config.packages)} Python packages",
        recipe=lambda config: {name: _package_version(name) for name in config.packages},
        documents=_package_documents,
        remedy=lambda config: (
            f"the packages {', '.join(config.packages)} hold too few .py files; name others in "
            f"data.packages, or install them with their sources"
        ),
    ),
    "folder": _local(files.text_files),
    "jsonl": _local(files.json_lines),
    "parquet": _local(files.parquet_rows),
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
        recipe=lambda config: {
            name: getattr(config, name) for name in ("path", "subset", "split", "text_field")
        },
        documents=_huggingface_documents,
        remedy=lambda config: (
            f"data set {config.path}, split {config.split}, holds too few texts; set data.split "
            f"or data.path"
        ),
    ),
}
