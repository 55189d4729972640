"""A first day on a GPU, in parts that end within nine minutes each: ``make gpu``.

``plan.yaml`` states what is measured, ``items.py`` lists it part by part, ``session.py`` has a
worker take what is missing, ``worker.py`` takes it, and ``record.py`` keeps it. A part more is an
entry in ``items.PARTS``, whose items name methods of the worker.
"""

from lrm.cli import begin

begin()
