"""``lrm adopt FOLDER``: settings that train a Falcon-H1 further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lrm.cli import Parser, a_folder
from lrm.model.transformers import load_transformers


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The layer of YAML that continues the Falcon-H1 in ``folder``: model, start and rules."""
    model, folder = load_transformers(folder), Path(folder).resolve()
    rules = [{"match": key, "forward": f} for key, f in model.forward_multipliers.items()]
    tokenizer = Path(folder, "tokenizer.json")
    return {
        "model": model.config.model_dump(),
        "train": {"start": str(folder)},
        **({"data": {"tokenizer": str(tokenizer)}} if tokenizer.exists() else {}),
        "rules": rules,
    }


def main(arguments: list[str]) -> None:
    """Print them as YAML, for an experiment's file."""
    parser = Parser(prog="lrm adopt", description=__doc__)
    parser.add_argument("folder", type=a_folder, help="what save_pretrained or lrm export wrote")
    options = parser.parse_args(arguments)
    print(yaml.safe_dump(settings_of(options.folder), sort_keys=False), end="")
