"""Corpora: documents, tokenized shards, batches by position. Nothing here loads torch."""

from lrm.data.batches import Batches, batches_of, fixed_sequences, recalled, rows_of_each
from lrm.data.build import Corpus, built, check, identity, prepare, prepare_planned, verify

__all__ = ["Batches", "Corpus", "batches_of", "built", "check", "fixed_sequences", "identity",
           "prepare", "prepare_planned", "recalled", "rows_of_each", "verify"]  # fmt: skip
