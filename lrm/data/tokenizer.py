"""Byte-level BPE: trained on the corpus, or read from a tokenizer.json."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lrm.errors import UserError

END_OF_TEXT = "<|endoftext|>"
# Names under which other published tokenizers keep the end of a document.
_OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>")
_SMALLEST = 257  # every byte and the end of a document


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of at most ``vocab_size`` entries (fewer if the texts have no more to merge).

    The same texts give the same tokenizer. Every text can be encoded and decoded without loss.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _plain(tokenizer)


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
    except Exception as error:  # the library raises bare Exception
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


def file_digest(path: str | Path) -> str:
    """blake2b of a tokenizer file, in hex; UserError if it cannot be read."""
    return hashlib.blake2b(_read(path), digest_size=16).hexdigest()


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
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
