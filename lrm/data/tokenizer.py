"""Byte-level BPE: trained on the corpus, or read from a tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lrm.errors import UserError
from lrm.store.files import named

END_OF_TEXT = "<|endoftext|>"
# Names under which other published tokenizers keep the end of a document.
_OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>")
_SMALLEST = 257  # every byte and the end of a document
_RARITY = 50  # see train
# Training takes a time that grows as the square of a word's length, and hears no Ctrl-C.
_LONG_WORD = re.compile(r"[^\W\d_]{1000}|\d{1000}|[^\s\w]{1000}|_{1000}|\s{1000}")

Merge = tuple[str, str]


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of at most ``vocab_size`` entries (fewer if the texts have no more to merge).

    No entry is nearly unused, since Adam's steps on embedding rows that get no gradients would
    distort every norm measured over rows. With ``least`` = bytes of the texts / (50 vocab_size),
    about a twentieth of what each entry would get if all were used alike:

    - Of the 256 bytes, only those that occur at least ``least`` times are entries, counting
      only characters all of whose bytes are. Other bytes have no token: encoding leaves them
      out and never fails. Text inside this alphabet is encoded and decoded without loss.
    - While an entry is left with fewer uses, swallowed by longer ones, the last merge that
      swallows it is dropped, and the next best merge takes the place.

    The same texts give the same tokenizer.
    """
    texts = [piece for text in texts for piece in _pieces(text)]
    least = sum(len(text.encode()) for text in texts) / (_RARITY * vocab_size)
    alphabet = _alphabet(texts, least)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        # Some merges more than fit, to replace those that are dropped.
        vocab_size=2 * vocab_size,
        min_frequency=math.ceil(least),
        special_tokens=[END_OF_TEXT],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    merges = [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    words = Counter(word for text in texts for word, _ in split(text))
    while True:
        kept = _first(merges, alphabet, vocab_size - 1)
        made = (left + right for left, right in kept)
        entries = list(dict.fromkeys([END_OF_TEXT, *alphabet, *made]))
        tokenizer.model = models.BPE({entry: n for n, entry in enumerate(entries)}, kept)
        uses = _uses(tokenizer.model, words)
        dropped = _swallowing(kept, {entry for entry in entries if uses[entry] < least})
        if not dropped:
            return _plain(tokenizer)
        merges = [merge for merge in merges if merge not in dropped]


def _pieces(text: str) -> Iterator[str]:
    """The text, cut where a word is too long to be trained on in reasonable time."""
    start = 0
    for long in _LONG_WORD.finditer(text):
        yield text[start : long.end()]
        start = long.end()
    yield text[start:]


def _alphabet(texts: list[str], least: float) -> list[str]:
    """The bytes that occur often enough, sorted, as the characters that stand for them."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    standing = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = {c: standing.pre_tokenize_str(c)[0][0] for c in characters}
    while True:
        counts: Counter[str] = Counter()
        for character, spelling in spelled.items():
            for byte in spelling:
                counts[byte] += characters[character]
        rare = {byte for byte, count in counts.items() if count < least}
        if not rare:
            return sorted(counts)
        spelled = {c: spelling for c, spelling in spelled.items() if rare.isdisjoint(spelling)}


def _uses(model: models.BPE, words: dict[str, int]) -> dict[str, int]:
    """How often each entry occurs in words that occur as often as stated."""
    uses: Counter[str] = Counter()
    for word, count in words.items():
        for token in model.tokenize(word):
            uses[token.value] += count
    return uses


def _first(merges: list[Merge], alphabet: list[str], size: int) -> list[Merge]:
    """The merges, in order, whose parts exist, while there are at most ``size`` entries."""
    entries, first = set(alphabet), []
    for left, right in merges:
        if left in entries and right in entries:
            entries.add(left + right)
            if len(entries) > size:
                break
            first.append((left, right))
    return first


def _swallowing(merges: list[Merge], rare: set[str]) -> set[Merge]:
    """For each rare entry the last merge that uses it up, or else the one that makes it."""
    last: dict[str, Merge] = {}
    for merge in merges:
        last.update(dict.fromkeys((merge[0] + merge[1], *merge), merge))
    return {last[entry] for entry in rare if entry in last}


def check_trainable(vocab_size: int) -> None:
    """Raise UserError if a byte-level tokenizer does not fit into ``vocab_size``."""
    if vocab_size < _SMALLEST:
        raise UserError(
            f"model.vocab_size = {vocab_size} is too small for a byte-level tokenizer; "
            f"raise it to at least {_SMALLEST}"
        )


def load(path: str | Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a tokenizer.json.

    Raises UserError if it cannot be read, has ids that are not below ``vocab_size``, or has no
    token for the end of a document.
    """
    content = _read(path)
    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.encode("\U0010ffff", add_special_tokens=False)  # what no vocabulary holds
    except BaseException as error:  # the library raises bare Exception, and panics
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        raise UserError(
            f"data.tokenizer = {path} is not a tokenizer.json: {error}; name another file"
        ) from None
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > vocab_size:
        raise UserError(
            f"data.tokenizer = {path} has {size} entries, more than model.vocab_size = "
            f"{vocab_size}; raise model.vocab_size to {size}"
        )
    end_of_text(tokenizer, path)
    return _plain(tokenizer)


def end_of_text(tokenizer: Tokenizer, path: str | Path = "the tokenizer") -> int:
    """The id that closes every document; UserError (naming ``path``) if there is none."""
    for name in (END_OF_TEXT, *_OTHER_ENDS):
        if (token := tokenizer.token_to_id(name)) is not None:
            return token
    raise UserError(f"{path} has no token for the end of a document; add {END_OF_TEXT} to it")


def end_token(path: Path) -> str:
    """What closes every document in a text of the tokenizer in this file."""
    tokenizer = Tokenizer.from_file(str(path))
    return tokenizer.id_to_token(end_of_text(tokenizer, path))


def file_digest(path: str | Path) -> str:
    """blake2b of a tokenizer file, in hex; UserError if it cannot be read."""
    return hashlib.blake2b(_read(path), digest_size=16).hexdigest()


def _read(path: str | Path) -> bytes:
    try:
        file = named(str(path), "data.tokenizer")
        if file.exists() and not file.is_file():  # a pipe or a device may never end
            raise UserError(f"data.tokenizer = {path} is no file; name a tokenizer.json")
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            f"data.tokenizer = {path} cannot be read ({error.strerror}); name a tokenizer.json, "
            f"or leave it out to train one"
        ) from None


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    # A document is text from end to end: a "<|endoftext|>" inside it does not close it, and
    # nothing is cut or padded, whatever the file was saved with.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
