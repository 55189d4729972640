"""What finished and published runs measured, as tables."""

from lrm.cli import begin

begin()
