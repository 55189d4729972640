"""The model card of an exported run: what it is, how it was trained, how to load it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lrm.plan.config import Settings


def card(
    description: dict[str, Any],
    settings: Settings,
    parameters: int,
    step: int | None = None,
    loss: float | None = None,
) -> str:
    """A README.md with the front matter that the hub reads.

    ``description`` is what ``run.json`` holds, ``parameters`` the number of the exported model's,
    ``step`` the snapshot's (None: the end of the run) and ``loss`` the validation loss there in
    nats a token, where it is known. Needs huggingface_hub, which transformers brings.
    """
    from huggingface_hub import ModelCardData

    train, environment = settings.train, description["environment"]
    fewer = ", smaller batches at first" if settings.schedule.batch_ramp else ""
    steps = f"{train.steps:,} steps" if step is None else f"{step:,} of {train.steps:,} steps"
    rows = {
        "run": f"`{description['id']}` of the experiment `{description['experiment']}`, "
        f"scale `{description['scale']}`",
        "arm": f"`{description['label']}`",
        "parameters": f"{parameters:,}, float32",
        "text": description["corpus"]["name"],
        "training": f"{steps} of {train.batch_size} × {train.sequence_length} tokens{fewer}",
        "base learning rate, weight decay": f"{settings.base_lr:g}, "
        f"{settings.optimizer.weight_decay:g}",
        "learnable multipliers": _multipliers(description["rules"]),
    }
    if loss is not None:
        rows["validation loss"] = f"{loss:.4f} nats a token"
    # Without git there is no commit to tell.
    first = environment["commit"]
    made = {first: f"lrm {environment['lrm']}" + (f", commit {first}" if first else "")}
    for since in description.get("resumed", ()):
        later = f"commit {since['commit']}" if since["commit"] else f"lrm {since['lrm']}"
        made.setdefault(since["commit"], f"{later} from step {since['step']:,}")
    rows["made by"] = "; ".join(made.values())
    table = "\n".join(f"| {what} | {value} |" for what, value in rows.items())
    front = ModelCardData(license="apache-2.0", library_name="transformers", tags=["code"])
    return f"""---
{front.to_yaml()}
---

# {description["experiment"]}, {description["label"]}

A language model that was trained to measure how learnable multipliers change the scales of its
matrices. It is part of a reproduction of the paper
[Learnable Multipliers](https://arxiv.org/abs/2601.04890) (Falcon LLM team, 2026).
It was not made to be useful for anything else.

| what | value |
|---|---|
{table}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder")
tokenizer = AutoTokenizer.from_pretrained("this folder")
```

The weights have the licence of the suite, Apache 2.0. The text that they were trained on has the
licences of its authors, and is not in this folder.
"""


def _multipliers(rules: list[dict[str, Any]]) -> str:
    """The kinds, the number of tensors that have them, and where they are now."""
    tensors: dict[str, list[str]] = {}
    for rule in rules:
        if rule["multiplier"]:
            tensors.setdefault(rule["tensor"], []).append(rule["multiplier"])
    if not tensors:
        return "none"
    counts = Counter(" and ".join(kinds) for kinds in tensors.values())
    listed = ", ".join(f"{kinds} of {n} tensors" for kinds, n in counts.most_common())
    return f"{listed}; merged into the weights"
