"""The ledger of claims: what judges each, and its verdict."""

from lrm.cli import begin

begin()
