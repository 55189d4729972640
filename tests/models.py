"""Models of many kinds, attached, trained, saved, loaded, merged: ``make test-models``.

Takes minutes, so it is no part of ``make test``. If all passes it writes
``lrm/multipliers/MODELS.md``.
"""

import pytest
from lifecycle import IMPLEMENTATIONS, check
from zoo import CASES, PAGE, row

BEGIN = """# Models

`make test-models` has written this page. Each of these {count} models was attached in both
implementations, and trained for ten steps. It was saved after five of them, loaded into another
model, and went on to the same bits. Every multiplier moved. The merged model gave the same output.
So did what `save_pretrained` wrote, for models of transformers.

All models are small and random. The placement is `all`, or `convolutions` for networks of
convolutions. The table counts parameters by their role. `tests/zoo.py` states the role of each.

| model | parameters | matrices | embeddings | heads | convolutions | vectors | with multipliers |
|---|---|---|---|---|---|---|---|
"""


@pytest.fixture(scope="module")
def passed():
    """Names of the models that passed; where these are all of them, the page is written."""
    names: list[str] = []
    yield names
    if names == list(CASES):
        text = BEGIN.format(count=len(names)) + "".join(map(row, names))
        PAGE.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_model(name, passed, tmp_path):
    for implementation in IMPLEMENTATIONS:
        check(name, implementation, tmp_path / implementation)
    passed.append(name)
