"""Many runs over several processes, and the command line of experiments."""

from lrm.cli import begin

begin()
