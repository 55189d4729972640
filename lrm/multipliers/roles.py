"""What each parameter of any model is: by the type of its module, and by its name as a fallback.

A number of dimensions does not tell. Biases of experts, ``A_log``, class tokens and position
embeddings have two and more, and are no matrices.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lrm.errors import UserError, shown
from lrm.multipliers import classes
from lrm.multipliers.attach import is_multiplier
from lrm.multipliers.layout import owners

# ``transposed``: a matrix with inputs first (x @ W), as users say of their own modules. ``tied``:
# an embedding that is the head too. ``convolution``: one that is not depthwise. All else that is
# not multiplied or decayed of itself is a ``vector``.
ROLES = ("matrix", "transposed", "embedding", "head", "tied", "convolution", "vector")
# Parameters whose rows and columns are outputs and inputs, by the class that holds them. What such
# a module has besides is a vector.
_MATRICES: list[tuple[type, str]] = [
    (nn.Linear, r"weight"),
    (nn.RNNBase, r"weight_(ih|hh|hr)_l\d+(_reverse)?"),
    (nn.RNNCellBase, r"weight_(ih|hh)"),
    (nn.MultiheadAttention, r"(in|q|k|v)_proj_weight"),
]
# Classes that hold no matrix, whatever the shapes of their parameters.
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
_FORMS = (nn.Bilinear, nn.utils.parametrize.ParametrizationList)
_PLAIN = (*_NORMS, nn.PReLU, *_FORMS)
# What torch's older functions hang on a module, and how what it computes with ends. These divide a
# norm out of it, and a factor with it.
_RENORMING = ((SpectralNorm, "orig"), (WeightNorm, "v"))
# Words in the names of others' classes that hold more than the norm they are called after.
_MORE_THAN_A_NORM = re.compile(
    r"Linear|M[lL][pP]|Atten|Attn|Block|Conv(?!Next)|Proj|FeedForward|FFN|Embed|Expert"
)
# Classes whose parameters have their roles without their names.
_KNOWN = (*_PLAIN, *(kind for kind, _ in _MATRICES), nn.modules.conv._ConvNd, nn.Embedding,
          nn.EmbeddingBag)  # fmt: skip
# Elsewhere: names of matrices and of stacks of matrices (experts).
_NAMED = re.compile(
    r"(\w+_)?(weights?|kernel|proj|projection|experts?|w|W)\d*|[wW](_\w+|\d+|q|k|v|o|kv|qkv)?|qkv"
)
# Words in the names of embeddings of positions, which are added and multiply nothing.
_POSITIONS = re.compile(
    r"(^|[._])(wpe|rpe|rel|pos|positions?|positional|relative|sinusoidal|[pP]os_?[eE]mb\w*)([._]|$)"
    r"|(^|\.)pe(\.|$)"  # k_pe may be a matrix
)
# Names of a table within a module that is called after what it holds.
_TABLE = re.compile(r"emb(ed)?(ding)?s?|table|lookup")
# Names of the last linear map of a language model, where the model itself does not tell.
_HEADS = ("lm_head", "embed_out", "output_projection", "unembed")
# Words in the names of tables of a few kinds of tokens: a classifier may have the shape of one.
_KINDS = re.compile(r"(^|[._])(token_types?|types?|segments?)([._]|$)")


def roles(model: nn.Module, said: Mapping[str, str] | None = None) -> dict[str, str]:
    """The role of each parameter, one of ``ROLES``, by the parameter's first name.

    ``said`` maps patterns of names to roles and stands above what is found here; of several that
    match the last wins. Raises UserError for an unknown role and a pattern that matches nothing.
    """
    told, by_shape = _heads(model)
    heads = [*told, *by_shape]
    parameters = dict(model.named_parameters())
    found: dict[str, str] = {}
    for name, places in owners(model).items():
        modules = [module for module, _ in places]
        if is_renormed(*places[0]):
            found[name] = "vector"
            continue
        is_head = any(module is head for module in modules for head in heads)
        role = _role(name, *places[0], parameters[name])
        if any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in modules):
            others = [m for m in modules if not isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
            role = "tied" if is_head or others else _of_embedding(name, modules[0])
        elif role == "matrix" and is_head:
            role = "head"
        found[name] = role
    return found | said_roles(model, said or {})


def said_roles(model: nn.Module, said: Mapping[str, str]) -> dict[str, str]:
    """The roles that patterns name, by the parameter's first name.

    Raises UserError for an unknown role, a pattern that matches nothing, and ``transposed`` for
    what has no inputs to come first, or whose layer of torch has them where torch put them.
    """
    found: dict[str, str] = {}
    for pattern, role in said.items():
        if not isinstance(role, str) or role not in ROLES:
            raise UserError(f"role {shown(role)} of {pattern!r}: use one of {', '.join(ROLES)}")
        # Multipliers that are there already have none: a pattern is of the model as it was.
        names = [name for name in matched(model, pattern) if not is_multiplier(name)]
        if not names:
            raise UserError(f"role: no parameter's name matches {pattern!r}")
        found |= dict.fromkeys(names, role)
    _check_transposed(model, [name for name, role in found.items() if role == "transposed"])
    return found


def is_matrix(role: str) -> bool:
    """Whether a parameter of that role is a matrix in a layer, whichever way it is stored."""
    return role in ("matrix", "transposed")


def matched(model: nn.Module, pattern: str) -> list[str]:
    """The first names of the parameters of which any name matches; tied weights have several.

    Raises UserError for a pattern that is no text.
    """
    if not isinstance(pattern, str):
        raise UserError(f"pattern {shown(pattern)} is no text; give a parameter's name")
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = dict(model.named_parameters(remove_duplicate=False))
    names = [pattern] if pattern in every else fnmatch.filter(every, pattern)
    return list(dict.fromkeys(first[id(every[name])] for name in names))


def by_name_alone(model: nn.Module, said: Mapping[str, str]) -> list[str]:
    """Parameters of several rows and columns whose role their names alone tell.

    Neither the type of their module does, nor the user by a pattern of ``said``.
    """
    parameters = dict(model.named_parameters())
    named = said_roles(model, dict.fromkeys(said, ROLES[0]))
    return [
        name
        for name, [(module, attribute), *_] in owners(model).items()
        if _is_wide(parameters[name])
        and not (is_norm(module) or isinstance(module, _KNOWN) or classes.kind(module, attribute))
        and name not in named
    ]


def by_type_alone(model: nn.Module) -> list[str]:
    """Parameters of several rows and columns that are vectors by what holds them, and no norms.

    Bilinear forms, and weights under a parametrization, which divides what it likes out of them.
    """
    parameters = dict(model.named_parameters())
    return [
        name
        for name, [(module, attribute), *_] in owners(model).items()
        if _is_wide(parameters[name])
        and (isinstance(module, _FORMS) or is_renormed(module, attribute))
    ]


def is_renormed(module: nn.Module, attribute: str) -> bool:
    """Whether the older ``spectral_norm`` or ``weight_norm`` of torch computes with it."""
    hooks = module._forward_pre_hooks.values()
    names = [f"{hook.name}_{end}" for hook in hooks for kind, end in _RENORMING
             if isinstance(hook, kind)]  # fmt: skip
    return attribute in names


def heads_by_shape(model: nn.Module) -> list[str]:
    """The weights of linear maps that are heads because an embedding has their shape."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [names.get(id(module._parameters.get("weight"))) for module in _heads(model)[1]]
    return [name for name in found if name is not None]


def is_norm(module: nn.Module) -> bool:
    """Whether its weight is the gain of a norm, of torch or of others' code."""
    name = type(module).__name__
    named = "Norm" in name and not _MORE_THAN_A_NORM.search(name)
    return isinstance(module, _NORMS) or named and not isinstance(module, classes.OF_TORCH)


def _check_transposed(model: nn.Module, names: list[str]) -> None:
    places = owners(model) if names else {}
    for name in names:
        module, attribute = places[name][0]
        if isinstance(module, classes.OF_TORCH):
            raise UserError(
                f"role 'transposed': {name} belongs to torch's own {type(module).__name__}, which "
                "says itself where inputs are; name parameters of your own modules"
            )
        if module._parameters[attribute].dim() < 2:
            raise UserError(
                f"role 'transposed': {name} has fewer than two dimensions; name matrices alone"
            )


def _role(name: str, module: nn.Module, attribute: str, parameter: Tensor) -> str:
    if parameter.dim() < 2 or isinstance(module, _PLAIN) or is_norm(module):
        return "vector"
    attribute = attribute.removesuffix("_orig")  # of torch.nn.utils.prune
    if known := classes.kind(module, attribute):
        return "matrix" if known == "transposed" else known
    if isinstance(module, nn.modules.conv._ConvNd):
        mixes = module.groups == 1 or module.groups < module.in_channels
        return "convolution" if mixes and attribute == "weight" else "vector"
    for kind, pattern in _MATRICES:
        if isinstance(module, kind):
            return "matrix" if re.fullmatch(pattern, attribute) else "vector"
    own = ".".join(name.split(".")[-2:])  # its module's name, and its own there
    named = _NAMED.fullmatch(attribute) and not _POSITIONS.search(own)
    return "matrix" if named and parameter.dim() <= 3 and _is_wide(parameter) else "vector"


def _is_wide(parameter: Tensor) -> bool:
    """Whether it can be a matrix of several rows and columns; a gain of shape (1, 1, d) is not."""
    return sum(size > 1 for size in parameter.shape) > 1


def _of_embedding(name: str, module: nn.Module) -> str:
    called = _called(name.rpartition(".")[0])
    of_positions = _POSITIONS.search(called) or re.search(
        r"Position|Sinusoid", type(module).__name__
    )
    return "vector" if of_positions else "embedding"


def _called(path: str) -> str:
    """The last name of a table's path, and the one before it where the last says nothing."""
    outer, _, last = path.rpartition(".")
    return f"{outer.rpartition('.')[2]}.{last}" if _TABLE.fullmatch(last) else last


def _heads(model: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """LM heads that the model or their names tell, and those that their shape alone tells."""
    getters = (getattr(module, "get_output_embeddings", None) for module in model.modules())
    found = [head for getter in getters if getter is not None and (head := getter()) is not None]
    # Of several heads some give a list.
    found = [
        each for head in found for each in (head if isinstance(head, nn.ModuleList) else [head])
    ]
    if found:
        # A wrapper, as those of peft, has the shape of what it holds.
        inner = (module for head in found for module in head.modules() if _is_alike(module, head))
        return [*found, *inner], []
    tables = {
        path: (table.num_embeddings, table.embedding_dim)
        for path, table in model.named_modules()
        if isinstance(table, (nn.Embedding, nn.EmbeddingBag))
        and _of_embedding(f"{path}.weight", table) == "embedding"
        and not _KINDS.search(_called(path))
    }
    shapes = set(tables.values())
    sizes = {size for size, _ in shapes}
    layers = _layers(model, tables)
    by_shape = []
    for path, module in model.named_modules():
        last = path.rpartition(".")[2]
        # Of a classifier that is called a head the outputs are no tokens. A model whose tokens
        # have no table of torch's cannot tell.
        named = last in _HEADS or last == "head" and (
            not sizes or getattr(module, "out_features", 0) in sizes
        )  # fmt: skip
        if hasattr(module, "weight") and named:
            found.append(module)
        # A linear map of an embedding's shape, the other way, is one whatever its name.
        elif (
            isinstance(module, nn.Linear)
            and (module.out_features, module.in_features) in shapes
            and not any(map(f"{path}.".startswith, layers))
        ):
            by_shape.append(module)
    # Where one shares its weight with a table, no other of its shape is meant. As many tokens as
    # numbers for each, as in models of bytes: then any square map has the shape, and the last one
    # is the head, if none is called one.
    weights = {id(model.get_submodule(path)._parameters.get("weight")) for path in tables}
    tied = [module for module in by_shape if id(module._parameters.get("weight")) in weights]
    settled = {tuple(module._parameters["weight"].shape) for module in tied}
    square = [module for module in by_shape if module.out_features == module.in_features]
    no_heads = [
        module
        for module in by_shape
        if (module.out_features, module.in_features) in settled and module not in tied
    ]
    no_heads += square if found else square[:-1]
    return found, [each for each in by_shape if each in tied or each not in no_heads]


def _layers(model: nn.Module, tables: Collection[str]) -> list[str]:
    """Paths of the layers of stacks, with a dot behind each: numbered children of any container.

    Not so a linear map by itself, unless others follow it in a Sequential; what has a table of
    tokens where all tables lie in its like, a model; and the end of a Sequential that begins with
    a table, if it has one linear map.
    """
    found = []
    for path, module in model.named_modules():
        own = f"{path}." if path else ""
        inside = [table for table in tables if table.startswith(own)]
        in_order = isinstance(module, nn.Sequential)
        filled = [each for each in module.children() if next(each.parameters(), None) is not None]
        for number, child in module.named_children():
            if not number.isdigit():
                continue
            place = f"{own}{number}."
            follow = in_order and child in filled[:-1]
            if isinstance(child, nn.Linear):
                is_layer = follow
            elif any(f"{table}.".startswith(place) for table in inside):
                is_layer = len(inside) < len(tables)
            else:
                maps = sum(isinstance(each, nn.Linear) for each in child.modules())
                is_layer = follow or not (in_order and inside and maps == 1)
            if is_layer:
                found.append(place)
    return found


def _is_alike(module: nn.Module, head: nn.Module) -> bool:
    own, whole = (getattr(each, "weight", None) for each in (module, head))
    return isinstance(own, Tensor) and isinstance(whole, Tensor) and own.shape == whole.shape
