"""Speed and memory, measured side by side: ``make bench``, or ``python -m lrm.bench``.

Nothing else in the suite imports this package, and nothing else needs transformers to run it.
What is compared stands in ``rows.yaml``. CPU only. Its numbers decide no test.
"""

from lrm.cli import begin

begin()
