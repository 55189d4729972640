"""What the parameters of known classes of transformers are, where no layer of torch holds them.

There names mislead: ``v1`` of DBRX is a stack of matrices, ``static_weight`` a convolution, and
experts keep inputs first in some classes and outputs first in others.

A class of that name in a user's own code may be anything, so that only those of transformers count.
"""

from __future__ import annotations

import functools
import re

from torch import nn

# Where they live, and code that transformers fetches with a model.
_PACKAGES = ("transformers", "transformers_modules")
# Torch's own layers, whatever a subclass is called.
OF_TORCH = (nn.Linear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.modules.conv._ConvNd,
            nn.Embedding, nn.EmbeddingBag)  # fmt: skip
# Pattern of the class's name, pattern of the parameter's, and what it is. ``transposed`` is a
# matrix with inputs first: the class computes x @ W.
_TABLE = [
    ("Conv1D", "weight", "transposed"),
    (r"\w+Experts", r"(gate_up|gate|up|down)_proj", "matrix"),
    ("Llama4TextExperts", r"\w+_proj", "transposed"),
    (r"\w+(Topk|TopK)(Router|Gate)", "weight", "matrix"),
    ("DbrxExpertGLU", "w1|v1", "matrix"),
    # The experts' inputs, one behind the other, along the first dimension.
    ("DbrxExpertGLU", "w2", "transposed"),
    ("RecurrentGemmaRglru", r"\w+_gate_weight", "transposed"),
    ("ZambaMambaMixer", r"(x|dt)_proj_weight", "matrix"),
    ("GroupedLinearLayer", "weight", "transposed"),  # of ConvBERT
    ("CsmCodebooksHead", "weight", "transposed"),
    (r"(Gemma3|T5Gemma2)MultiModalProjector", "mm_input_projection_weight", "transposed"),
    ("XCLIPModel", "prompts_visual_projection", "transposed"),
    ("OmDetTurboLanguageBackbone", "text_projection", "transposed"),
    ("AMSoftmaxLoss", "weight", "transposed"),
    (r"Inkling2?RelativeLogits", "proj", "transposed"),
    ("Glm5NextTextIndexer", "index_kpool_compress_gate", "matrix"),
    # A matrix whose outputs fill two dimensions has no rows here, as those of XLNet have none.
    ("FunnelRelMultiheadAttention", "r_kernel", "vector"),
    ("Inkling2DynamicShortConvolution", "static_weight", "vector"),
    ("SwiftFormerEfficientAdditiveAttention", "w_g", "vector"),
]


def kind(module: nn.Module, attribute: str) -> str | None:
    """``matrix``, ``transposed`` or ``vector``; None where the table does not know the class."""
    if isinstance(module, OF_TORCH):
        return None
    # A subclass in other code, and one that a tool has put over it, is what it derives from.
    of_transformers = (
        each for each in type(module).__mro__ if each.__module__.partition(".")[0] in _PACKAGES
    )
    known = next(of_transformers, None)
    if known is None:
        return None
    found = _kind(known.__name__, attribute)
    # Experts of transformers say it themselves.
    return "transposed" if found == "matrix" and getattr(module, "is_transposed", False) else found


@functools.cache
def _kind(name: str, attribute: str) -> str | None:
    found = None
    for of_class, of_parameter, what in _TABLE:
        if re.fullmatch(of_class, name) and re.fullmatch(of_parameter, attribute):
            found = what
    return found
