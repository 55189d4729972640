"""Speed and memory, measured side by side: ``make bench``, or ``python -m lrm.bench``.

Nothing else in the suite imports this package, and nothing else needs transformers to run it.
What is compared stands in ``rows.yaml``. On the CPU; ``gpu`` has a first day on a GPU, and
``throughput`` times a step anywhere. Its numbers decide no test.
"""

from lrm.cli import begin

begin()
