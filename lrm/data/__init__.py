"""Corpora: documents, tokenized shards, batches by position. Nothing here loads torch."""

from lrm.data.batches import Batches, fixed_sequences, rows_of_each
from lrm.data.build import Corpus, identity, prepare, verify

__all__ = ["Batches", "Corpus", "fixed_sequences", "identity", "prepare", "rows_of_each", "verify"]
