"""Several processes train one run: the same mathematics, resumed by any number, ended together."""

import collections
import contextlib
import dataclasses
import functools
import io
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import warm
from test_signals import LOOPBACK

from lrm import data
from lrm.data import Batches
from lrm.errors import Diverged, Stopped, UserError
from lrm.multipliers.sharding import whole
from lrm.optim import muon
from lrm.optim.exchange import owners
from lrm.plan.config import Execution, Parallel, Settings, validate
from lrm.plan.memory import of_process
from lrm.plan.run import Cost, TrainRun
from lrm.plan.schedule import snapshot_steps
from lrm.store import parts
from lrm.store.files import read_json
from lrm.sweep import machine, scheduler
from lrm.train import device, distributed, loop
from lrm.train.step import train_step

ROOT = Path(__file__).parents[1]
RULES = [
    {"match": "mlp.*", "multiplier": {"kind": "row_column"}},
    {"match": "attention.q", "multiplier": {"kind": "scalar", "parametrization": "log"}},
    {"match": "ssm.x", "multiplier": {"kind": "scalar"}, "lr_scale": 0.5},
    {"match": "ssm.B", "lr": 0.0},
    {"match": "norm.final", "weight": "scalar"},
    {"match": "norm.mlp", "weight": "frozen"},
]
IMPLEMENTATIONS = ("forward", "optimizer")


# What the processes do. Each function gets the group and what the test wrote down for it.


def steps(group, variants):
    """Losses, gradient norms and final tensors of ten steps, or fewer, all in float64.

    And the matrices that Muon orthogonalised here: their number by shape.
    """
    found, real = [], muon.newton_schulz
    for settings, micro_batch, *rest in variants:
        seen = collections.Counter()

        def counted(matrices, *rest, seen=seen):
            seen[tuple(matrices.shape[1:])] += len(matrices)
            return real(matrices, *rest)

        muon.newton_schulz = counted
        count, parallel = rest or (10, None)
        learner = loop.build(settings, 0, dtype=torch.float64)
        learner.join(group, parallel)
        tokens = np.random.default_rng(0).integers(0, settings.model.vocab_size, 4000)
        batches = Batches(tokens, settings.train.batch_size, settings.train.sequence_length, 0)
        records = []
        for step in range(count):
            batch = torch.from_numpy(batches.batch(step, group.rank, group.world))
            loss, norm, clipped = train_step(
                learner, batch, settings, step, micro_batch=micro_batch
            )
            records.append((group.mean(loss).item(), norm.item(), clipped.item()))
        weights = {name: whole(w.detach()) for name, w in learner.model.named_parameters()}
        found.append((records, {name: w.numpy() for name, w in weights.items()}, seen))
    muon.newton_schulz = real
    return found


class Killed(BaseException):
    """What no part of the suite may catch."""


def trainings(group, jobs):
    """Whole or interrupted trainings, in float64: (run, directory, corpora, last step).

    Where the last step is negative the first process is killed in the checkpoint behind that step,
    as soon as it has written its part.
    """
    build, step, write = loop.build, loop.train_step, parts._Writer.write_data
    loop.build = functools.partial(build, dtype=torch.float64)
    try:
        for run, path, corpora, last in jobs:

            def stopped(learner, batch, settings, number, *rest, last=last):
                if number == last:
                    raise Killed
                return step(learner, batch, settings, number, *rest)

            def killed(writer, *plans, last=last):
                written = write(writer, *plans)
                if group.rank == 0 and writer.path.name.startswith(f"checkpoint{last}-"):
                    os._exit(9)
                return written

            loop.train_step, parts._Writer.write_data = stopped, killed
            distributed._PATIENCE = 0.2 if last is not None and last < 0 else 10.0
            with contextlib.suppress(Killed):
                loop.train(run, path, corpora, group=group)
    finally:
        loop.build, loop.train_step, parts._Writer.write_data = build, step, write


def told(group, argument):
    """The step of the checkpoint where the second process is told to stop in step ``last``."""

    def stop(number, _):
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    (run, path, corpora), last = argument
    step = loop.train_step

    def signalled(learner, batch, settings, number, *rest):
        if number == last and group.rank == 1:
            signal.raise_signal(signal.SIGTERM)
        return step(learner, batch, settings, number, *rest)

    loop.train_step = signalled
    with contextlib.suppress(Stopped):
        loop.train(run, path, corpora, group=group)
    loop.train_step = step
    group.first(None)
    found = torch.load(io.BytesIO((path / "checkpoint.pt").read_bytes()[40:]), weights_only=True)
    loop.train(run, path, corpora, group=group)
    return found["step"]


@dataclasses.dataclass
class Written:
    """In place of a run: the first process needs time to write, others read what it wrote."""

    name: str
    after: object = None
    trains: bool = True
    fails: bool = False
    criteria = ()

    id = computation = label = property(lambda self: self.name)
    after_id = property(lambda self: self.after and self.after.id)
    settings = validate(Settings, {}, "test")

    def execute(self, path, corpora, report, note, group):
        if self.fails:
            raise Diverged(f"{self.name} diverged")
        if self.after is not None:
            note(f"{(path.parent / self.after_id).read_text()} before {self.name}")
        if not self.trains or group.rank == 0:
            time.sleep(1)
            path.write_text(self.name)


def sequels(group, folder):
    """A run that each process evaluates once, and one that diverges and has a sequel."""
    one, bad = Written("one"), Written("bad", fails=True)
    runs = [one, bad, Written("after bad", bad, trains=False)]
    runs += [Written(f"look {each}", one, trains=False) for each in range(2)]
    with pytest.raises(UserError, match="^bad diverged$"):
        scheduler.sweep_together([(run, folder / run.id) for run in runs], folder, group)
    return sorted(path.name for path in folder.iterdir())


def failure(group, argument):
    """One process fails while the others wait for it in a collective operation."""
    who, error = argument
    if group.rank == who:
        raise error
    group.mean(torch.ones(1))


def _child(name, argument, out):
    with distributed.join() as group:
        result = globals()[name](group, pickle.loads(Path(argument).read_bytes()))
        Path(f"{out}.{group.rank}").write_bytes(pickle.dumps(result))


@pytest.fixture
def together(tmp_path):
    """A function: (name, argument, number of processes) to (exit codes, errors, results)."""
    processes = []

    def start(name, argument, world):
        # As torchrun does it: who starts the processes keeps the store, on a free port.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        begun = len(processes)
        (tmp_path / "argument").write_bytes(pickle.dumps(argument))
        command = [
            warm.python,
            __file__,
            name,
            str(tmp_path / "argument"),
            str(tmp_path / "out"),
        ]
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(world),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        for rank in range(world):
            environment = {**os.environ, **common, **LOOPBACK}
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
                )
            )
        errors = [process.communicate(timeout=600)[1] for process in processes[begun:]]
        files = [Path(f"{tmp_path / 'out'}.{rank}") for rank in range(world)]
        results = [pickle.loads(file.read_bytes()) for file in files if file.exists()]
        return [process.returncode for process in processes[begun:]], errors, results

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def run(settings, tmp_path):
    """A function from overrides to a run whose corpus is built."""

    def make(**sections) -> TrainRun:
        config = settings(rules=RULES, **sections)
        corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
        execution = Execution(precision="float32", checkpoint_every=3, micro_batch=2)
        return TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)

    return make


def test_two_processes_make_the_steps_of_one(settings, together):
    """Both implementations, with micro-batches and clipping: equal up to float64's rounding."""
    variants, names = [], []
    for implementation in IMPLEMENTATIONS:
        for micro_batch in (0, 3):
            sections = {"batch_size": 8, "clip_norm": 0.3,
                        "multiplier_implementation": implementation}  # fmt: skip
            variants.append((settings(train=sections, rules=RULES), micro_batch))
            names.append((implementation, micro_batch))
    codes, errors, results = together("steps", variants, 2)
    assert codes == [0, 0], errors
    alone = steps(distributed.ALONE, variants)
    for name, one, first, second in zip(names, alone, *results, strict=True):
        assert first[0] == second[0], name  # the same bits in both processes
        for key in first[1]:
            assert np.array_equal(first[1][key], second[1][key]), (name, key)
            np.testing.assert_allclose(first[1][key], one[1][key], rtol=1e-7, atol=1e-10)
        assert any(clipped for *_, clipped in one[0])
        np.testing.assert_allclose(np.array(first[0]), np.array(one[0]), rtol=1e-10)


def in_parts(settings):
    """What the optimizers and both implementations have to do with a model in parts."""
    found = {}
    for name in ("adamw", "muon"):
        for implementation in IMPLEMENTATIONS:
            train = {"batch_size": 8, "clip_norm": 0.3, "multiplier_implementation": implementation}
            found[name, implementation] = settings(
                train=train, rules=RULES, optimizer={"name": name, "muon_matrices": "slices"}
            )
    # Rows of a token lie on one process, and what is normalised as a whole on several.
    kinds = {"embedding": "per_token", "projector": "per_token", "norm.mixer": "sign",
             "ssm.[Cz]": "normalized", "ssm.conv_bias": "normalized",
             "attention.*": "sgd"}  # fmt: skip
    said = [{"match": match, "optimizer": kind} for match, kind in kinds.items()]
    said.append({"match": "embedding", "rows": "seen"})
    found["steepest", "forward"] = settings(
        train={"batch_size": 8, "clip_norm": 0.3}, rules=RULES + said,
        optimizer={"name": "muon", "muon_matrices": "slices"},
    )  # fmt: skip
    return found


@pytest.mark.parametrize(("replicate", "shards"), [(1, 2), (1, 4), (2, 2)])
def test_a_model_in_parts_makes_the_steps_of_one(settings, together, replicate, shards):
    """FSDP2, and HSDP where there are copies: equal up to float64's rounding; clipping included.

    Each matrix is orthogonalised by one process, and all processes have about as much to do.
    """
    found = in_parts(settings)
    parallel = Parallel(replicate=replicate, shard=shards)
    # Micro-batches of one sequence for every second variant.
    micro_batches = [number % 2 for number in range(len(found))]
    variants = [(each, micro, 4, parallel)
                for each, micro in zip(found.values(), micro_batches, strict=True)]  # fmt: skip
    codes, errors, results = together("steps", variants, replicate * shards)
    assert set(codes) == {0}, errors
    alone = steps(distributed.ALONE, [(*variant[:3], None) for variant in variants])
    for name, one, *others in zip(found, alone, *results, strict=True):
        for other in others:
            assert other[0] == others[0][0], name
            for key in one[1]:
                assert np.array_equal(other[1][key], others[0][1][key]), (name, key)
                np.testing.assert_allclose(other[1][key], one[1][key], rtol=1e-6, atol=1e-9)
        assert any(clipped for *_, clipped in one[0])
        np.testing.assert_allclose(np.array(others[0][0]), np.array(one[0]), rtol=1e-9)
        assert sum((other[2] for other in others), collections.Counter()) == one[2], name
        if name[0] == "muon":
            cost = {shape: shape[0] * shape[1] * min(shape) for shape in one[2]}
            work = [sum(cost[shape] * n for shape, n in other[2].items()) for other in others]
            assert max(work) - min(work) <= 4 * max(cost.values())  # of four steps


def test_matrices_are_shared_out_by_their_cost():
    """The most expensive first, each to whoever has least to do; the first where all are equal."""
    shapes = [(2, 2), (8, 4), (4, 8), (100, 1), (6, 6)]  # costs 8, 128, 128, 100, 216
    assert owners(shapes, 1) == [0] * 5
    assert owners(shapes, 2) == [1, 1, 1, 0, 0]
    assert owners(shapes, 3) == [2, 1, 2, 1, 0]
    assert owners([(3, 3)] * 4, 4) == [0, 1, 2, 3] and owners([], 2) == []


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_model_in_parts_resumed_by_four_two_one_and_two(run, tmp_path, together, optimizer):
    """Four are killed between the parts of a checkpoint, and the last whole one counts.

    The tables and the tensors that are kept are those of one process. Snapshots fall on steps that
    no probe measures.
    """
    corpora = tmp_path / "data"
    job = run(train={"batch_size": 8, "snapshots": 5}, optimizer={"name": optimizer})
    assert set(snapshot_steps(job.settings.train)) - set(range(0, 13, job.settings.probes.every))
    trainings(distributed.ALONE, [(job, tmp_path / "whole", corpora, None)])
    broken = tmp_path / "broken"
    for processes, last in ((4, -6), (2, 7), (1, 10), (2, None)):
        execution = job.execution.model_copy(
            update={"parallel": Parallel(shard=processes), "recompute": processes == 4}
        )
        shared = dataclasses.replace(job, execution=execution)
        if processes == 1:
            [part] = broken.glob("checkpoint-6-*/__1_0.distcp")  # what the second had written
            content = part.read_bytes()
            part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(UserError, match="__1_0.distcp is damaged: .*; remove .*nt.pt and"):
                trainings(distributed.ALONE, [(job, broken, corpora, last)])
            part.write_bytes(content)
            trainings(distributed.ALONE, [(job, broken, corpora, last)])
            assert not list(broken.glob("checkpoint-*"))
            continue
        codes, errors, _ = together("trainings", [(shared, broken, corpora, last)], processes)
        folders = {path.name.split("-")[1]: path for path in broken.glob("checkpoint-*")}
        if processes == 4:
            assert codes[0] == 9 and 0 not in codes, errors
            assert set(folders) == {"3", "6"}
            assert [(path / ".metadata").exists() for _, path in sorted(folders.items())] == [
                True,
                False,
            ]
        else:
            assert set(codes) == {0}, errors
            assert set(folders) == ({"6"} if last else set())
    assert_equal_runs(tmp_path / "whole", broken)
    resumed = read_json(broken / "run.json")["resumed"]
    assert [(each["step"], each["processes"]) for each in resumed] == [(3, 2), (6, 1), (9, 2)]


@pytest.mark.parametrize("parallel", [None, Parallel(shard=2)])
def test_one_of_several_is_told_to_stop(run, tmp_path, together, parallel):
    """All stop behind the same step, with a checkpoint, from which they go on.

    Of a model in parts a validation leaves parameters gathered, just before a checkpoint.
    """
    job, corpora = run(train={"batch_size": 8, "validation_every": 3}), tmp_path / "data"
    execution = job.execution.model_copy(update={"parallel": parallel})
    shared = dataclasses.replace(job, execution=execution)
    trainings(distributed.ALONE, [(job, tmp_path / "whole", corpora, None)])
    codes, errors, found = together("told", ((shared, tmp_path / "two", corpora), 4), 2)
    assert codes == [0, 0], errors
    assert found == [5, 5]
    frames = [torch.load(tmp_path / name / "weights.pt", weights_only=True)
              for name in ("whole", "two")]  # fmt: skip
    # As whole tensors: where a gradient is nearly 0, Adam makes much of what rounding left of it.
    for key, value in frames[0].items():
        other = frames[1][key].double()
        assert (value.double() - other).norm() <= 1e-3 * other.norm(), key


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_memory_is_planned_as_it_is_used(run, optimizer):
    """Weights, gradients and the optimizer's state of one process, to the byte."""
    job = run(optimizer={"name": optimizer})
    learner = loop.build(job.settings, 0)
    tokens = torch.zeros((4, 17), dtype=torch.int64)
    train_step(learner, tokens, job.settings, 0)
    used = sum(p.numel() for p in learner.model.parameters())
    for part in learner.optimizer.parts.values():
        for leaf, state in part.state.items():
            used += leaf.numel() + sum(v.numel() for v in state.values() if v.dim())
    planned = of_process(job)
    assert planned.state == 4 * used
    sizes = (Parallel(shard=2), Parallel(shard=4), Parallel(replicate=2, shard=4))
    needs = [
        of_process(dataclasses.replace(
            job, execution=job.execution.model_copy(update={"parallel": parallel})))
        for parallel in sizes
    ]  # fmt: skip
    assert planned.state > needs[0].state > needs[1].state == needs[2].state
    assert needs[1].within >= needs[2].within and needs[1].entering >= needs[2].entering
    # The first has a copy besides: weights, and the gradients that were there.
    copy = sum(p.numel() for p in learner.model.parameters())
    own = {id(each) for _, _, each in learner.multipliers.named()}
    copy += sum(p.numel() for p in learner.model.parameters()
                if p.grad is not None and id(p) not in own)  # fmt: skip
    assert planned.copy == 0 and {need.copy for need in needs} == {4 * copy}
    once = dataclasses.replace(job, execution=job.execution.model_copy(update={"micro_batch": 0}))
    alone, of_four = of_process(once), of_process(once, 4)
    assert of_four.state == alone.state and of_four.entering < alone.entering


def test_memory_of_processes_that_train_one_run(run, monkeypatch):
    """Those of this machine count, whatever number of workers its cores would make."""
    job = run()
    need = of_process(job, 4).least
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "memory", lambda: 3 * need)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert machine.check_memory_of_one([job], 4) == 3 * need
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(UserError, match="make model or train.batch_size smaller"):
        machine.check_memory_of_one([job], 4)


def test_processes_that_do_not_make_up_the_parts():
    with pytest.raises(UserError, match="asks for 2 × 4 processes, and there are 2; start as many"):
        Parallel(replicate=2, shard=4).check(2)


def test_layers_in_parts_are_not_compiled():
    said = {"compile": "always", "parallel": {"shard": 2}}
    with pytest.raises(UserError, match="compile = always: layers in parts are not"):
        validate(Execution, said, "the test")
    assert validate(Execution, {**said, "compile": "auto"}, "the test").parallel.shard == 2


def test_resumed_by_more_or_fewer_processes(run, tmp_path, together):
    """Interrupted at step 7 and resumed from step 6: as one process that never was."""
    corpora = tmp_path / "data"
    jobs = [run(train={"multiplier_implementation": name}) for name in IMPLEMENTATIONS]
    plan = []
    for name, job in zip(IMPLEMENTATIONS, jobs, strict=True):
        folder = tmp_path / name
        trainings(distributed.ALONE, [(job, folder / "whole", corpora, None),
                                      (job, folder / "1 to 2", corpora, 7)])  # fmt: skip
        assert (folder / "1 to 2" / "checkpoint.pt").exists()
        plan += [(job, folder / "1 to 2", corpora, None), (job, folder / "2 to 1", corpora, 7)]
        plan += [(job, folder / "2", corpora, None)]
    codes, errors, _ = together("trainings", plan, 2)
    assert codes == [0, 0], errors
    for name, job in zip(IMPLEMENTATIONS, jobs, strict=True):
        folder = tmp_path / name
        assert not (folder / "2 to 1" / "done.json").exists()
        trainings(distributed.ALONE, [(job, folder / "2 to 1", corpora, None)])
        for other in ("1 to 2", "2 to 1", "2"):
            assert_equal_runs(folder / "whole", folder / other)
        assert read_json(folder / "1 to 2" / "run.json")["environment"]["processes"] == 1
        assert read_json(folder / "1 to 2" / "done.json")["processes"] == 2
        assert "processes" not in read_json(folder / "2" / "run.json")["execution"]


def assert_equal_runs(whole, other, exact=False):
    """The same files, and the same numbers in them up to rounding."""
    assert {p.name for p in whole.iterdir()} == {p.name for p in other.iterdir()}
    for file in whole.glob("weights*.pt"):
        a, b = (torch.load(path / file.name, weights_only=True) for path in (whole, other))
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=0 if exact else 1e-7,
                                       atol=0 if exact else 1e-10)  # fmt: skip
    for name in ("scalars", "vectors"):
        frames = [pd.read_parquet(path / f"{name}.parquet") for path in (whole, other)]
        # Losses are logged in float32.
        pd.testing.assert_frame_equal(*frames, check_exact=exact, rtol=1e-6, atol=1e-9)


def test_three_processes_resume_with_the_same_bits(run, tmp_path, together):
    """Sums of three depend on their order, which is settled before the first step.

    Also of a model in parts, whose matrices are orthogonalised by one process each.
    """
    corpora, plan, pairs = tmp_path / "data", [], []
    for parallel, optimizer in ((None, "adamw"), (Parallel(shard=3), "muon")):
        job = run(train={"batch_size": 6}, optimizer={"name": optimizer})
        execution = job.execution.model_copy(update={"parallel": parallel})
        job = dataclasses.replace(job, execution=execution)
        whole, broken = (tmp_path / f"{name} {optimizer}" for name in ("whole", "broken"))
        plan += [
            (job, whole, corpora, None),
            (job, broken, corpora, 7),
            (job, broken, corpora, None),
        ]
        pairs.append((whole, broken))
    codes, errors, _ = together("trainings", plan, 3)
    assert codes == [0, 0, 0], errors
    for whole, broken in pairs:
        assert_equal_runs(whole, broken, exact=True)
        assert read_json(broken / "run.json")["resumed"][0]["step"] == 6


def test_what_comes_after_a_run_waits_until_all_have_ended_it(together, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    codes, errors, found = together("sequels", folder, 3)
    assert codes == [0, 0, 0], errors
    assert found == 3 * [["look 0", "look 1", "one"]]


@pytest.mark.parametrize("who", [0, 1])
def test_bad_input_in_any_process_ends_all(together, who):
    codes, errors, _ = together("failure", (who, UserError("no such thing; try another")), 2)
    assert codes == [2, 2], errors
    assert errors == ["error: no such thing; try another\n", ""]


def test_a_crash_ends_all_and_shows_one_traceback(together):
    codes, errors, _ = together("failure", (1, ZeroDivisionError("on purpose")), 2)
    assert codes == [1, 1], errors
    assert errors[0] == "" and errors[1].count("Traceback") == 1 and "on purpose" in errors[1]


def torchrun(*arguments, processes=2):
    """The command line as its user calls it; returns (exit code, output, errors)."""
    command = [warm.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    # By address: a machine's own name may not resolve.
    command += [str(processes), "--local-addr", "127.0.0.1"]
    command += ["experiments/projector/run.py", "--scale", "smoke", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600,
                          env={**os.environ, **LOOPBACK})  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_command_line_under_torchrun(tmp_path):
    """Complete directories, as if one process had trained; then nothing is left to do."""
    from analysis.tables.results import load

    call = ("--results", tmp_path / "two", "--only", "VPN S=1 *", "--set", "train.steps=20")
    code, output, errors = torchrun(*call)
    assert code == 0, errors
    assert "projector at smoke: 1 to train, 0 finished" in output.splitlines()
    assert errors.count("1/1 runs") == 1
    code, output, errors = torchrun(*call)
    assert code == 0 and output.splitlines() == ["projector at smoke: 0 to train, 1 finished"]
    alone = [warm.python, "experiments/projector/run.py", "--scale", "smoke", "--results",
             tmp_path / "one", *call[2:]]  # fmt: skip
    subprocess.run(alone, cwd=ROOT, check=True, capture_output=True)
    frames = [load("projector", "smoke", "runs", tmp_path / name, "all") for name in ("one", "two")]
    for frame in frames:
        frame.drop(columns="run", inplace=True)
    first, second = frames
    keys = [c for c in first.columns if c != "value"]
    pd.testing.assert_frame_equal(first[keys], second[keys])
    [one], [two] = (list(tmp_path.glob(f"{name}/runs/projector/*/")) for name in ("one", "two"))
    assert one.name == two.name
    assert {p.name for p in one.iterdir()} == {p.name for p in two.iterdir()}


def test_a_batch_that_cannot_be_split(tmp_path):
    """torchrun adds its own report, of processes that ended with code 2."""
    code, output, errors = torchrun("--results", tmp_path, processes=3)
    assert code != 0 and not output
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert lines == ["error: a batch of 8 sequences (train.batch_size, or a stage of its ramp) "
                     "cannot be split over 3 processes; make it a multiple of 3"]  # fmt: skip
    assert "exitcode  : 2" in errors  # it may stop the others before they end by themselves
    assert not list(tmp_path.iterdir())


def test_one_device_cannot_serve_two_processes():
    class Two(distributed.Group):
        world = 2

    with pytest.raises(UserError, match="one device for 2 processes"):
        device.device_of("cuda:0", Two())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU can be used")
@pytest.mark.parametrize("named", ["0", "0,1", "GPU-8932f937"])
def test_a_gpu_that_cannot_be_used_is_told(named, monkeypatch):
    """A job that has one does not train on the CPU instead."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(UserError, match="names a GPU that torch cannot use here; .*device=cpu"):
        device.device_of("auto")
    assert device.device_of("cpu").type == "cpu"
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert device.device_of("auto").type == "cpu"


def test_environment_that_is_incomplete(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(UserError, match="MASTER_ADDR.*start them by torchrun"),
        distributed.join(),
    ):
        pass


if __name__ == "__main__":
    _child(*sys.argv[1:])
