"""The offline suite: tasks in the harness's own format, made of held-out documents.

A folder holds a YAML file and JSON lines for each task; ``lm_eval --include_path FOLDER --tasks
lrm_imports`` reads it. The same documents, settings and modules give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
from pathlib import Path

import yaml
from tokenizers import Tokenizer

from lrm.data import Corpus
from lrm.data.tokenizer import end_of_text
from lrm.errors import UserError
from lrm.exchange.evaluation import knowledge, reasoning
from lrm.exchange.evaluation.examples import Example, Material
from lrm.plan.config import DataConfig
from lrm.plan.evaluation import SUITE, SUITE_VERSION, Suite
from lrm.store.digests import MANIFEST, digest, read_listed
from lrm.store.files import make_folder, write_atomic, write_listed
from lrm.store.lock import locked

_MAKERS = {
    name: getattr(knowledge if task.half == "knowledge" else reasoning, name)
    for name, task in SUITE.items()
}
PREFIX = "lrm_"


def prepare(suite: Suite, corpus: Corpus, config: DataConfig, folder: Path) -> Path:
    """The folder of the suite below ``folder``, made first where it is not there.

    Modules are imported to check answers: those of the standard library and, where ``config`` reads
    packages, theirs. So the examples also depend on the version of Python and on what is installed;
    ``digest_of`` tells which. Raises UserError where the held-out documents do not suffice, and
    where the files of an earlier call are damaged.
    """
    packages = config.packages if config.source == "packages" else ()
    told = json.dumps([suite.model_dump(mode="json"), corpus.hash, SUITE_VERSION, packages])
    path = folder / f"suite-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    make_folder(path)
    with locked(path, True):
        if not (path / MANIFEST).exists():
            write_listed(path, _examples(suite, corpus, packages))
        for name in suite.chosen:
            _read(path, name)
            # It says where the folder lies, which may have been moved.
            told, task = path / f"{name}.yaml", yaml.safe_dump(_task(name, path), sort_keys=False)
            if not told.exists() or told.read_bytes() != task.encode():
                write_atomic(told, task.encode())
    return path


def digest_of(path: Path) -> str:
    """Of all examples in a suite's folder."""
    return digest((path / MANIFEST).read_bytes())


def _read(path: Path, name: str) -> bytes:
    return read_listed(path / f"{name}.jsonl", f"remove {path} and run again")


def documents(corpus: Corpus) -> list[str]:
    """The held-out documents as text."""
    tokenizer = Tokenizer.from_file(str(corpus.path / "tokenizer.json"))
    end = end_of_text(tokenizer)
    tokens = corpus.validation[:].tolist()
    parts = itertools.groupby(tokens, key=lambda token: token == end)
    return [tokenizer.decode(list(part)) for is_end, part in parts if not is_end]


def _examples(suite: Suite, corpus: Corpus, packages: tuple[str, ...]) -> dict[str, bytes]:
    """The JSON lines of each task by the name of their file."""
    material = Material.of(documents(corpus), packages, suite.context)
    contents: dict[str, bytes] = {}
    for name in suite.chosen:
        maker = _MAKERS[name]
        draw = random.Random(f"{suite.seed} {name}")
        seen: dict[tuple, Example] = {}
        for found in itertools.islice(maker(material, draw), 20 * suite.examples):
            seen.setdefault((found.query, *sorted(found.choices)), found)
            if len(seen) == suite.examples:
                break
        if not seen:
            raise UserError(
                f"the held-out documents of {corpus.name} give no example of {name}; take a larger "
                "corpus, or raise data.validation_fraction"
            )
        if len(seen) < suite.examples:
            raise UserError(
                f"the held-out documents of {corpus.name} give {len(seen)} examples of {name}, "
                f"and evaluation.suite.examples asks for {suite.examples}; ask for fewer, or raise "
                "data.validation_fraction"
            )
        records = map(dataclasses.asdict, seen.values())
        contents[f"{name}.jsonl"] = "".join(f"{json.dumps(r)}\n" for r in records).encode()
    return contents


def _task(name: str, path: Path) -> dict:
    """A task as the harness wants it described."""
    data = {"data_files": {"test": str(path.resolve() / f"{name}.jsonl")},
            "cache_dir": str(path.resolve() / ".cache")}  # fmt: skip
    return {
        "task": f"{PREFIX}{name}",
        "dataset_path": "json",
        "dataset_kwargs": data,
        "test_split": "test",
        "output_type": "multiple_choice",
        # Fields by name: templates would be compiled for each example, a fifth of the time.
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": SUITE_VERSION},
    }
