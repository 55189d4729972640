"""``python -m lrm.sweep experiments/a experiments/b``: several experiments in one sweep."""

from lrm.sweep.command import main_of_several

main_of_several()
