"""What each parameter of many models is. ``make test-models`` trains these models."""

import fnmatch
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from zoo import CASES, PAGE, row

import lrm
from lrm.multipliers.layout import layout, owners
from lrm.multipliers.roles import roles


@pytest.mark.parametrize("name", CASES)
def test_what_is_a_matrix(name):
    """Every parameter has the role that the case states, and every matrix its rows."""
    case = CASES[name]
    with torch.device("meta"):
        model = case.build()
    parameters, places = dict(model.named_parameters()), owners(model)
    found = roles(model)
    for full, parameter in parameters.items():
        said = [role for end, role in case.roles.items() if fnmatch.fnmatch(full, end)]
        assert found[full] == (said[-1] if said else "vector"), full
        assert parameter.dim() >= 2 or found[full] == "vector", full
        if found[full] == "matrix":
            last = any(fnmatch.fnmatch(full, pattern) for pattern in case.transposed)
            rows = layout(*places[full][0], parameter).row
            assert rows == parameter.dim() - (1 if last else 2), full
    linear = {id(m.weight) for m in model.modules() if type(m) is nn.Linear}
    for full, parameter in parameters.items():
        assert id(parameter) not in linear or found[full] in ("matrix", "head", "tied"), full


def test_what_a_convolution_mixes():
    """Depthwise is that each output comes from one input."""
    for mixing, module in [
        (True, nn.Conv2d(1, 4, 3)), (True, nn.Conv2d(8, 8, 3, groups=4)),
        (True, nn.Conv2d(8, 4, 3, groups=4)), (True, nn.ConvTranspose2d(8, 4, 3, groups=4)),
        (False, nn.Conv2d(4, 4, 3, groups=4)), (False, nn.Conv2d(4, 8, 3, groups=4)),
    ]:  # fmt: skip
        assert roles(module) == {"weight": "convolution" if mixing else "vector", "bias": "vector"}
        if mixing:
            lrm.attach_multipliers(module, "convolutions")


def test_the_table_names_these_models():
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| \d.*\n", page, re.MULTILINE)
    assert rows == list(map(row, CASES)), "run make test-models"
    first = (Path(lrm.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert len(rows) >= 40 and all(f"{len(rows)} models" in text for text in (page, first))
