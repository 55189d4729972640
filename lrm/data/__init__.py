"""Corpora: documents, tokenized shards, batches by position. Nothing here loads torch."""

from lrm.data.batches import Batches, fixed_sequences, rows_of_each
from lrm.data.build import Corpus, check, identity, prepare, verify

__all__ = ["Batches", "Corpus", "check", "fixed_sequences", "identity", "prepare", "rows_of_each",
           "verify"]  # fmt: skip
