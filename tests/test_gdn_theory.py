"""What is measured of a Gated Delta Network as it begins: by hand, and as runs of an experiment."""

import dataclasses
import json
import math

import pytest
import torch

from lrm import data
from lrm.errors import UserError
from lrm.noise.gated_delta import gates
from lrm.noise.gated_delta.network import Network, rms
from lrm.noise.gated_delta.read import course, distance, mean_square
from lrm.noise.gated_delta.sizes import sizes
from lrm.plan.experiment import load

HEAD = """title: a test
run: lrm.plan.run:TheoryRun
use: [scale/smoke, gdn/smoke, optimizer/sgd]
optimizer: {lr: 0.3, momentum: 0.0, nesterov: false, weight_decay: 0.0}
train: {steps: 2, batch_size: 2, sequence_length: 8, clip_norm: 0.0}
schedule: {warmup_steps: 0, decay_steps: 0}
"""
SIZES = "theory: {simulate: sizes}"
GATES = "theory: {simulate: gates, draws: 2, sequences: 4}"
READ = "theory: {simulate: read, factor: 3.0, eps: 1.0e-6}"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture
def planned(tmp_path, corpora):
    """The runs of a configuration, which know their corpus, and the corpus."""
    path = tmp_path / "some" / "config.yaml"
    path.parent.mkdir()

    def make(more, *seeds, head=HEAD):
        path.write_text(head + more)
        runs = load(path).runs("smoke", list(seeds) or [0])
        settings = runs[0].settings
        corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
        return [dataclasses.replace(run, corpus=corpus.hash) for run in runs], corpus

    return make


def batches(run, corpus):
    return data.batches_of(run.settings, corpus, run.seed)


def begin(planned, more=SIZES, draw=0):
    [run], corpus = planned(more)
    return Network.begin(run, batches(run, corpus), draw, torch.float64)


def test_gradients_of_activations_are_those_of_the_parameters_behind_them(planned):
    """G = Σ δ_s u_sᵀ of both gates, and of the output projection."""
    network = begin(planned)
    _, found = network.gradients(0)
    named = {plan.key: plan.address.parameter for plan in network.run.plans}
    for key, u in (("gdn.alpha@1", "norm.mixer@1"), ("gdn.beta@0", "norm.mixer@0")):
        delta, inputs = found[key].grad.flatten(0, 1), found[u].detach().flatten(0, 1)
        expected = network.model.get_parameter(named[key]).grad
        torch.testing.assert_close(delta.mT @ inputs, expected)
    gain = network.model.get_parameter(named["norm.gdn@0"])
    read = found["norm.gdn@0"]
    torch.testing.assert_close((read.grad * read.detach()).sum((0, 1, 2)), gain.grad * gain)
    bias = network.model.get_parameter(named["gdn.dt_bias@1"]).grad
    torch.testing.assert_close(found["gdn.alpha@1"].grad.sum((0, 1)), bias)


def test_a_step_changes_gates_by_all_tokens(planned):
    """Δz_t = −η Σ_s δ_s ⟨u_s, u_t⟩, by loops over tokens, and its parts."""
    network = begin(planned, GATES)
    before = gates.start(network)
    _, found = network.gradients(0)
    key, lr = "gdn.beta@1", 0.3
    delta = found[key].grad.flatten(0, 1)
    u = found["norm.mixer@1"].detach().flatten(0, 1)
    sources = gates.sources(found, {key: lr})
    network.move(0)
    changed = gates.change(network, before, found)
    moved = -lr * torch.stack([sum(d * (x @ y) for d, x in zip(delta, u, strict=True)) for y in u])
    own = lr * torch.stack([d * (x @ x) for d, x in zip(delta, u, strict=True)])
    assert changed["change", key] == pytest.approx(rms(moved), rel=1e-9)
    assert sources["own", key] == pytest.approx(rms(own), rel=1e-9)
    mean = delta.mean(0)
    common = lr * torch.stack([mean * sum(x @ y for x in u) for y in u])
    assert sources["common", key] == pytest.approx(rms(common), rel=1e-9)
    assert sources["apart", key] == pytest.approx(rms(moved + common), rel=1e-9)
    a_log = network.model.get_parameter("model.layers.0.linear_attn.A_log").detach()
    wanted = rms(a_log - before["gdn.a_log@0"])
    assert changed["change", "gdn.a_log@0"] == pytest.approx(wanted) and wanted > 0


def test_heads_are_sorted_by_what_they_forget(planned):
    """By 1 − ᾱ², with ᾱ = exp(−e^a_log softplus(dt_bias)): 0.02, 0.19 and 0.86 here."""
    network = begin(planned)
    mixer = network.mixers[0]
    with torch.no_grad():
        mixer.A_log.copy_(torch.tensor([0.01, 0.1, 1.0]).log())
        mixer.dt_bias.fill_(math.log(math.e - 1))  # softplus 1
    _, found = network.gradients(0)
    values = sizes(network, found)
    for head, memory in enumerate(("long", "middle", "short")):
        state, read = found["gdn.state@0"][:, head], found["gdn.read@0"][:, :, head]
        assert values["size", f"gdn.state.{memory}@0"] == pytest.approx(rms(state))
        assert values["size", f"gdn.read.{memory}@0"] == pytest.approx(rms(read))
    stream = network.model.model.embed_tokens.weight[network.batch(0)[:, :-1]]
    assert values["size", "block.in@0"] == pytest.approx(rms(stream))
    assert values["gradient", "block.in@1"] == pytest.approx(rms(found["residual@0"].grad))


def test_sizes_are_those_in_front_of_the_factor_on_the_read(planned):
    """With epsilon 0 a factor changes none of them."""
    found = []
    for factor in (1.0, 3.0):
        network = begin(planned)
        for mixer in network.mixers:
            mixer.factors["gdn.read"], mixer.o_norm.eps = factor, 0.0
        found.append(sizes(network, network.gradients(0)[1]))
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        assert found[1][key] == pytest.approx(value, rel=1e-9), key


def test_a_factor_acts_through_epsilon_alone(planned):
    eps = mean_square(begin(planned, READ)) / 10
    plain = course(begin(planned, READ), 1.0, eps)
    for factor, same_as, most in ((3.0, 9 * eps, 1e-10), (1.0, eps, 0.0)):
        assert max(distance(course(begin(planned, READ), factor, same_as), plain).values()) <= most
    other = distance(course(begin(planned, READ), 3.0, eps), plain)
    assert other["first_gradient"] > 1e-3 and other["gradient"] >= other["first_gradient"]
    without = [course(begin(planned, READ), factor, 0.0) for factor in (1.0, 3.0)]
    assert max(distance(*without).values()) < 1e-10


def test_scalars_of_heads_begin_alike_at_all_widths(planned):
    more = f"width: {{hidden_size: $width}}\ngrid: {{width: [32, 64]}}\n{SIZES}"
    runs, corpus = planned(more)
    narrow, wide = (Network.begin(run, batches(run, corpus), 3) for run in runs)
    for one, other in zip(narrow.mixers, wide.mixers, strict=True):
        assert torch.equal(one.A_log, other.A_log) and torch.equal(one.dt_bias, other.dt_bias)
    assert torch.equal(narrow.batch(1), wide.batch(1))
    other = Network.begin(runs[0], batches(runs[0], corpus), 4)
    assert not torch.equal(other.mixers[0].A_log, narrow.mixers[0].A_log)
    assert not torch.equal(other.batch(1), narrow.batch(1))
    assert torch.equal(other.batch(0), narrow.batch(2))  # two steps a draw


@pytest.mark.parametrize("theory", [SIZES, GATES, READ])
def test_a_run_has_its_tables_and_the_same_bits_again(planned, tmp_path, corpora, theory):
    (first, other), corpus = planned(theory, 0, 1)
    assert first.id != other.id and first.estimate().seconds > 0
    for run, folder in ((first, "a"), (first, "b"), (other, "c")):
        run.execute(tmp_path / folder, corpora)
    tables = [(tmp_path / name / "scalars.parquet").read_bytes() for name in "abc"]
    assert tables[0] == tables[1] != tables[2]
    said = json.loads((tmp_path / "a" / "run.json").read_text())
    assert said["kind"] == "theory" and said["corpus"]["hash"] == corpus.hash
    assert said["execution"]["precision"] == ("float64" if theory == READ else "float32")


@pytest.mark.parametrize("rule", ["weight_decay: 0.1", "forward: 2.0", "optimizer: adamw",
                                  "optimizer: sgd, momentum: 0.9"])  # fmt: skip
def test_sources_are_those_of_plain_sgd(planned, tmp_path, corpora, rule):
    [run], _ = planned(f"{GATES}\nrules: [{{match: gdn.alpha, {rule}}}]")
    with pytest.raises(UserError, match="gates compares with plain SGD"):
        run.execute(tmp_path / "run", corpora)


def test_a_finished_run_asks_for_no_corpus(planned, tmp_path, corpora):
    [run], _ = planned(SIZES)
    run.execute(tmp_path / "run", corpora)
    dataclasses.replace(run, corpus="another").execute(tmp_path / "run", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_order_of_the_data_counts(planned):
    """It is in the identity of a run."""
    [run], corpus = planned(SIZES)
    [other], _ = planned(SIZES, head=HEAD.replace("train: {", "train: {data_order: 1, "))
    assert run.id != other.id
    assert (batches(run, corpus).batch(0) != batches(other, corpus).batch(0)).any()


@pytest.mark.parametrize(
    ("more", "without", "says"),
    [
        (SIZES, ", gdn/smoke", "simulate = sizes is about a model with mixer gdn"),
        (SIZES, "run: lrm.plan.run:TheoryRun\n", "theory is for runs without training"),
        ("theory: {simulate: size}", "", "theory"),
        ("theory: {simulate: gates, sequences: 0}", "", "theory"),
        ("theory: {simulate: read, eps: -1.0}", "", "theory"),
    ],
)
def test_bad_input_is_one_line(planned, more, without, says):
    with pytest.raises(UserError, match=says) as caught:
        planned(more, head=HEAD.replace(without, ""))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", ["weight: frozen", "multiplier: {kind: scalar}"])
def test_every_tensor_learns_by_itself(planned, rule):
    with pytest.raises(UserError, match="take the rule for gdn.alpha out"):
        begin(planned, f"{SIZES}\nrules: [{{match: gdn.alpha, {rule}}}]")
