"""Multipliers under DistributedDataParallel and FSDP2: two gloo processes train as one does.

And their checkpoints, which go on in one process and in two.
"""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import warm
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

import lrm
from lrm.errors import UserError
from lrm.multipliers.sharding import is_fsdp, whole

WORLD = 2
PLACEMENT = {"0.weight": "row_column", "2.weight": [(0, 2, "row"), (3, 6, "scalar")],
             "4.weight": "row_column"}  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(0)
    # Sizes that two processes do not share evenly.
    layers = [nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def adamw(wrapped):
    return torch.optim.AdamW(lrm.build_param_groups(wrapped, lr=0.02, weight_decay=0.1))


def losses(wrapped, optimizer, steps, rank=0, world=1):
    """Those of this process's rows, and gradient norms."""
    found = []
    for step in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        mine = x.chunk(world)[rank]
        loss = (wrapped(mine) - mine[:, :3]).square().mean()
        loss.backward()
        norm = lrm.clip_grad_norm_(wrapped, 0.3)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found


def train(built, wrapped, rank=0, world=1):
    """Losses of this process's rows, gradient norms, and W̄ in the end."""
    found = losses(wrapped, adamw(wrapped), range(10), rank, world)
    weights = {name: whole(w) for name, w in lrm.effective_weights(built).items()}
    lrm.merge_multipliers(built)
    merged = {name: whole(p.detach()) for name, p in built.named_parameters()}
    return found, weights, merged


def ddp(rank, implementation, folder):
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    wrapped = nn.parallel.DistributedDataParallel(built, gradient_as_bucket_view=True)
    return train(built, wrapped, rank, WORLD)


def in_parts(rank, implementation, folder):
    """Two micro-batches a step within ``same_weights``, with and without counted gradients."""
    found = []
    for counted in (False, True):
        built = model()
        lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
        wrapped = nn.parallel.DistributedDataParallel(built, find_unused_parameters=counted)
        optimizer = adamw(wrapped)
        if counted and implementation == "optimizer":
            inputs = torch.ones(2, 4, dtype=torch.double)
            told = pytest.raises(UserError, match="give lrm.same_weights the wrapped model")
            with told, lrm.same_weights(built):
                wrapped(inputs)
            with lrm.same_weights(built):  # now it is known
                wrapped(inputs).sum().backward()
        for step in range(10):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).double()
            optimizer.zero_grad()
            with lrm.same_weights(wrapped):
                first, last = x.chunk(WORLD)[rank].chunk(2)
                with wrapped.no_sync():
                    ((wrapped(first) - first[:, :3]).square().mean() / 2).backward()
                ((wrapped(last) - last[:, :3]).square().mean() / 2).backward()
            lrm.clip_grad_norm_(wrapped, 0.3)
            optimizer.step()
        found.append(lrm.effective_weights(built))
    return found


def shard(whole, **options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in whole:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(whole, mesh=mesh, **options)


def fsdp(rank, implementation, folder):
    late = shard(model())
    with pytest.raises(UserError, match="sharded already; call lrm.attach_multipliers before"):
        lrm.attach_multipliers(late, PLACEMENT, implementation=implementation)
    half = model().bfloat16()
    lrm.attach_multipliers(half, PLACEMENT, implementation=implementation)
    shard(half)
    with pytest.raises(UserError, match="fully_shard takes one dtype; keep the weights in float32"):
        lrm.build_param_groups(half, 1e-3, 0.1)
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    shard(built)
    found = train(built, built, rank, WORLD)
    assert all(is_fsdp(layer) for layer in built if isinstance(layer, nn.Linear))  # merged by now
    return found


def evaluated(rank, implementation, folder):
    """Merged after a forward pass alone, which leaves the outermost module's tensors gathered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(built[2], mesh=mesh)
    fully_shard(built, mesh=mesh)  # it has the first layer and the last
    losses(built, adamw(built), range(3), rank, WORLD)
    x = torch.ones(2, 4, dtype=torch.double)
    with torch.no_grad():
        before = built(x)
    weights = {name: whole(w) for name, w in lrm.effective_weights(built).items()}
    with torch.no_grad():
        built(x)
    lrm.merge_multipliers(built)
    kept = get_model_state_dict(built, options=StateDictOptions(full_state_dict=True))
    with torch.no_grad():
        torch.testing.assert_close(built(x), before)
    return weights, kept


def mixed(rank, implementation, folder):
    """bfloat16 where tensors are used; what learns is as it was."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard(built, mp_policy=policy)
    with torch.no_grad():  # too small a step for bfloat16
        for name, parameter in built.named_parameters():
            if name.startswith("0.multipliers"):
                parameter.add_(1e-3)
    used = []
    built[0].register_forward_pre_hook(lambda module, _: used.append(module.weight.dtype))
    found = train(built, built, rank, WORLD)
    assert set(used) == {torch.bfloat16}
    assert {p.dtype for p in built.parameters()} == {torch.double}
    return found


def begun(implementation, sharded=False):
    """A model with multipliers, all of its tensors others than those of ``model``; its AdamW."""
    built = model()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.neg_()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    built = shard(built) if sharded else built
    return built, adamw(built)


def loaded(built, optimizer, folder):
    """What ``checkpoint`` saved, in another model and another optimizer."""
    model_state, optimizer_state = get_state_dict(built, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/dcp")
    set_state_dict(built, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    return built, optimizer


def checkpoint(rank, implementation, folder):
    """Losses behind a checkpoint without a stop, and of what goes on from it; all tensors whole."""
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    pair = shard(built), adamw(built)
    losses(*pair, range(5), rank, WORLD)
    model_state, optimizer_state = get_state_dict(*pair)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/dcp")
    without_a_stop = losses(*pair, range(5, 10), rank, WORLD)
    again = loaded(*begun(implementation, sharded=True), folder)
    resumed = losses(*again, range(5, 10), rank, WORLD)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    # A whole checkpoint that the first process alone holds is given to all.
    full = get_model_state_dict(again[0], options=options)
    other, _ = begun(implementation, sharded=True)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, dict(full) if rank == 0 else {}, options=options)
    given = {name: whole(w) for name, w in lrm.effective_weights(other).items()}
    states = [{n: whole(w) for n, w in each.state_dict().items()} for each in (pair[0], again[0])]
    return without_a_stop, resumed, states, full, given


JOBS = (ddp, fsdp, evaluated, mixed, checkpoint, in_parts)
IMPLEMENTATIONS = ("forward", "optimizer")


def _child(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank),
                            world_size=WORLD)  # fmt: skip
    for job in JOBS:
        for name in IMPLEMENTATIONS:
            torch.save(job(int(rank), name, f"{folder}/{name}"), _result(folder, job, name, rank))
    dist.destroy_process_group()


def _result(folder, job, implementation, rank):
    return f"{folder}/{job.__name__}_{implementation}_{rank}.pt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes have left what each job returned, in both implementations."""
    found = tmp_path_factory.mktemp("processes")
    command = [warm.python, __file__, str(found)]
    children = [subprocess.Popen([*command, str(rank)]) for rank in range(WORLD)]
    try:
        for child in children:
            assert child.wait(600) == 0
    finally:  # where one has failed the other would wait for it
        for child in children:
            child.kill()
            child.wait()
    return found


def results(folder, job, implementation):
    """What each process has returned."""
    return [torch.load(_result(folder, job, implementation, rank)) for rank in range(WORLD)]


def means(records):
    """Losses over the rows of all processes."""
    return [sum(pair) / WORLD for pair in zip(*([a for a, _ in r] for r in records), strict=True)]


both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@both
@pytest.mark.parametrize("job", [ddp, fsdp])
def test_two_processes_train_as_one(job, implementation, folder):
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    records, weights, merged = train(built, built)
    found = results(folder, job, implementation)
    assert means(f[0] for f in found) == pytest.approx([a for a, _ in records], rel=1e-9)
    for mine, of_whole, after in found:
        assert [norm for _, norm in mine] == pytest.approx([b for _, b in records], rel=1e-9)
        for have, want in ((of_whole, weights), (after, merged)):
            assert have.keys() == want.keys()
            for name, weight in want.items():
                torch.testing.assert_close(have[name], weight, rtol=1e-8, atol=1e-10)


@both
def test_merging_after_a_forward_pass_alone(implementation, folder):
    """What is saved is W̄, of the outermost module's tensors too."""
    for weights, kept in results(folder, evaluated, implementation):
        assert weights.keys() == {"0.weight", "2.weight", "4.weight"}
        assert not any("multipliers" in name for name in kept)
        for name, weight in weights.items():
            torch.testing.assert_close(kept[name], weight)


@both
def test_mixed_precision_of_fsdp_rounds_what_is_used_and_not_what_learns(implementation, folder):
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.startswith("0.multipliers"):
                parameter.add_(1e-3)
    records, weights, _ = train(built, built)
    found = results(folder, mixed, implementation)
    assert means(f[0] for f in found) == pytest.approx([a for a, _ in records], rel=0.02)
    for _, of_whole, _ in found:
        for name, weight in weights.items():
            assert (of_whole[name] - weight).norm() < 0.01 * weight.norm(), name


@both
def test_micro_batches_of_two_processes_train_as_one(implementation, folder):
    built = model()
    lrm.attach_multipliers(built, PLACEMENT, implementation=implementation)
    _, weights, _ = train(built, built)
    for of_process in results(folder, in_parts, implementation):
        for found in of_process:
            for name, weight in weights.items():
                torch.testing.assert_close(found[name], weight, rtol=1e-8, atol=1e-10)


@both
def test_a_sharded_checkpoint_goes_on_in_two_processes_and_in_one(implementation, folder):
    found = results(folder, checkpoint, implementation)
    for without_a_stop, resumed, states, full, _ in found:
        assert resumed == without_a_stop
        for name, value in states[0].items():
            assert torch.equal(states[1][name], value), name
        if full:
            built, _ = begun(implementation)
            built.load_state_dict(full)
            for name, value in lrm.effective_weights(built).items():
                for each in found:
                    assert torch.equal(each[4][name], value), name
    alone = loaded(*begun(implementation), folder / implementation)
    records = losses(*alone, range(5, 10))
    assert means(f[0] for f in found) == pytest.approx([a for a, _ in records], rel=1e-9)
    assert [b for _, b in found[0][0]] == pytest.approx([b for _, b in records], rel=1e-9)


if __name__ == "__main__":
    _child(*sys.argv[1:])
