"""Checkpoints that are written in parts: whole or not at all, and told when they are damaged."""

import resource
import shutil

import pytest
import torch
import torch.distributed as dist

from lrm.errors import Busy, UserError
from lrm.store import checkpoint, parts
from lrm.store.rundir import open_run

DESCRIPTION = {"id": "a", "execution": {}}


class Killed(Exception):
    """The process ends here."""


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()


def tensors(value):
    return {"model.w": torch.full((40, 3), float(value)), "model.b": torch.full((2,), float(value))}


def save(directory, step, group):
    directory.save_parts({"step": step, "learner": {}}, tensors(step), f"{step:04x}", group)
    directory.settle()


def latest(path):
    """The step of the latest state, which its tensors must be of, and the folders that are left."""
    with open_run(path) as directory:
        state, found = directory.start(DESCRIPTION), tensors(0)
        directory.read_parts(found)
    assert all((tensor == state["step"]).all() for tensor in found.values())
    return state["step"], [folder.name for folder in path.glob("checkpoint-*")]


def test_a_copy_is_written_beside_training(tmp_path, group):
    """What changes while it is written is not in it; nor is what the state's own tensors become."""
    with open_run(tmp_path) as directory:
        directory.start(DESCRIPTION)
        found, count = tensors(3), torch.tensor(3.0)
        directory.save_parts({"step": 3, "learner": count}, found, "0003", group)
        for tensor in (*found.values(), count):
            tensor += 1
    assert latest(tmp_path) == (3, ["checkpoint-3-0003"])
    with open_run(tmp_path) as directory:
        assert directory.start(DESCRIPTION)["learner"] == 3
        directory.save_checkpoint({"step": 4})
        assert not list(tmp_path.glob("checkpoint-*"))


# After the files of some processes, before the checkpoint names all, before the last is removed.
@pytest.mark.parametrize(
    ("owner", "name", "left"),
    [(parts._Writer, "finish", 3), (checkpoint, "write", 3),
     (checkpoint, "remove_parts", 6)],
)  # fmt: skip
def test_a_kill_leaves_the_last_whole_checkpoint(tmp_path, group, monkeypatch, owner, name, left):
    def kill(*_, **__):
        raise Killed

    with open_run(tmp_path) as directory:
        directory.start(DESCRIPTION)
        save(directory, 3, group)
        monkeypatch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            save(directory, 6, group)
        monkeypatch.undo()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    assert latest(tmp_path) == (left, [f"checkpoint-{left}-{left:04x}"])


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, group):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_run(tmp_path) as directory:
        directory.start(DESCRIPTION)
        save(directory, 3, group)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
            with pytest.raises(UserError, match="cannot write .*checkpoint-6-0006: .*; make room"):
                save(directory, 6, group)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert latest(tmp_path)[0] == 3


def test_a_process_that_loses_its_run_meanwhile_leaves_the_checkpoint(tmp_path, group):
    """It still had the run when it began to write."""
    with open_run(tmp_path) as directory:
        directory.start(DESCRIPTION)
        save(directory, 3, group)
        left = iter([True])

        def check():
            if not next(left, False):
                raise Busy("taken over")

        directory._check_claim = check
        with pytest.raises(Busy):
            save(directory, 6, group)
    assert latest(tmp_path) == (3, ["checkpoint-3-0003"])


def test_every_damaged_part_is_told(tmp_path, group):
    path = tmp_path / "run"
    with open_run(path) as directory:
        directory.start(DESCRIPTION)
        save(directory, 3, group)
    [folder] = path.glob("checkpoint-*")
    assert sorted(file.name for file in folder.iterdir()) == [".metadata", "__0_0.distcp"]
    for file in folder.iterdir():
        content = file.read_bytes()
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        for damaged in (content[:middle] + flipped + content[middle + 1 :], content[:-1], b""):
            file.write_bytes(damaged)
            with pytest.raises(UserError, match=f"{file.name} is damaged: .*remove .*nt.pt and"):
                latest(path)
        file.unlink()
        with pytest.raises(UserError, match=f"{file.name} cannot be read .*; remove .*nt.pt and"):
            latest(path)
        file.write_bytes(content)
    assert latest(path)[0] == 3
    with open_run(path) as directory:
        directory.start(DESCRIPTION)
        with pytest.raises(UserError, match="is that of another model; remove"):
            directory.read_parts({"model.other": torch.zeros(2)})
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="metadata cannot be read"):
        latest(path)
