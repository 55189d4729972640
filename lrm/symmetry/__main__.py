"""``python -m lrm.symmetry all symmetry_free``: see ``lrm.symmetry.found``."""

from lrm.cli import guarded
from lrm.symmetry.found import main

guarded(main)
