"""Small random models of many kinds, and what each of their parameters is.

``roles`` of a case names every matrix, embedding, head and convolution by patterns; what none of
them matches is a vector. ``make test-models`` trains all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

import lrm

PAGE = Path(lrm.__file__).parent / "multipliers" / "MODELS.md"
VOCABULARY = 96


@dataclass(frozen=True)
class Case:
    """A model, a batch that gives it a loss, and the roles of its parameters by patterns."""

    build: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Any]]
    roles: Mapping[str, str]
    placement: str = "all"
    # Patterns of matrices whose rows, the outputs, lie along the last dimension.
    transposed: tuple[str, ...] = ()


def _random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _tokens(vocabulary: int = VOCABULARY, length: int = 12) -> torch.Tensor:
    return torch.randint(3, vocabulary, (2, length), generator=_random())


def _language() -> dict[str, Any]:
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens}


def _pictures() -> dict[str, Any]:
    return {
        "pixel_values": torch.randn(2, 3, 32, 32, generator=_random()),
        "labels": torch.tensor([0, 1]),
    }


def _hf(
    name: str, batch, roles, *, config: str | None = None, placement="all", transposed=(), **sizes
):
    """A class of transformers by its name, at these sizes of its configuration."""

    def build() -> nn.Module:
        settings = getattr(transformers, config or name.partition("For")[0] + "Config")
        return getattr(transformers, name)(settings(**sizes))

    return Case(build, batch, roles, placement, transposed)


NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, **NO_TOKENS}
HEADS = {**SIZES, "num_attention_heads": 4, "use_cache": False}
GROUPED = {**HEADS, "num_key_value_heads": 2}
DENSE = {**GROUPED, "intermediate_size": 48}
WITH_HEAD_DIM = {**DENSE, "head_dim": 8}
FOUR_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SEQUENCES = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
             "decoder_ffn_dim": 48}  # fmt: skip
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32,
       "bos_token_id": None, "eos_token_id": None, "use_cache": False}  # fmt: skip
BERT = {**HEADS, "intermediate_size": 48, "max_position_embeddings": 32, "pad_token_id": 0}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48, "image_size": 32, "patch_size": 8}  # fmt: skip
PROJECTIONS = {"*_proj.weight": "matrix"}
TIED = {**PROJECTIONS, "*embed_tokens.weight": "tied"}
LLAMA = {**PROJECTIONS, "model.embed_tokens.weight": "embedding", "lm_head.weight": "head"}
ROUTED = {**LLAMA, "*.gate.weight": "matrix", "*.experts.*_proj": "matrix"}
EXPERTS = {**LLAMA, "*.router.weight": "matrix", "*.experts.*_proj": "matrix"}
SHARED = {**ROUTED, "*.shared_expert_gate.weight": "matrix"}
DENSE_4H = {"*.query_key_value.weight": "matrix", "*.dense*.weight": "matrix"}
FC = {**PROJECTIONS, "*.fc[12].weight": "matrix"}
MAMBA = {**PROJECTIONS, "backbone.embeddings.weight": "tied"}
ATTENTION = {"*.self.query.weight": "matrix", "*.self.key.weight": "matrix",
             "*.self.value.weight": "matrix", "*dense.weight": "matrix",
             "*.word_embeddings.weight": "tied",
             "*.token_type_embeddings.weight": "embedding"}  # fmt: skip
PATCHES = {**FC, "classifier.weight": "matrix", "*.projection.weight": "convolution"}
TORCH = {
    "*.in_proj_weight": "matrix",
    "*.out_proj.weight": "matrix",
    "*.linear[12].weight": "matrix",
}


def _causal(name: str, roles: Mapping[str, str], **sizes):
    return _hf(f"{name}ForCausalLM", _language, roles, **sizes)


class _Loss(nn.Module):
    """Answers as transformers' models do: with a loss and logits."""

    def logits(self, *inputs: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> SimpleNamespace:
        found = self.logits(*inputs.values())
        return SimpleNamespace(
            logits=found, loss=F.cross_entropy(found.flatten(0, -2), labels.flatten())
        )


class Recurrent(_Loss):
    def __init__(self, kind: type[nn.RNNBase], **options):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 24)
        self.body = kind(24, 32, num_layers=2, batch_first=True, **options)
        width = (2 if self.body.bidirectional else 1) * (self.body.proj_size or 32)
        self.head = nn.Linear(width, VOCABULARY)

    def logits(self, tokens):
        return self.head(self.body(self.embed(tokens))[0])


class Pictures(_Loss):
    """A stack of layers that ends in two classes."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def logits(self, pixels):
        return self.layers(pixels)


class Residual(nn.Module):
    def __init__(self, channels: int, out: int):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(channels, out, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))

    def forward(self, x):
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.shortcut(x)).relu()


class Encoder(_Loss):
    """torch's own transformer layers, which have a fused path in evaluation."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, VOCABULARY)

    def logits(self, tokens):
        return self.head(self.body(self.embed(tokens)))


class Translator(_Loss):
    """nn.Transformer, an encoder and a decoder; one embedding for both and the head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.body = nn.Transformer(32, 4, 1, 1, 48, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def logits(self, source, target):
        return self.head(self.body(self.embed(source), self.embed(target)))


class Experts(_Loss):
    """A mixture of experts by hand: a stack of matrices in one parameter, and a router."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.router = nn.Linear(32, 4, bias=False)
        self.up_experts = nn.Parameter(torch.randn(4, 48, 32) / 6)
        self.down_experts = nn.Parameter(torch.randn(4, 32, 48) / 7)
        self.experts_bias = nn.Parameter(torch.zeros(4, 48))
        self.head = nn.Linear(32, VOCABULARY)

    def logits(self, tokens):
        x = self.embed(tokens)
        inner = torch.einsum("btd,efd->btef", x, self.up_experts) + self.experts_bias
        out = torch.einsum("btef,edf->bted", inner.relu(), self.down_experts)
        return self.head(x + torch.einsum("bted,bte->btd", out, self.router(x).softmax(-1)))


def _squares() -> dict[str, Any]:
    pixels = torch.randn(4, 3, 16, 16, generator=_random())
    return {"labels": torch.tensor([0, 1, 0, 1]), "pixels": pixels}


def _pair() -> dict[str, Any]:
    tokens = _tokens()
    return {"labels": tokens, "source": tokens.flip(1), "target": tokens}


def _labelled() -> dict[str, Any]:
    return {"labels": _tokens(), "tokens": _tokens()}


def _sound() -> dict[str, Any]:
    sound = torch.randn(2, 400, generator=_random())
    return {"input_values": sound, "labels": _tokens(32, 4)}


def _mel() -> dict[str, Any]:
    mel = torch.randn(2, 80, 32, generator=_random())
    return {"input_features": mel, "labels": _tokens(length=6)}


def _both() -> dict[str, Any]:
    return {
        "input_ids": _tokens(),
        "pixel_values": _pictures()["pixel_values"],
        "return_loss": True,
    }


RNN = {"embed.weight": "embedding", "body.weight_*": "matrix", "head.weight": "head"}
CASES: dict[str, Case] = {
    # torch's own modules
    "LSTM with projections": Case(lambda: Recurrent(nn.LSTM, proj_size=16), _labelled, RNN),
    "GRU in both directions": Case(lambda: Recurrent(nn.GRU, bidirectional=True), _labelled, RNN),
    "RNN": Case(lambda: Recurrent(nn.RNN), _labelled, RNN),
    "TransformerEncoder": Case(
        Encoder, _labelled, {**TORCH, "embed.weight": "embedding", "head.weight": "head"}),
    "Transformer": Case(Translator, _pair, {**TORCH, "embed.weight": "tied"}),
    "stacked experts": Case(
        Experts, _labelled,
        {"router.weight": "matrix", "*_experts": "matrix", "embed.weight": "embedding",
         "head.weight": "head"}),
    "MLP": Case(
        lambda: Pictures(nn.Flatten(), nn.Linear(768, 32), nn.GELU(), nn.LayerNorm(32),
                         nn.Linear(32, 2)),
        _squares, {"layers.[14].weight": "matrix"}),
    "ConvNet": Case(
        lambda: Pictures(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
                         nn.ConvTranspose2d(8, 6, 2), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(216, 2)),
        _squares, {"layers.[03].weight": "convolution", "layers.6.weight": "matrix"},
        "convolutions"),
    "ResNet by hand": Case(
        lambda: Pictures(Residual(3, 8), Residual(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(16, 2)),
        _squares,
        {"*.first.weight": "convolution", "*.second.weight": "convolution",
         "*.shortcut.weight": "convolution", "layers.4.weight": "matrix"}, "convolutions"),
    # decoders
    "Llama": _causal("Llama", LLAMA, **DENSE),
    "Mistral": _causal("Mistral", LLAMA, **DENSE),
    "Qwen2": _causal("Qwen2", LLAMA, **DENSE),
    "Qwen3": _causal("Qwen3", TIED, **WITH_HEAD_DIM, tie_word_embeddings=True),
    "Gemma": _causal("Gemma", TIED, **WITH_HEAD_DIM),
    "Gemma 2": _causal("Gemma2", TIED, **WITH_HEAD_DIM),
    "Gemma 3": _causal("Gemma3", TIED, config="Gemma3TextConfig", **WITH_HEAD_DIM),
    "GPT-2": _hf("GPT2LMHeadModel", _language,
                 {"*.c_*.weight": "matrix", "transformer.wte.weight": "tied"},
                 config="GPT2Config", transposed=("*.c_*",), **GPT),
    "GPT-J": _causal("GPTJ", {**PROJECTIONS, "*.fc_*.weight": "matrix",
                              "transformer.wte.weight": "embedding", "lm_head.weight": "head"},
                     **GPT, rotary_dim=4),
    "GPT-NeoX": _causal("GPTNeoX", {**DENSE_4H, "*.embed_in.weight": "embedding",
                                    "lm_head.weight": "head"}, **HEADS, intermediate_size=48),
    "GPTBigCode": _causal("GPTBigCode", {"*.c_*.weight": "matrix",
                                         "transformer.wte.weight": "tied"}, **GPT),
    "OPT": _causal("OPT", {**TIED, **FC, "*.project_*.weight": "matrix"},
                   **{**HEADS, "pad_token_id": 1}, ffn_dim=48, word_embed_proj_dim=16,
                   max_position_embeddings=32),
    "BLOOM": _causal("Bloom", {**DENSE_4H, "*.word_embeddings.weight": "tied"},
                     vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    "Falcon": _causal("Falcon", {**DENSE_4H, "*.word_embeddings.weight": "tied"}, **HEADS),
    "Phi": _causal("Phi", {**LLAMA, **FC, "*.dense.weight": "matrix"}, **DENSE),
    "Phi-3": _causal("Phi3", LLAMA, **DENSE),
    "StableLM": _causal("StableLm", LLAMA, **DENSE),
    "OLMo-2": _causal("Olmo2", LLAMA, **DENSE),
    "Cohere": _causal("Cohere", TIED, **DENSE),
    "Starcoder2": _causal("Starcoder2", {**TIED, "*.c_*.weight": "matrix"}, **DENSE),
    "Granite": _causal("Granite", LLAMA, **DENSE),
    "GLM-4": _causal("Glm4", LLAMA, **WITH_HEAD_DIM),
    "MPT": _causal("Mpt", {**PROJECTIONS, "*.Wqkv.weight": "matrix",
                           "transformer.wte.weight": "tied"},
                   vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2, expansion_ratio=2,
                   max_seq_len=32, use_cache=False),
    "SmolLM3": _causal("SmolLM3", TIED, **DENSE),
    # mixtures of experts
    "Mixtral": _causal("Mixtral", ROUTED, **DENSE, num_local_experts=4, num_experts_per_tok=2),
    "Qwen2-MoE": _causal("Qwen2Moe", SHARED, **DENSE, **FOUR_EXPERTS, decoder_sparse_step=1,
                         shared_expert_intermediate_size=24),
    "Qwen3-MoE": _causal("Qwen3Moe", ROUTED, **WITH_HEAD_DIM, **FOUR_EXPERTS,
                         decoder_sparse_step=1),
    "GPT-OSS": _causal("GptOss", EXPERTS, transposed=("*.experts.*",), **WITH_HEAD_DIM,
                       num_local_experts=4, num_experts_per_tok=2),
    "DeepSeek-V3": _causal(
        "DeepseekV3", {**ROUTED, "*.kv_a_proj_with_mqa.weight": "matrix"},
        **{**DENSE, "num_key_value_heads": 4}, moe_intermediate_size=24, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=8,
        q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8),
    "Llama 4": _causal("Llama4", EXPERTS, config="Llama4TextConfig", transposed=("*.experts.*",),
                       **WITH_HEAD_DIM, intermediate_size_mlp=48, num_local_experts=4,
                       interleave_moe_layer_step=1),
    "Aria": _causal("AriaText", EXPERTS, config="AriaTextConfig", transposed=("*.experts.*",),
                    **DENSE, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
    "DBRX": _causal(
        "Dbrx", {**PROJECTIONS, "*.Wqkv.weight": "matrix", "*.router.layer.weight": "matrix",
                 "*.mlp.[vw][12]": "matrix", "transformer.wte.weight": "embedding",
                 "lm_head.weight": "head"},
        transposed=("*.w2",), vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2,
        max_seq_len=32, attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        use_cache=False),
    # recurrences and hybrids
    "Mamba": _causal("Mamba", MAMBA, **SIZES, state_size=4, use_cache=False),
    "Mamba-2": _causal("Mamba2", {**PROJECTIONS, "backbone.embeddings.weight": "embedding",
                                  "lm_head.weight": "head"},
                       **SIZES, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8,
                       use_cache=False),
    "FalconMamba": _causal("FalconMamba", MAMBA, **SIZES, state_size=4, use_cache=False),
    "Falcon-H1": _causal("FalconH1", LLAMA, **WITH_HEAD_DIM, mamba_d_ssm=32, mamba_n_heads=4,
                         mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8),
    "Bamba": _causal("Bamba", LLAMA, **DENSE, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8,
                     mamba_chunk_size=8, attn_layer_indices=[1]),
    "Qwen3-Next": _causal(
        "Qwen3Next", {**SHARED, "*.in_proj_*.weight": "matrix"}, **WITH_HEAD_DIM, **FOUR_EXPERTS,
        shared_expert_intermediate_size=24, linear_key_head_dim=8, linear_value_head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=4,
        layer_types=["linear_attention", "full_attention"]),
    "RecurrentGemma": _causal(
        "RecurrentGemma", {**TIED, "*.linear_?*.weight": "matrix", "*_gate_weight": "matrix"},
        transposed=("*_gate_weight",), **WITH_HEAD_DIM, lru_width=32,
        block_types=("recurrent", "attention")),
    "RWKV": _causal(
        "Rwkv", {"*.key.weight": "matrix", "*.value.weight": "matrix",
                 "*.receptance.weight": "matrix", "*.output.weight": "matrix",
                 "rwkv.embeddings.weight": "embedding", "head.weight": "head"},
        **SIZES, attention_hidden_size=32, use_cache=False),
    "Zamba": _causal("Zamba", {**TIED, "*.linear.weight": "matrix", "*_proj_weight": "matrix"},
                     **DENSE, mamba_d_state=4, mamba_dt_rank=4, n_mamba_heads=2,
                     layers_block_type=["hybrid", "hybrid"]),
    # encoders
    "ConvBERT": _hf(
        "ConvBertForMaskedLM", _language,
        {**ATTENTION, "*.conv_*_layer.weight": "matrix", "*.pointwise.weight": "convolution"},
        transposed=("*.intermediate.dense.*", "convbert.encoder.layer.?.output.dense.*"), **BERT,
        embedding_size=32, num_groups=2, head_ratio=2, conv_kernel_size=3),
    "BERT": _hf("BertForMaskedLM", _language, ATTENTION, **BERT),
    "RoBERTa": _hf("RobertaForMaskedLM", _language, ATTENTION, **{**BERT, "pad_token_id": 1}),
    "DistilBERT": _hf("DistilBertForMaskedLM", _language,
                      {"*_lin.weight": "matrix", "*.lin[12].weight": "matrix",
                       "vocab_transform.weight": "matrix", "*.word_embeddings.weight": "tied"},
                      vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48,
                      max_position_embeddings=32),
    "ELECTRA": _hf("ElectraForMaskedLM", _language,
                   {**ATTENTION, "*.embeddings_project.weight": "matrix"},
                   **BERT, embedding_size=16),
    "ALBERT": _hf("AlbertForMaskedLM", _language,
                  {"*.attention.*.weight": "matrix", "*.ffn*.weight": "matrix",
                   "*.LayerNorm.weight": "vector", "*.embedding_hidden_mapping_in.weight": "matrix",
                   "predictions.dense.weight": "matrix", "*.word_embeddings.weight": "tied",
                   "*.token_type_embeddings.weight": "embedding"}, **BERT, embedding_size=16),
    "DeBERTa-v2": _hf("DebertaV2ForMaskedLM", _language,
                      {**PROJECTIONS, "*dense.weight": "matrix",
                       "*.word_embeddings.weight": "tied"},
                      **BERT, relative_attention=True, position_buckets=4,
                      pos_att_type=["c2p", "p2c"]),
    "ModernBERT": _hf("ModernBertForMaskedLM", _language,
                      {"*.W*.weight": "matrix", "head.dense.weight": "matrix",
                       "*.tok_embeddings.weight": "tied"},
                      **BERT, cls_token_id=1, sep_token_id=2, attn_implementation="eager"),
    # encoders with decoders
    "T5": _hf("T5ForConditionalGeneration", _language,
              {"*Attention.[qkvo].weight": "matrix", "*.w[io].weight": "matrix",
               "shared.weight": "tied"},
              vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
              decoder_start_token_id=0),
    "BART": _hf("BartForConditionalGeneration", _language, {**FC, "model.shared.weight": "tied"},
                vocab_size=VOCABULARY, d_model=32, max_position_embeddings=32, **SEQUENCES),
    "Whisper": _hf("WhisperForConditionalGeneration", _mel,
                   {**TIED, **FC, "*.conv[12].weight": "convolution"}, vocab_size=VOCABULARY,
                   d_model=32, max_source_positions=16, max_target_positions=16, pad_token_id=0,
                   bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **SEQUENCES),
    "Wav2Vec2": _hf("Wav2Vec2ForCTC", _sound,
                    {**PROJECTIONS, "*_dense.weight": "matrix", "*.projection.weight": "matrix",
                     "*.conv.weight": "convolution", "lm_head.weight": "head"},
                    vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                    intermediate_size=48, conv_dim=(8, 8), conv_stride=(2, 2), conv_kernel=(3, 3),
                    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
                    apply_spec_augment=False),
    # pictures
    "ViT": _hf("ViTForImageClassification", _pictures, PATCHES, **VISION),
    "DINOv2": _hf("Dinov2ForImageClassification", _pictures, PATCHES, **VISION),
    "Swin": _hf("SwinForImageClassification", _pictures,
                {**PATCHES, "*.reduction.weight": "matrix"}, image_size=32, patch_size=4,
                embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4),
    "ConvNeXt": _hf("ConvNextForImageClassification", _pictures,
                    {"*.pwconv[12].weight": "matrix", "classifier.weight": "matrix",
                     "*.patch_embeddings.weight": "convolution",
                     "*.downsampling_layer.1.weight": "convolution"},
                    placement="convolutions", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "ResNet": _hf("ResNetForImageClassification", _pictures,
                  {"*.convolution.weight": "convolution", "classifier.1.weight": "matrix"},
                  placement="convolutions", embedding_size=8, hidden_sizes=[8, 16],
                  depths=[1, 1]),
    "CLIP": _hf("CLIPModel", _both,
                {**FC, "*_projection.weight": "matrix", "*.token_embedding.weight": "embedding",
                 "*.patch_embedding.weight": "convolution"},
                config="CLIPConfig", projection_dim=16, vision_config=VISION,
                text_config={**BERT, "eos_token_id": 2}),
}  # fmt: skip


def row(name: str) -> str:
    """The line of ``PAGE`` about a case: its parameters by role, and those with multipliers."""
    with torch.device("meta"):
        handle = lrm.attach_multipliers(CASES[name].build(), CASES[name].placement)
    roles = Counter(handle.roles.values())
    counts = [roles["matrix"], roles["embedding"] + roles["tied"], roles["head"]]
    counts += [roles["convolution"], roles["vector"], len(handle.effective)]
    return f"| {name} | " + " | ".join(map(str, [sum(roles.values()), *counts])) + " |\n"
