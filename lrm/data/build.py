"""From a ``DataConfig`` to a tokenized corpus on disk, built once and then opened."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrm.config import DataConfig
from lrm.data import tokenizer as bpe
from lrm.data.corpora import SOURCES
from lrm.data.shards import ShardWriter, damaged, open_shard, verify_shard
from lrm.errors import UserError

# Raise when the same documents would come out as other tokens or another split.
FORMAT = 2
SPLITS = ("train", "validation")
_BPE_SAMPLE = 8_000_000  # bytes of training text that a tokenizer is trained on
_ENCODE_BATCH = 2_000_000  # bytes encoded at a time


@dataclass(frozen=True, eq=False)
class Corpus:
    """An opened corpus; ``train`` and ``validation`` are memory-mapped tokens, shape ``(n,)``.

    ``hash`` is the identity of the content: equal hashes mean equal documents, split and
    tokens. ``meta`` has ``python``, ``duplicates`` and ``undecodable`` (documents left out),
    ``tokenizer_entries``, and under ``splits`` the ``documents``, ``bytes`` (of UTF-8 text) and
    ``tokens`` of each split. ``path / "tokenizer.json"`` is the tokenizer.
    """

    path: Path
    hash: str
    name: str
    train: np.ndarray
    validation: np.ndarray
    vocab_size: int
    meta: dict[str, Any]


def prepare(
    config: DataConfig,
    vocab_size: int,
    folder: Path,
    progress: Callable[[str], None] = lambda message: None,
) -> Corpus:
    """Open the corpus of ``config`` below ``folder``; build it first if it is not there.

    A build appears under its final name only when it is complete, and processes that want the
    same corpus wait for the one that builds it. ``progress`` receives lines for people.

    Raises UserError if the source has too few documents, the tokenizer does not fit, ``folder``
    cannot be written, or the files of an earlier build are damaged.
    """
    target = Path(folder) / _folder_name(config, vocab_size)
    try:
        if not target.exists():
            _build_once(config, vocab_size, target, progress)
    except OSError as error:
        raise UserError(
            f"cannot write the corpus below {folder} ({error.strerror or error}); name a folder "
            f"that can be written and has space"
        ) from error
    return _open(target)


def identity(config: DataConfig, vocab_size: int, folder: Path) -> str | None:
    """The hash that ``prepare`` would return, if the corpus is built and readable, else None.

    Reads one small file and never builds.
    """
    try:
        return _read_meta(Path(folder) / _folder_name(config, vocab_size))["hash"]
    except UserError:
        return None


def verify(corpus: Corpus) -> None:
    """Read every token; UserError if a shard does not match its checksum or vocabulary."""
    for split in SPLITS:
        verify_shard(corpus.path / f"{split}.bin", corpus.vocab_size)


def _folder_name(config: DataConfig, vocab_size: int) -> str:
    source = SOURCES[config.source]
    recipe = {
        "format": FORMAT,
        "source": config.source,
        "documents": source.recipe(config),
        "validation_fraction": config.validation_fraction,
        "vocab_size": vocab_size,
        "tokenizer": config.tokenizer and bpe.file_digest(config.tokenizer),
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:8]
    tokens = ("tokenizer" if config.tokenizer else "bpe") + str(vocab_size)
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', source.label(config))}-{tokens}-{digest}"


def _open(path: Path) -> Corpus:
    meta = _read_meta(path)
    train, validation = (open_shard(path / f"{split}.bin") for split in SPLITS)
    return Corpus(path, meta["hash"], meta["name"], train, validation, meta["vocab_size"], meta)


def _read_meta(path: Path) -> dict[str, Any]:
    file = path / "meta.json"
    try:
        meta = json.loads(file.read_bytes())
    except OSError as error:
        raise damaged(file, f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise damaged(file, "is not JSON") from None
    if not isinstance(meta, dict) or not {"hash", "name", "vocab_size"} <= meta.keys():
        raise damaged(file, "is incomplete")
    return meta


def _build_once(
    config: DataConfig, vocab_size: int, target: Path, progress: Callable[[str], None]
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f".{target.name}.lock", "a") as lock:
        # Some network file systems have no locks; there the rename below decides alone.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting for another process that builds {target.name}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            # Under the lock nobody else builds, so these come from builds that were killed.
            for stale in target.parent.glob(f".{target.name}.*.tmp"):
                shutil.rmtree(stale, ignore_errors=True)
        if target.exists():
            return
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        try:
            temporary.mkdir()
            _build(config, vocab_size, temporary, progress)
            try:
                temporary.rename(target)
            except OSError:
                if not target.exists():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _build(
    config: DataConfig, vocab_size: int, folder: Path, progress: Callable[[str], None]
) -> None:
    source = SOURCES[config.source]
    label = source.label(config)
    # What can be refused at once is refused before minutes of reading.
    given = bpe.load(config.tokenizer, vocab_size) if config.tokenizer else None
    if given is None:
        bpe.check_trainable(vocab_size)

    progress(f"reading the documents of {label}")
    with _Spool(folder / "documents.tmp") as spool:
        for name, text in source.documents(config):
            spool.add(name, text)
        splits = spool.split(config.validation_fraction)
        if not any(splits.values()):
            raise UserError(f"the corpus is empty: {source.remedy(config)}")
        for split, documents in splits.items():
            if not documents:
                raise UserError(
                    f"none of the {len(spool)} documents of {label} falls into the {split} split: "
                    f"change data.validation_fraction = {config.validation_fraction}, or: "
                    f"{source.remedy(config)}"
                )

        tokenizer = given
        if tokenizer is None:
            progress(f"training a tokenizer of {vocab_size} entries")
            tokenizer = bpe.train(spool.sample(splits["train"], _BPE_SAMPLE), vocab_size)
        end = bpe.end_of_text(tokenizer)
        vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
        identity = hashlib.sha256(f"{FORMAT} {vocab_size} {vocabulary}".encode())
        counts = {}
        for split, documents in splits.items():
            size = sum(document.size for document in documents)
            done = 0
            with ShardWriter(folder / f"{split}.bin", vocab_size) as shard:
                for texts, read in spool.batches(documents, _ENCODE_BATCH):
                    progress(f"encoding {split}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")
                    for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                        shard.write([*encoding.ids, end])
                    done += read
            counts[split] = {"documents": len(documents), "bytes": size, "tokens": shard.tokens}
            identity.update(json.dumps([split, len(documents)]).encode())
            for document in documents:
                identity.update(document.digest)
            identity.update(shard.digest)

    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    meta = {
        "format": FORMAT,
        "hash": identity.hexdigest(),
        "name": f"{label}, {'given tokenizer' if given else 'BPE'} {vocab_size}",
        "vocab_size": vocab_size,
        "tokenizer_entries": tokenizer.get_vocab_size(),
        "python": platform.python_version(),
        "duplicates": spool.duplicates,
        "undecodable": spool.undecodable,
        "splits": counts,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    progress(f"{meta['name']}: " + ", ".join(f"{counts[s]['tokens']} {s} tokens" for s in SPLITS))


@dataclass(frozen=True)
class _Entry:
    name: str
    offset: int
    size: int
    digest: bytes

    def position(self) -> float:
        """A number in [0, 1) that depends on the content of this document alone."""
        keyed = hashlib.blake2b(self.digest, key=b"lrm validation split", digest_size=6)
        return int.from_bytes(keyed.digest(), "big") / 2**48


class _Spool:
    """Distinct documents in a temporary file, with only their index in memory."""

    def __init__(self, path: Path) -> None:
        self.duplicates = 0
        self.undecodable = 0
        self._path = path
        self._entries: dict[bytes, _Entry] = {}
        self._end = 0

    def __enter__(self) -> _Spool:
        self._file = self._path.open("w+b")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, text: str | None) -> None:
        """Keep a document, unless it is undecodable, empty, or there already.

        Of documents with equal content the smallest name stays, whichever came first.
        """
        if text is None:
            self.undecodable += 1
            return
        # Lone surrogates, which some JSON data sets hold, have no UTF-8.
        content = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace")
        if not content.strip():
            return
        digest = hashlib.blake2b(content, digest_size=32).digest()
        known = self._entries.get(digest)
        if known is None:
            self._entries[digest] = _Entry(name, self._end, len(content), digest)
            self._file.write(content)
            self._end += len(content)
        else:
            self.duplicates += 1
            smaller = min(name, known.name)
            self._entries[digest] = _Entry(smaller, known.offset, known.size, digest)

    def split(self, validation_fraction: float) -> dict[str, list[_Entry]]:
        """Documents of each split, sorted by name."""
        splits: dict[str, list[_Entry]] = {split: [] for split in SPLITS}
        for entry in sorted(self._entries.values(), key=lambda entry: (entry.name, entry.digest)):
            held_out = entry.position() < validation_fraction
            splits["validation" if held_out else "train"].append(entry)
        return splits

    def sample(self, entries: Iterable[_Entry], size: int) -> Iterator[str]:
        """Texts of documents that their content chooses, until ``size`` bytes are reached."""
        taken = 0
        for entry in sorted(entries, key=lambda entry: entry.digest):
            if taken >= size:
                return
            taken += entry.size
            yield self._text(entry)

    def batches(self, entries: Iterable[_Entry], size: int) -> Iterator[tuple[list[str], int]]:
        """Texts in order, in lists of at least ``size`` bytes (but the last), with their bytes."""
        texts: list[str] = []
        read = 0
        for entry in entries:
            texts.append(self._text(entry))
            read += entry.size
            if read >= size:
                yield texts, read
                texts, read = [], 0
        if texts:
            yield texts, read

    def _text(self, entry: _Entry) -> str:
        self._file.seek(entry.offset)
        return self._file.read(entry.size).decode()
