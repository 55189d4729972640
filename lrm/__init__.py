"""Learnable multipliers: the method, the model and the experiments of the paper.

Importing this package costs nothing: torch is only imported by the modules that train.
"""

__version__ = "0.1.0"

# Raised by hand whenever a change alters what a run computes; part of every run's identity.
NUMERICS_VERSION = 1
