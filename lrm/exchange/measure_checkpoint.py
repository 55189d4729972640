"""``lrm probe MODEL``: norms of any transformers checkpoint.

Read from its safetensors files, tensor by tensor: no architecture has to be known, and no model
is built. ``analysis.explore.checkpoint_norms`` draws them.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from lrm.cli import Parser, a_folder
from lrm.errors import UserError
from lrm.multipliers.attach import is_multiplier
from lrm.store.digests import MANIFEST
from lrm.store.files import as_json, make_folder, write_listed
from lrm.train.probes import column_norms, row_norms

# The file of norms in the folder that is written.
TABLE = "norms.parquet"
# The first number in a name is the layer's.
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
# Models of transformers whose linear maps are a Conv1D, and the names of these maps.
_OF_CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp")
_CONV1D = re.compile(r"\b(c_attn|q_attn|c_proj|c_fc)\.weight$")
# Models whose experts are stacks of matrices with inputs first, and the names of these.
_EXPERTS_TURNED = ("gpt_oss", "openai_privacy_filter", "llama4", "llama4_text", "aria", "aria_text")
_EXPERTS = re.compile(r"\bexperts\.((gate_up|down)_proj|fc[12]\.weight)$")
# A word in the names of convolutions; those of audio have three dimensions, as stacks have.
_CONVOLUTION = re.compile(r"conv", re.IGNORECASE)
# Vectors of several rows: of stacks of experts, and of the SSM of Mamba.
_VECTORS = re.compile(r"(^|[._])(bias|A_log)$")
# Integers that hold a matrix, and not a mask or an index.
_QUANTIZED = re.compile(r"(^|\.)(weight|qweight|weight_packed)$|_blocks$")
# What transformers reads of a folder that holds its weights more than once, the first first.
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def norms(folder: Path) -> pd.DataFrame:
    """One row per matrix and axis: tensor (``*`` for the layer), layer, stat, columns, value.

    ``value`` holds the root mean square of each row or column; ``over`` says of how many entries.
    Rows are outputs, also of GPT-2's linear maps and of GPT-OSS's, Llama 4's and Aria's experts,
    which are stored with inputs first. Those of DBRX's ``w2`` are inputs. Stacks of matrices
    (experts) count as one matrix with all of their rows, and a convolution's rows are its filters;
    of the columns of both nothing is said. Convolutions of one input channel (depthwise) are left
    out, and so are biases of experts and ``A_log``; embeddings of positions are not. Of a folder
    that holds weights more than once ``model.safetensors`` is read, or what its index lists. Raises
    UserError where there are no safetensors, where they are damaged, and where they hold
    multipliers beside weights, whose norms alone would not be those of W̄, quantized matrices, a
    tensor twice, or values that are not finite.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UserError(
            "safetensors is not installed; run pip install 'lrm-suite[evaluation]'"
        ) from None
    seen: dict[str, Path] = {}
    rows, kind = [], _model_type(folder)
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (not a dictionary)
                    if is_multiplier(name):
                        raise UserError(
                            f"{folder} holds multipliers beside its weights; merge them "
                            "(lrm.merge_multipliers) and save the model again"
                        )
                    if name in seen:
                        raise UserError(
                            f"{name} is in {seen[name].name} and in {file.name}; leave the files "
                            f"of one model in {folder}"
                        )
                    seen[name] = file
                    weight = tensors.get_tensor(name)
                    rows += _measured(name, _outputs_first(kind, name, weight))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is damaged ({error}); fetch it again") from None
    if not rows:
        raise UserError(f"{folder} holds no matrices of floating-point numbers; dequantize a "
                        "quantized model and save it again")  # fmt: skip
    return pd.DataFrame(rows).astype({"layer": "Int64"})


def _files(folder: Path) -> list[Path]:
    """Those that hold each weight once, as transformers finds them."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    try:
        listed = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        found = sorted({folder / name for name in listed})
    except FileNotFoundError:
        found = sorted(folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / _INDEX} is damaged; fetch it again") from None
    if not found:
        raise UserError(f"{folder} has no .safetensors files; save the model with save_pretrained")
    return found


def _model_type(folder: Path) -> str | None:
    """What its configuration says, if it has one that says so."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None


def _outputs_first(kind: str | None, name: str, weight: torch.Tensor) -> torch.Tensor:
    """``weight`` of a model of that kind, which may be stored with inputs first."""
    of_linear = kind in _OF_CONV1D and weight.dim() == 2 and _CONV1D.search(name)
    of_experts = kind in _EXPERTS_TURNED and weight.dim() == 3 and _EXPERTS.search(name)
    return weight.mT if of_linear or of_experts else weight


def _measured(name: str, weight: torch.Tensor) -> Iterator[dict]:
    if weight.dim() < 2 or not weight.numel() or _VECTORS.search(name):
        return
    if not weight.is_floating_point():
        if _QUANTIZED.search(name):
            raise UserError(f"{name} holds integers ({weight.dtype}), as quantized models do; "
                            "dequantize the model and save it again")  # fmt: skip
        return
    is_filter = weight.dim() > 3 or (weight.dim() == 3 and _CONVOLUTION.search(name) is not None)
    if is_filter:
        if weight.shape[1] == 1:
            return
        weight = weight.flatten(1)
    if min(weight.shape[-2:]) == 1:
        return
    if weight.element_size() == 1:
        raise UserError(f"{name} is quantized to {weight.dtype}, and its scales are stored apart; "
                        "dequantize the model and save it again")  # fmt: skip
    found = _LAYER.search(name)
    layer = int(found.group()) if found else None
    tensor = name if found is None else f"{name[: found.start()]}*{name[found.end() :]}"
    identity = {"tensor": tensor, "layer": layer}
    matrix = weight.reshape(-1, weight.shape[-1])
    if not torch.isfinite(matrix).all():
        raise UserError(f"{name} holds values that are not finite, which have no norm")
    yield {**identity, "stat": "row_norms", "over": matrix.shape[1],
           "value": row_norms(matrix).tolist()}  # fmt: skip
    if weight.dim() == 2 and not is_filter:
        yield {**identity, "stat": "column_norms", "over": matrix.shape[0],
               "value": column_norms(matrix).tolist()}  # fmt: skip


def located(model: str) -> Path:
    """The folder of ``model``: itself, or what the Hugging Face hub has under that name.

    Raises UserError where neither has it, or the hub cannot be reached.
    """
    if Path(model).is_dir():
        return Path(model)
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UserError(
            f"{model} is no folder; give one, or a name on the hub such as openai-community/gpt2"
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        raise UserError(
            "huggingface_hub is not installed; run pip install 'lrm-suite[evaluation]'"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{model} cannot be fetched from the hub: {reason}") from None


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, write ``<results>/probes/<name>/``, name the table."""
    parser = Parser(prog="lrm probe", description=__doc__)
    parser.add_argument("model", help="a folder of safetensors, or a name on the hub")
    parser.add_argument("--results", type=a_folder, default=Path("results"))
    options = parser.parse_args(arguments)
    model = options.model
    # A ``~`` in quotation marks is for us to read.
    model = str(a_folder(model)) if model.startswith("~") else model
    print(measure(model, options.results) / TABLE)


def measure(model: str, results: Path) -> Path:
    """Write the norms of ``model`` and return the folder they lie in, named after the model."""
    table = norms(located(model))
    source = str(Path(model).resolve()) if Path(model).is_dir() else model
    said = model if re.search(r"\w", model) else source  # "." and ".." name nothing
    name = re.sub(r"[^\w.-]+", "--", said.strip("/").removeprefix("./")).strip("-.")
    target = make_folder(results / "probes" / (name or "model"))
    with contextlib.suppress(OSError, ValueError, KeyError):  # a damaged one is written anew
        if (other := json.loads((target / "model.json").read_bytes())["model"]) != source:
            raise UserError(f"{target} holds the norms of {other}; move it away, or choose other "
                            "--results")  # fmt: skip
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    (target / MANIFEST).unlink(missing_ok=True)  # it may be damaged; both files are written anew
    described = as_json({"model": source})
    write_listed(target, {TABLE: buffer.getvalue(), "model.json": described})
    return target
