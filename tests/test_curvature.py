"""The largest curvature of the loss: against a Hessian that is there in full."""

import pytest
import torch

from lrm.errors import UserError
from lrm.model.gpu.adapters import Kernels
from lrm.train.curvature import check_kernels, largest_curvature, largest_eigenvalue
from lrm.train.learner import build
from lrm.train.step import backward

# All is still but two vectors and a small matrix, so that the Hessian is small.
STILL = ("embedding", "projector", "attention.[qvo]*", "attention.k@0", "mlp.*", "norms")
RULES = [
    *({"match": name, "weight": "frozen"} for name in STILL),
    {"match": "norm.final", "multiplier": {"kind": "row", "init": 1.5}},
    {"match": "mlp.up@1", "multiplier": {"kind": "column", "parametrization": "or"}},
]


@pytest.fixture
def learner(settings):
    def make(implementation="forward"):
        config = settings(
            rules=RULES, train={"multiplier_implementation": implementation, "z_loss": 0.0}
        )
        model = config.model.model_copy(update={"mixer": "attention"})
        config = config.model_copy(update={"model": model})
        return build(config, 0, dtype=torch.float64), config

    return make


@pytest.fixture
def batch():
    return torch.randint(0, 300, (2, 12), generator=torch.Generator().manual_seed(1))


def test_largest_eigenvalue_of_a_matrix():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    matrix = matrix + matrix.T - 30 * torch.eye(40, dtype=torch.float64)
    start = torch.randn(40, generator=generator, dtype=torch.float64)
    found = largest_eigenvalue(lambda v: [matrix @ v[0]], [start], 40)
    assert found == pytest.approx(torch.linalg.eigvalsh(matrix)[-1].item(), rel=1e-9)
    # From an eigenvector no other is reached.
    assert largest_eigenvalue(lambda v: [3 * v[0]], [start], 10) == pytest.approx(3.0)


def test_kernels_of_half_precision_are_refused():
    check_kernels(Kernels())
    with pytest.raises(UserError, match="probes.curvature needs float32.*attention: torch"):
        check_kernels(Kernels(attention="flash_attn"))


def hessian(learner, config, batch):
    """Entry by entry, by differences of the gradient."""
    learning = [p for p in learner.model.parameters() if p.requires_grad]
    columns = []
    for values in (parameter.data.view(-1) for parameter in learning):
        for n in range(len(values)):
            kept, ends = values[n].item(), []
            for moved in (kept + 1e-4, kept - 1e-4):
                values[n] = moved
                backward(learner, batch, config)
                ends.append(torch.cat([p.grad.flatten() for p in learning]))
            values[n] = kept
            columns.append((ends[0] - ends[1]) / 2e-4)
    found = torch.stack(columns)
    assert len(found) == 97 and torch.allclose(found, found.T, atol=1e-8)
    return found


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_curvature_is_the_hessians(learner, batch, implementation):
    own, config = learner(implementation)
    before = {name: value.clone() for name, value in own.model.state_dict().items()}
    found = largest_curvature(own, batch, config, 60)
    assert all(torch.equal(before[name], v) for name, v in own.model.state_dict().items())
    assert all(parameter.grad is None for parameter in own.model.parameters())
    exact = torch.linalg.eigvalsh(hessian(*learner(), batch))[-1].item()
    assert found == pytest.approx(exact, rel=1e-5)
    # Parts of the batch add up to the same.
    assert largest_curvature(own, batch, config, 60, micro_batch=1) == pytest.approx(exact, 1e-5)
