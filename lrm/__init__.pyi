"""What ``import lrm`` offers, for type checkers and editors."""

from lrm import optim as optim
from lrm.errors import UserError as UserError
from lrm.multipliers.library import attach_multipliers as attach_multipliers
from lrm.multipliers.library import attached_multipliers as attached_multipliers
from lrm.multipliers.library import build_param_groups as build_param_groups
from lrm.multipliers.library import clip_grad_norm_ as clip_grad_norm_
from lrm.multipliers.library import effective_weights as effective_weights
from lrm.multipliers.library import merge_multipliers as merge_multipliers
from lrm.multipliers.library import same_weights as same_weights
from lrm.multipliers.library import saved_placement as saved_placement
from lrm.multipliers.report import Attached as Attached
from lrm.multipliers.scale_vectors import attach_scale_vectors as attach_scale_vectors

__version__: str
__all__: list[str]
