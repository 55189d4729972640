"""Multipliers under DistributedDataParallel and FSDP2: two gloo processes train as one does."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import warm
from torch import nn

import lrm
from lrm.errors import UserError

WORLD = 2
PLACEMENT = {"0.weight": "row_column", "2.weight": [(0, 2, "row"), (3, 6, "scalar")],
             "4.weight": "row_column"}  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(0)
    # Sizes that two processes do not share evenly.
    layers = [nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def train(built, wrapped, rank=0, world=1, steps=10):
    """Losses of this process's rows, gradient norms, and W̄ in the end."""
    groups = lrm.build_param_groups(wrapped, lr=0.02, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups)
    found = []
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        mine = x.chunk(world)[rank]
        loss = (wrapped(mine) - mine[:, :3]).square().mean()
        loss.backward()
        norm = lrm.clip_grad_norm_(wrapped, 0.3)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    weights = {name: _whole(w) for name, w in lrm.effective_weights(built).items()}
    lrm.merge_multipliers(built)
    merged = {name: _whole(p.detach()) for name, p in built.named_parameters()}
    return found, weights, merged


def _whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def ddp(rank, implementation):
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    wrapped = nn.parallel.DistributedDataParallel(built, gradient_as_bucket_view=True)
    return train(built, wrapped, rank, WORLD)


def fsdp(rank, implementation):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    built = model()
    mesh = init_device_mesh("cpu", (WORLD,))

    def shard(whole):
        for layer in whole:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(whole, mesh=mesh)

    late = model()
    shard(late)
    with pytest.raises(UserError, match="sharded already; call lrm.attach_multipliers before"):
        lrm.attach_multipliers(late, PLACEMENT, implementation=implementation)
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    shard(built)
    return train(built, built, rank, WORLD)


def _child(job, implementation, folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank),
                            world_size=WORLD)  # fmt: skip
    torch.save(globals()[job](int(rank), implementation), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
@pytest.mark.parametrize("job", [ddp, fsdp])
def test_two_processes_train_as_one(job, implementation, tmp_path):
    command = [warm.python, __file__, job.__name__, implementation, str(tmp_path)]
    children = [subprocess.Popen([*command, str(rank)]) for rank in range(WORLD)]
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    records, weights, merged = train(built, built)
    for child in children:
        assert child.wait(120) == 0
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]
    losses = [
        sum(pair) / WORLD for pair in zip(*([a for a, _ in f[0]] for f in found), strict=True)
    ]
    assert losses == pytest.approx([a for a, _ in records], rel=1e-9)
    for mine, of_whole, after in found:
        assert [norm for _, norm in mine] == pytest.approx([b for _, b in records], rel=1e-9)
        for have, want in ((of_whole, weights), (after, merged)):
            assert have.keys() == want.keys()
            for name, weight in want.items():
                torch.testing.assert_close(have[name], weight, rtol=1e-8, atol=1e-10)


if __name__ == "__main__":
    _child(*sys.argv[1:])
