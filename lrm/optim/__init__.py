"""Optimizers: those of this suite's runs; ``SteepestDescent`` and muP for any torch model."""

from lrm.optim.descent import SteepestDescent as SteepestDescent
from lrm.optim.mup import mup_param_groups as mup_param_groups
from lrm.optim.mup import mup_rescale_ as mup_rescale_
