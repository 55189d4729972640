"""Optimizers: those of this suite's runs, and ``SteepestDescent`` for any torch model."""

from lrm.optim.descent import SteepestDescent as SteepestDescent
