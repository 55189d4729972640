"""Any run's logged norms: what there is to choose, over training, and as distributions.

Pure functions work on the tables of ``analysis.tables.results`` (``selection``, ``tables``). Others
draw what they return, and menus call both; ``notebooks/explore.ipynb`` shows them. Norms are root
mean squares.
"""

# What is imported here is for users of the package.
# ruff: noqa: F401

from analysis.explore.comparison import compare
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
from analysis.explore.showing import by_arm, list_seeds, show_figure
from analysis.explore.tables import course, distribution, is_norms, noise_spectrum
