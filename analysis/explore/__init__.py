"""Any run's logged norms: what there is to choose, over training, and as distributions.

Pure functions on the tables of ``analysis.tables.results`` (``selection``, ``tables``), drawings of
what they return, and menus that call both; ``notebooks/explore.ipynb`` shows them. Norms are root
mean squares.
"""

from analysis.explore.drawings import draw_course, draw_distribution
from analysis.explore.menus import widgets
from analysis.explore.selection import (
    about,
    choices,
    default_experiment,
    default_runs,
    experiments,
    kept,
    named,
    select,
)
from analysis.explore.tables import course, distribution, is_norms, noise_spectrum

__all__ = [
    "about",
    "choices",
    "course",
    "default_experiment",
    "default_runs",
    "distribution",
    "draw_course",
    "draw_distribution",
    "experiments",
    "is_norms",
    "kept",
    "named",
    "noise_spectrum",
    "select",
    "widgets",
]
