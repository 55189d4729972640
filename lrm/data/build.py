"""From a ``DataConfig`` to a tokenized corpus on disk, built once and then opened.

A build streams: it holds a batch of documents, never the corpus, and after every shard it can
be stopped and gone on with by the same command, to the same bytes.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import os
import platform
import re
import secrets
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lrm.cli import Display, bar
from lrm.data import tokenizer as bpe
from lrm.data.corpora import SOURCES, Place
from lrm.data.shards import (
    ShardWriter,
    Tokens,
    damaged,
    pieces,
    recorded_digest,
    remedy_of,
    verify_shard,
)
from lrm.errors import UserError, shown, unreadable
from lrm.plan.config import DataConfig, Settings
from lrm.store.digests import digest as digest_of
from lrm.store.digests import is_sealed, running
from lrm.store.files import read_json, sync_folder, write_sealed
from lrm.store.flock import take

# Raise when the same documents would come out as other tokens or another split.
FORMAT = 2
_LAYOUT = 2  # of the files of a corpus, which is not part of its identity
SPLITS = ("train", "validation")
# A tokenizer is trained on _BPE_SAMPLE bytes of text from the first _BPE_REACH of training text.
_BPE_SAMPLE = 8_000_000
_BPE_REACH = 64_000_000
_ENCODE_BATCH = 2_000_000  # bytes encoded at a time
_SHARD = 1 << 28  # training tokens after which a shard is closed
_REMEMBERED = 1 << 20  # documents that later ones are compared with
_TOKENIZER, _STATE, _DOCUMENTS = "tokenizer.json", "state.json", "documents.bin"
# Settings that one source alone reads, and no scale's presets have.
_READ_BY = {"packages": ("packages",), "synthetic": ("synthetic_documents", "synthetic_seed")}
_SHARD_NAME = re.compile(r"(train|validation)-\d{5,}\.bin")
_RECORD = struct.Struct("<B32s")  # of a document: number of its split, digest of its content

Document = tuple[str, bytes, bytes]  # split, digest and content


@dataclass(frozen=True, eq=False)
class Corpus:
    """An opened corpus; ``train`` and ``validation`` are tokens, memory-mapped from shards.

    ``hash`` is the identity of the content: equal hashes mean equal documents, split and
    tokens. ``meta`` has ``python``, ``duplicates`` and ``undecodable`` (documents left out),
    ``tokenizer_entries``, and under ``splits`` the ``documents``, ``bytes`` (of UTF-8 text),
    ``tokens`` and ``shards`` (names of files) of each split. ``path / "tokenizer.json"`` is the
    tokenizer.
    """

    path: Path
    hash: str
    name: str
    train: Tokens
    validation: Tokens
    vocab_size: int
    meta: dict[str, Any]


def prepare(
    config: DataConfig,
    vocab_size: int,
    folder: Path,
    progress: Callable[[str], None] = lambda message: None,
    display: Display | None = None,
) -> Corpus:
    """Open the corpus of ``config`` below ``folder``; build it first if it is not there.

    A build appears under its final name only when it is complete, and processes that want the
    same corpus wait for the one that builds it. A build that was stopped goes on from its last
    complete shard. ``progress`` receives lines for people, ``display`` (of one line) counts.

    Empty documents, those that are no text, and those equal to one of the first ``2 ** 20``
    distinct ones are left out. The content of a document alone decides its split, so equal ones
    are never in both. The tokenizer is trained on the training documents with the smallest
    digests, up to 8 MB, among the first 64 MB of training text.

    Raises UserError if the source has too few documents, the tokenizer does not fit, ``folder``
    cannot be written, or the files of an earlier build are damaged.
    """
    path = Path(folder) / _folder_name(config, vocab_size)
    try:
        if not path.exists():
            _build_once(path, _Build(config, vocab_size, progress, display))
    except OSError as error:
        raise UserError(
            f"cannot write the corpus below {folder} ({error.strerror or error}); name a folder "
            f"that can be written and has space"
        ) from error
    return _opened(path)


def built(expected: str, folder: Path) -> Corpus | None:
    """The corpus with the hash ``expected`` below ``folder``, whatever its name; None without one.

    Its name tells of the Python or the packages that it was built from, which may be newer now.
    Raises UserError where its files are damaged.
    """
    places: list[Path] = []
    for file in sorted(Path(folder).glob("[!.]*/meta.json")):
        try:
            found = _read_meta(file.parent)["hash"]
        except UserError:  # of another corpus, for all that can be told
            continue
        if found == expected:
            places.append(file.parent)
    for path in places[:-1]:
        with suppress(UserError):  # another one may be whole
            return _opened(path)
    return _opened(places[-1]) if places else None


def _opened(path: Path) -> Corpus:
    meta = _read_meta(path)
    _check_files(path, meta.pop("digests", {}))
    meta.pop("digest", None)
    train, validation = (
        Tokens([path / name for name in meta["splits"][split]["shards"]]) for split in SPLITS
    )
    return Corpus(path, meta["hash"], meta["name"], train, validation, meta["vocab_size"], meta)


def identity(config: DataConfig, vocab_size: int, folder: Path) -> str | None:
    """The hash that ``prepare`` would return, if the corpus is built and readable, else None.

    Reads one small file and never builds.
    """
    try:
        return _read_meta(Path(folder) / _folder_name(config, vocab_size))["hash"]
    except UserError:
        return None


def check(config: DataConfig, vocab_size: int) -> None:
    """UserError where a file that the corpus is made of, or its tokenizer, is not there.

    And where the data have a setting that is not read. Runs that have it already go on.
    """
    if config.source == "huggingface" and config.pattern:
        raise UserError("data.source = huggingface reads no data.pattern; drop it")
    if config.pattern and config.path and not Path(config.path).expanduser().is_dir():
        raise UserError(
            "data.pattern chooses among the files of a folder, and data.path = "
            f"{shown(config.path)} is none; drop data.pattern, or name the folder"
        )
    for source, names in _READ_BY.items():
        for name in names if config.source != source else ():
            if getattr(config, name) != DataConfig.model_fields[name].default:
                raise UserError(
                    f"data.source = {config.source} reads no data.{name}, {source} does; "
                    "drop it, or set data.source too"
                )
    _folder_name(config, vocab_size)


def prepare_planned(settings: Settings, expected: str | None, folder: Path) -> Corpus:
    """``prepare`` for a run whose identity holds the hash ``expected``.

    Raises UserError where the corpus is another one by now, and as ``prepare`` does.
    """
    corpus = prepare(settings.data, settings.model.vocab_size, folder)
    if corpus.hash != expected:
        raise UserError(
            f"the corpus {corpus.name} has changed since this run was planned; run again"
        )
    return corpus


def verify(corpus: Corpus) -> None:
    """Read every token; UserError if a shard does not match its checksum or vocabulary."""
    for split in SPLITS:
        for name in corpus.meta["splits"][split]["shards"]:
            verify_shard(corpus.path / name, corpus.vocab_size)


def _folder_name(config: DataConfig, vocab_size: int) -> str:
    source = SOURCES[config.source]
    recipe = {
        "format": FORMAT,
        "layout": _LAYOUT,
        "source": config.source,
        "documents": source.recipe(config),
        "limits": [config.documents, config.tokens],
        "validation_fraction": config.validation_fraction,
        "vocab_size": vocab_size,
        "tokenizer": config.tokenizer and bpe.file_digest(config.tokenizer),
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:8]
    tokens = ("tokenizer" if config.tokenizer else "bpe") + str(vocab_size)
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', source.label(config))}-{tokens}-{digest}"


def _read_meta(path: Path) -> dict[str, Any]:
    """What ``meta.json`` says; those of earlier versions have no digests."""
    file = path / "meta.json"
    meta = read_json(file, ("hash", "name", "vocab_size", "splits"))
    try:
        names = [name for split in SPLITS for name in meta["splits"][split]["shards"]]
        fits = bool(names) and all(map(_SHARD_NAME.fullmatch, names))
    except (KeyError, TypeError):
        fits = False
    if not fits or is_sealed(meta) != ("digests" in meta):
        raise damaged(file, "it is no description of a corpus")
    return meta


def _digest_of(path: Path) -> str:
    """Of a file of a corpus: for a shard what its header says of its tokens."""
    if _SHARD_NAME.fullmatch(path.name):
        return recorded_digest(path)
    try:
        return digest_of(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error, remedy_of(path)) from None


def _check_files(path: Path, digests: dict[str, str]) -> None:
    """Raise UserError where a file in the folder ``path`` is not the one with that digest.

    The tokens of shards are not read.
    """
    for name, expected in digests.items():
        if _digest_of(path / name) != expected:
            raise damaged(path / name, "it is not the file that was built")


def _build_once(path: Path, build: _Build) -> None:
    """Have ``build`` make the folder ``path``, unless another process does; then wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / f".{path.name}.lock", "a") as lock:
        locked = take(
            lock, lambda: build.progress(f"waiting for the process that builds {path.name}")
        )
        if path.exists():
            return
        if locked:
            # Nobody else builds, so these come from builds without locks that were killed.
            for stale in path.parent.glob(f".{path.name}.*.tmp"):
                shutil.rmtree(stale, ignore_errors=True)
        # Without a lock somebody else may write there, so only a fresh folder will do.
        name = "partial" if locked else f"{secrets.token_hex(4)}.tmp"
        folder = path.parent / f".{path.name}.{name}"
        try:
            folder.mkdir(exist_ok=True)
            build.run(folder)
            try:
                folder.rename(path)
                sync_folder(path.parent)
            except OSError:
                if not path.exists():
                    raise
            else:
                for file in (_STATE, _DOCUMENTS):
                    (path / file).unlink(missing_ok=True)
        finally:
            if not (locked and (folder / _STATE).exists()):
                shutil.rmtree(folder, ignore_errors=True)


class _Build:
    """One corpus on its way into a folder, where its state is saved with every shard.

    Beside the shards lie ``state.json`` (how far the source was read, and what was counted) and
    ``documents.bin`` (a record of every document). What ``state.json`` does not speak of was
    never finished, and is written anew.
    """

    def __init__(
        self,
        config: DataConfig,
        vocab_size: int,
        progress: Callable[[str], None],
        display: Display | None,
    ) -> None:
        self._config, self._vocab_size = config, vocab_size
        self.progress, self._display = progress, display
        self._source = SOURCES[config.source]
        self._label = self._source.label(config)
        self._place = Place()
        self._left_out = {"duplicates": 0, "undecodable": 0}
        self._counts: dict[str, dict[str, Any]] = {
            split: {"documents": 0, "bytes": 0, "tokens": 0, "shards": []} for split in SPLITS
        }
        self._known: set[bytes] = set()
        self._records = running()
        self._open: dict[str, ShardWriter] = {}
        self._folder: Path

    def run(self, folder: Path) -> None:
        """Read, encode and write all that is not there yet; then the folder is a corpus."""
        self._folder = folder
        # What can be refused at once is refused before minutes of reading.
        path = self._config.tokenizer
        given = bpe.load(path, self._vocab_size) if path else None
        if given is None:
            bpe.check_trainable(self._vocab_size)
        if self._resume():
            self.progress(f"{self._label}: going on after {self._place.documents} documents")
            tokenizer = given or bpe.load(folder / _TOKENIZER, self._vocab_size)
        else:
            self.progress(f"reading the documents of {self._label}")
            tokenizer = given or self._train()
            (folder / _TOKENIZER).write_text(tokenizer.to_str(pretty=True), "utf-8")
            sync_folder(folder)
        self._encode(tokenizer)
        self._check_splits({split: self._counts[split]["documents"] for split in SPLITS})
        meta = {
            "format": FORMAT,
            "hash": self._identity(tokenizer),
            "name": f"{self._label}, {'given tokenizer' if given else 'BPE'} {self._vocab_size}",
            "vocab_size": self._vocab_size,
            "tokenizer_entries": tokenizer.get_vocab_size(),
            "python": platform.python_version(),
            **self._left_out,
            "splits": self._counts,
            "digests": self._digests(),
        }
        write_sealed(folder / "meta.json", meta)
        tokens = ", ".join(f"{self._counts[split]['tokens']} {split} tokens" for split in SPLITS)
        words = {"duplicates": "duplicates", "undecodable": "documents that are no UTF-8"}
        out = [
            f"{self._left_out[key]} {said}" for key, said in words.items() if self._left_out[key]
        ]
        self.progress(f"{meta['name']}: {tokens}" + (f"; left out {', '.join(out)}" if out else ""))

    def _texts(self, place: Place) -> Iterator[str | None]:
        limit = self._config.documents
        texts = self._source.documents(self._config, place)
        return itertools.islice(texts, limit - place.documents if limit else None)

    def _document(self, text: str | None) -> Document | None:
        """The document of a text; None where there is none, or no more than blanks."""
        # Lone surrogates, which some JSON data sets hold, have no UTF-8.
        text = (text or "").replace("\r\n", "\n").replace("\r", "\n")
        content = text.encode("utf-8", "replace")
        if not content.strip():
            return None
        digest = _digest(content)
        # A number in [0, 1) that depends on the content alone.
        keyed = hashlib.blake2b(digest, key=b"lrm validation split", digest_size=6).digest()
        held_out = int.from_bytes(keyed, "big") / 2**48 < self._config.validation_fraction
        return "validation" if held_out else "train", digest, content

    def _train(self) -> Tokenizer:
        """A tokenizer of the training documents with the smallest digests, of those in reach."""
        counts = dict.fromkeys(SPLITS, 0)
        chosen: dict[bytes, bytes] = {}
        largest: list[tuple[int, bytes]] = []  # a heap of the digests of ``chosen``
        size = read = 0
        for split, digest, content in filter(None, map(self._document, self._texts(Place()))):
            counts[split] += 1
            if split == "validation":
                continue
            if digest not in chosen:
                chosen[digest] = content
                heapq.heappush(largest, (-int.from_bytes(digest, "big"), digest))
                size += len(content)
                while size - len(chosen[largest[0][1]]) >= _BPE_SAMPLE:
                    size -= len(chosen.pop(heapq.heappop(largest)[1]))
            read += len(content)
            if read >= _BPE_REACH:
                break
        else:
            self._check_splits(counts)
        self.progress(f"training a tokenizer of {self._vocab_size} entries")
        return bpe.train((chosen[key].decode() for key in sorted(chosen)), self._vocab_size)

    def _check_splits(self, documents: dict[str, int]) -> None:
        total, remedy = sum(documents.values()), self._source.remedy(self._config)
        # What cuts the text is what leaves too little of it.
        if cuts := [name for name in ("tokens", "documents") if getattr(self._config, name)]:
            remedy = " or ".join(f"raise data.{n} = {getattr(self._config, n)}" for n in cuts)
        if not total:
            raise UserError(f"the corpus is empty: {remedy}")
        for split, count in documents.items():
            if not count:
                raise UserError(
                    f"none of the {total} documents of {self._label} falls into the {split} "
                    f"split: change data.validation_fraction = "
                    f"{self._config.validation_fraction}, or: {remedy}"
                )

    def _batches(self) -> Iterator[list[Document]]:
        """Documents that are kept, in lists of bounded size."""
        batch: list[Document] = []
        size = 0
        if self._enough():
            return
        for text in self._texts(self._place):
            self._place.documents += 1
            self._left_out["undecodable"] += text is None
            document = self._document(text)
            if document is None:
                continue
            _, digest, content = document
            if digest in self._known:
                self._left_out["duplicates"] += 1
                continue
            if len(self._known) < _REMEMBERED:
                self._known.add(digest)
            batch.append(document)
            size += len(content)
            if size >= _ENCODE_BATCH:
                yield batch
                if self._enough():
                    return
                batch, size = [], 0
        if batch:
            yield batch

    def _enough(self) -> bool:
        return self._counts["train"]["tokens"] >= (self._config.tokens or float("inf"))

    def _encode(self, tokenizer: Tokenizer) -> None:
        end = bpe.end_of_text(tokenizer)
        began, tokens_before = time.monotonic(), self._tokens()

        def show(last: bool = False) -> None:
            seconds = max(time.monotonic() - began, 1e-3)
            self._show((self._tokens() - tokens_before) / seconds, last)

        for batch in self._batches():
            texts = [content.decode() for _, _, content in batch]
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            self._write(batch, ([*encoding.ids, end] for encoding in encodings))
            show()
            if "train" in self._open and self._open["train"].tokens >= _SHARD:
                self._save()
        self._close_shards()
        show(last=True)

    def _write(self, batch: list[Document], tokens: Iterator[list[int]]) -> None:
        """Append documents to the shards of their splits, and their records."""
        new: dict[str, list[int]] = {split: [] for split in SPLITS}
        records = b""
        for (split, digest, content), ids in zip(batch, tokens, strict=True):
            new[split] += ids
            records += _RECORD.pack(SPLITS.index(split), digest)
            count = self._counts[split]
            count["documents"] += 1
            count["bytes"] += len(content)
            count["tokens"] += len(ids)
            if self._enough():
                break
        for split, ids in new.items():
            if ids and split not in self._open:
                # The training split closes every shard but the last, so it has one of each number.
                name = f"{split}-{len(self._counts['train']['shards']):05d}.bin"
                self._open[split] = ShardWriter(self._folder / name, self._vocab_size)
            if ids:
                self._open[split].write(ids)
        with (self._folder / _DOCUMENTS).open("ab") as file:
            file.write(records)
        self._records.update(records)

    def _digests(self) -> dict[str, str]:
        """Of the tokenizer and of all shards that are closed."""
        shards = (name for split in SPLITS for name in self._counts[split]["shards"])
        return {name: _digest_of(self._folder / name) for name in (_TOKENIZER, *shards)}

    def _close_shards(self) -> None:
        """Put all that was written safely on disk; what follows goes to new shards."""
        for split, writer in self._open.items():
            writer.close()
            self._counts[split]["shards"].append(writer.path.name)
        self._open.clear()

    def _save(self) -> None:
        self._close_shards()
        with (self._folder / _DOCUMENTS).open("ab") as file:
            os.fsync(file.fileno())
        state = {
            "documents": self._place.documents,
            "source": self._place.save_state(),
            "left_out": self._left_out,
            "counts": self._counts,
            "records": self._records.hexdigest(),
            "digests": self._digests(),
        }
        write_sealed(self._folder / _STATE, state)

    def _resume(self) -> bool:
        """Take up what an earlier process has saved; without that, begin in an empty folder.

        So it does where a file is not what was saved.
        """
        records = self._folder / _DOCUMENTS
        try:
            state = self._read_state()
            counts = state["counts"]
            size = _RECORD.size * sum(counts[split]["documents"] for split in SPLITS)
            self._records = running(records.read_bytes()[:size])
            if self._records.hexdigest() != state["records"]:
                raise damaged(records, "it is not the file that was saved")
        except (UserError, OSError) as error:
            if (self._folder / _STATE).exists():
                self.progress(f"{self._label}: what an earlier build left is damaged, and the "
                              f"corpus is built anew ({error})")  # fmt: skip
            self._records = running()
            shutil.rmtree(self._folder)
            self._folder.mkdir()
            return False
        os.truncate(records, size)
        for temporary in self._folder.glob(".*"):  # of a file that was being replaced
            temporary.unlink()
        self._counts, self._left_out = counts, state["left_out"]
        self._place = Place(state["documents"], state["source"])
        self._known = {digest for _, digest in itertools.islice(_records(records), _REMEMBERED)}
        return True

    def _read_state(self) -> dict[str, Any]:
        """What ``state.json`` says, whose shards and tokenizer are read; UserError where it, or
        one of them, is damaged."""
        keys = ("documents", "source", "left_out", "counts", "records", "digests", "digest")
        state = read_json(self._folder / _STATE, keys)
        _check_files(self._folder, state["digests"])
        for split in SPLITS:
            for name in state["counts"][split]["shards"]:
                verify_shard(self._folder / name, self._vocab_size)
        return state

    def _identity(self, tokenizer: Tokenizer) -> str:
        """The hash of vocabulary, documents and tokens, which shards and stops do not change."""
        vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
        identity = hashlib.sha256(f"{FORMAT} {self._vocab_size} {vocabulary}".encode())
        for split in SPLITS:
            count = self._counts[split]
            identity.update(json.dumps([split, count["documents"]]).encode())
            for number, digest in _records(self._folder / _DOCUMENTS):
                if SPLITS[number] == split:
                    identity.update(digest)
            tokens = running()
            for name in count["shards"]:
                for piece in pieces(self._folder / name):
                    tokens.update(piece)
            identity.update(tokens.digest())
        return identity.hexdigest()

    def _tokens(self) -> int:
        return sum(self._counts[split]["tokens"] for split in SPLITS)

    def _show(self, rate: float, last: bool) -> None:
        """Counts, with ``rate`` in tokens a second of those that this process has made."""
        if self._display is None:
            return
        config, documents = self._config, self._place.documents
        parts = [documents / config.documents] if config.documents else []
        if config.tokens:
            parts.append(self._counts["train"]["tokens"] / config.tokens)
        whole = [bar(1.0 if last else max(parts))] if parts else []
        counted = f"{documents:,} documents  {self._tokens():,} tokens  {rate:,.0f} tokens/s"
        self._display.show(["  ".join([*whole, counted])], last)


def _digest(content: bytes) -> bytes:
    return running(content).digest()


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number of the split and digest of every document, in order."""
    with path.open("rb") as file:
        while chunk := file.read(_RECORD.size << 15):
            yield from _RECORD.iter_unpack(chunk)
