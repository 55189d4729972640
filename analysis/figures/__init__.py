"""One module per figure, each with

* ``EXPERIMENTS``: the experiments that it reads, or a mapping from them to the runs that it needs
  of each, written out: patterns of labels, as in ``run.py --only`` (none: all), or the claim that
  asks for them. Where two of its panels need runs of other seeds, parts of one experiment have keys
  of their own: ``experiment`` and ``experiment/part``;
* ``numbers(tables)``: the plotted numbers as one frame, which becomes the figure's csv;
* ``draw(numbers, context) -> Figure``.

``tables`` maps an experiment's name to its ``Tables``; ``context`` says scale, seeds and corpus.
The first line of a module's docstring is what ``make help`` says of the figure.
"""

from lrm.cli import begin

begin()
