"""The blocks of a model, and the registry of mixers. No torch here.

A new mixer is one declaration (``lrm.model.blocks.block.Mixer``) and one line in ``MIXERS``.
"""

from __future__ import annotations

from collections.abc import Iterable

from lrm.errors import shown
from lrm.model.blocks.attention import Attention
from lrm.model.blocks.block import Block, Mixer
from lrm.model.blocks.experts import Experts
from lrm.model.blocks.frame import EMBEDDING, FINAL_NORM, MIXER_NORM, MLP_NORM, PROJECTOR
from lrm.model.blocks.gdn import GatedDeltaNet
from lrm.model.blocks.mamba2 import Mamba2
from lrm.model.blocks.mlp import MLP

# The mixers that ``model.mixer`` can name, in the order of their addresses.
MIXERS: dict[str, Mixer] = {
    "attention": Attention(),
    "ssm": Mamba2(),
    "gdn": GatedDeltaNet(),
}
FEED_FORWARD, EXPERTS = MLP(), Experts()


def named(mixer: str) -> list[Mixer]:
    """The mixers of ``model.mixer``, in the order in which a layer runs them.

    Raises ValueError where there is none of a name, or two of one.
    """
    names = ("ssm+attention" if mixer == "both" else mixer).split("+")
    for name in names:
        if name not in MIXERS:
            raise ValueError(
                f"no mixer is named {shown(name)}; write {', '.join(MIXERS)}, several joined by +, "
                "or both, for attention beside ssm"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"mixer = {shown(mixer)} names a mixer twice; name each once")
    return [MIXERS[name] for name in names]


def of_layer(mixers: Iterable[Mixer]) -> list[Block]:
    """The blocks of a layer with these mixers, in the order of their addresses."""
    known = list(MIXERS.values())
    return [MIXER_NORM, *sorted(mixers, key=known.index), MLP_NORM, FEED_FORWARD, EXPERTS]


def every(mixers: Iterable[Mixer] | None = None) -> list[Block]:
    """All blocks of a model with these mixers, or of the family, each once, in forward order."""
    layer = of_layer(MIXERS.values() if mixers is None else mixers)
    return [EMBEDDING, *layer, FINAL_NORM, PROJECTOR]
