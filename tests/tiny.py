"""Tiny models with random weights, one for each kind of memory that llama.cpp has. Some 100 kB each, from a seed.

Which settings and tensors an architecture needs stands in llama.cpp's src/models/*.cpp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
from ggufs import finish, string_array

from specdec_cli.gguf.vocabulary import DIGEST, IDS, READS

WIDTH, HEADS, FEED_FORWARD = 32, 2, 64
CONV, STATE, INNER = 4, 16, 2 * WIDTH
"""Of the recurrent layers: convolution length, state size, inner width (Mamba's must be twice the width)."""

N_CTX = 2048

ATTENTION = ("llama",)
RECURRENT = ("mamba",)
HYBRID = ("lfm2", "lfm2-window", "nemotron_h", "qwen35")
"""lfm2: short convolutions; lfm2-window: beside attention over the last 24 tokens only; nemotron_h: Mamba 2;
qwen35: gated delta net. The last three have a state beside the convolution's."""

HEAD_FILES = {kind: kind.partition("-")[0] for kind in ("eagle3", "eagle3-few", "medusa", "medusa-few")}
"""Files of heads for qwen3, and their drafters."""
PREDICTING = {"qwen35-mtp": 1, "glm4moe-mtp": 1, "step35-mtp": 1, "step35-mtp3": 3}
"""Kinds with layers that predict one token more, and how many of these; llama.cpp loads them with `load_mtp` alone.
glm4moe and qwen35 hand the normed row on, step35 the row before the norm; qwen35's recurrent memory is not the head's.
"""


def write(
    path: Path, kind: str, seed: int = 0, noise: float = 0.0, chat_template: str | None = None, n_ctx: int = N_CTX
) -> Path:
    """Write a model of `kind` to `path`, and return that: see ATTENTION, RECURRENT, HYBRID; or qwen3, of five layers,
    olmo2-window, gemma4, deepseek2 or llama-flat.

    noise: 0 to 1, the share of other random weights mixed in: with some, the model is a draft that its
    noiseless namesake accepts part of.
    """
    model = _Model(path, kind.partition("-")[0], seed, noise, words=not kind.startswith(("eagle3-", "medusa")))
    model.set("context_length", n_ctx)
    if chat_template is not None:
        model.writer.add_chat_template(chat_template)
    globals()["_" + kind.replace("-", "_")](model)
    model.close()
    return path


def write_reduced(path: Path, ids: Sequence[int] | None = None) -> Path:
    """Write a draft with the tokens `ids` of the tiny models: what `write` makes of a llama, less the others. Each of
    those is read as the next that it has. ids: by default REDUCED.
    """
    kept = np.array(REDUCED if ids is None else ids)
    model = _Model(path, "llama", 0, 0.0, words=True, kept=kept)
    model.set("context_length", N_CTX)
    _llama(model)
    model.close()
    return path


def vocabulary() -> tuple[list[str], list[str]]:
    """A byte-level BPE vocabulary of 300 tokens and its merges: an end token, the bytes, and some pairs of letters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_ = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    pairs = [(a, b) for a in "etaoins" for b in "hrdluem"][:43]
    return ["<|endoftext|>", *bytes_, *(a + b for a, b in pairs)], [f"{a} {b}" for a, b in pairs]


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """The tokenizer of this vocabulary."""
    tokens, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


N_VOCAB = len(vocabulary()[0])
REDUCED = tuple(token for token in range(N_VOCAB) if token % 5 or not token)
"""The tokens of a reduced draft: four of five, and the first, which ends a text."""


class _Model:
    """A GGUF file in the making: settings get the architecture's prefix, tensors their layer's and random values."""

    def __init__(
        self, path: Path, architecture: str, seed: int, noise: float, words: bool, kept: np.ndarray | None = None
    ) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self._architecture, self._prefix = architecture, ""
        self._rng, self._other = (np.random.default_rng([seed, part]) for part in (0, 1))
        self._noise = noise
        if kept is None:
            add_tokenizer(self.writer)
            self.set("vocab_size", N_VOCAB)
        else:
            self._reduced(kept)
        self.writer.add_name("tiny")
        self.set("embedding_length", WIDTH)
        self.set("attention.layer_norm_rms_epsilon", 1e-5)
        if words:
            for name, gain in (("token_embd.weight", WIDTH**0.5), ("output.weight", 4)):
                whole = self._normal(N_VOCAB, WIDTH) * (gain / WIDTH**0.5)
                self._add(name, whole if kept is None else whole[kept])

    def _reduced(self, kept: np.ndarray) -> None:
        places = np.sort(kept).searchsorted(np.arange(N_VOCAB)).clip(max=kept.size - 1)
        raw = string_array([token.encode() for token in vocabulary()[0]]).raw
        self.writer.add_tokenizer_model("none")
        self.writer.add_array(IDS, kept.astype(np.int32).tolist())
        self.writer.add_array(READS, np.argsort(kept)[places].astype(np.int32).tolist())
        self.writer.add_string(DIGEST, hashlib.sha256(raw).hexdigest())
        self.set("vocab_size", kept.size)

    def set(self, name: str, value: int | float | Sequence[int]) -> None:
        key = f"{self._architecture}.{name}"
        if isinstance(value, int):
            self.writer.add_uint32(key, value)
        elif isinstance(value, float):
            self.writer.add_float32(key, value)
        else:
            self.writer.add_array(key, list(value))

    def layers(
        self,
        count: int,
        feed_forward: int | Sequence[int] = FEED_FORWARD,
        heads: int = HEADS,
        norm: str = "output_norm",
    ) -> None:
        """What is said of so many layers, and the norm after them."""
        self.set("block_count", count)
        self.set("feed_forward_length", feed_forward)
        self.set("attention.head_count", heads)
        if heads and self._architecture != "olmo2":  # the model that a test adds it to
            self.set("rope.dimension_count", WIDTH // HEADS)
        self.norm(norm)

    def each(self, layers: int, first: int = 0) -> Iterator[int]:
        """The layers' numbers: meanwhile, tensors are those of a layer."""
        for layer in range(first, layers):
            self._prefix = f"blk.{layer}."
            yield layer
        self._prefix = ""

    def ssm(self, rank: int, inner: int = INNER, groups: int = 0) -> None:
        """Settings of recurrent layers."""
        names = {"conv_kernel": CONV, "inner_size": inner, "state_size": STATE, "time_step_rank": rank}
        for name, value in {**names, **({"group_count": groups} if groups else {})}.items():
            self.set(f"ssm.{name}", value)

    def matrix(self, name: str, inputs: int, outputs: int, gain: float = 1.0, experts: int = 0) -> None:
        """A linear map that keeps the scale of its input, times `gain`; of experts, so many."""
        shape = (experts, outputs, inputs) if experts else (outputs, inputs)
        self._add(f"{name}.weight", self._normal(*shape) * (gain / inputs**0.5))

    def norm(self, name: str, *shape: int) -> None:
        self._add(f"{name}.weight", 1 + 0.1 * self._normal(*(shape or (WIDTH,))))

    def bias(self, name: str, *shape: int) -> None:
        self._add(name, 0.5 * self._normal(*shape))

    def decay(self, name: str, *shape: int) -> None:
        """Negative rates of forgetting."""
        self._add(name, -np.exp(self._normal(*shape) - 1))

    def attention(self, q_gain: int = 1, head_norms: bool = False, inputs: int = 0) -> None:
        for part, outputs in (("q", WIDTH * q_gain), ("k", WIDTH), ("v", WIDTH)):
            self.matrix(f"attn_{part}", inputs or WIDTH, outputs, gain=2)
        self.matrix("attn_output", WIDTH, WIDTH, gain=2)
        if head_norms:
            self.norm("attn_q_norm", WIDTH // HEADS)
            self.norm("attn_k_norm", WIDTH // HEADS)

    def feed_forward(self, gated: bool = True) -> None:
        if gated:
            self.matrix("ffn_gate", WIDTH, FEED_FORWARD)
        self.matrix("ffn_up", WIDTH, FEED_FORWARD)
        self.matrix("ffn_down", FEED_FORWARD, WIDTH)

    def usual_layer(self, second_norm: str = "ffn_norm", head_norms: bool = False) -> None:
        self.norm("attn_norm")
        self.attention(head_norms=head_norms)
        self.norm(second_norm)
        self.feed_forward()

    def prediction(self, layers: int, count: int) -> None:
        """What the `count` layers after the first `layers` need to predict one token more."""
        self.set("nextn_predict_layers", count)
        for _ in self.each(layers + count, first=layers):
            self.matrix("nextn.eh_proj", 2 * WIDTH, WIDTH)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                self.norm(f"nextn.{norm}")

    def close(self) -> None:
        finish(self.writer)

    def _normal(self, *shape: int) -> np.ndarray:
        own, other = self._rng.standard_normal(shape), self._other.standard_normal(shape)
        return own * (1 - self._noise) + other * self._noise

    def _add(self, name: str, values: np.ndarray) -> None:
        self.writer.add_tensor(self._prefix + name, values.astype(np.float32))


def _llama(model: _Model, layers: int = 2, head_norms: bool = False) -> None:
    model.layers(layers)
    for _ in model.each(layers):
        model.usual_layer(head_norms=head_norms)


def _llama_flat(model: _Model) -> None:
    """One layer: what it holds of a token depends on the token and its place alone."""
    _llama(model, 1)


def _qwen3(model: _Model) -> None:
    _llama(model, 5, head_norms=True)


def _olmo2_window(model: _Model) -> None:
    """Three layers that see the last 24 tokens, and one that sees all."""
    model.layers(4)
    model.set("attention.sliding_window", 24)
    for _ in model.each(4):
        model.attention()
        for name in ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"):
            model.norm(name)
        model.feed_forward()


def _gemma4(model: _Model) -> None:
    """Six layers, of which the last three read what the others keep. Every third sees all, with one head of 32."""
    windowed = [True, True, False] * 2
    model.layers(len(windowed))
    model.set("attention.head_count_kv", [HEADS if short else 1 for short in windowed])
    for name, size in (("key_length", 32), ("value_length", 32), ("key_length_swa", 16), ("value_length_swa", 16)):
        model.set(f"attention.{name}", size)
    model.set("attention.sliding_window", 24)
    model.set("attention.shared_kv_layers", 3)
    model.set("embedding_length_per_layer_input", 0)
    model.writer.add_array("gemma4.attention.sliding_window_pattern", windowed)
    model.norm("rope_freqs", 16)
    for layer in model.each(len(windowed)):
        size = 16 if windowed[layer] else 32
        model.matrix("attn_q", WIDTH, HEADS * size)
        model.matrix("attn_k", WIDTH, 32)
        model.matrix("attn_v", WIDTH, 32)
        model.matrix("attn_output", HEADS * size, WIDTH)
        for name, width in (("attn_q_norm", size), ("attn_k_norm", size)):
            model.norm(name, width)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            model.norm(name)
        model.feed_forward()


def _deepseek2(model: _Model) -> None:
    """Two layers with latent attention, which keep 48 values of keys and none else."""
    rank, turned, own = 32, 16, 16
    model.layers(2)
    lengths = {
        "key_length": rank + turned,
        "value_length": rank,
        "key_length_mla": own + turned,
        "value_length_mla": own,
    }
    for name, size in {**lengths, "head_count_kv": 1, "q_lora_rank": rank, "kv_lora_rank": rank}.items():
        model.set(f"attention.{name}", size)
    for name in ("leading_dense_block_count", "expert_feed_forward_length"):
        model.set(name, 2)
    for name in ("expert_count", "expert_used_count", "expert_shared_count"):
        model.set(name, 0)
    for _ in model.each(2):
        model.norm("attn_norm")
        model.norm("attn_q_a_norm", rank)
        model.norm("attn_kv_a_norm", rank)
        model.matrix("attn_q_a", WIDTH, rank)
        model.matrix("attn_q_b", rank, HEADS * (own + turned))
        model.matrix("attn_kv_a_mqa", WIDTH, rank + turned)
        model.matrix("attn_k_b", own, rank, experts=HEADS)
        model.matrix("attn_v_b", rank, own, experts=HEADS)
        model.matrix("attn_output", HEADS * own, WIDTH)
        model.norm("ffn_norm")
        model.feed_forward()


def _mamba(model: _Model) -> None:
    rank = 4
    model.layers(2, 0, 0)
    model.ssm(rank)
    for _ in model.each(2):
        model.norm("attn_norm")
        model.matrix("ssm_in", WIDTH, 2 * INNER, gain=2)
        model.matrix("ssm_conv1d", CONV, INNER)
        model.bias("ssm_conv1d.bias", INNER)
        model.matrix("ssm_x", INNER, rank + 2 * STATE)
        model.matrix("ssm_dt", rank, INNER)
        model.bias("ssm_dt.bias", INNER)
        model.decay("ssm_a", INNER, STATE)
        model.bias("ssm_d", INNER)
        model.matrix("ssm_out", INNER, WIDTH)


def _lfm2(model: _Model) -> None:
    conv = 3
    kv_heads = (0, HEADS, 0)
    model.layers(len(kv_heads), norm="token_embd_norm")  # what LFM2 calls its output's norm
    model.set("attention.head_count_kv", kv_heads)
    model.set("shortconv.l_cache", conv)
    for layer in model.each(len(kv_heads)):
        model.norm("attn_norm")
        if kv_heads[layer]:
            model.attention(head_norms=True)
        else:
            model.matrix("shortconv.in_proj", WIDTH, 3 * WIDTH)
            model.matrix("shortconv.conv", conv, WIDTH)
            model.matrix("shortconv.out_proj", WIDTH, WIDTH)
        model.norm("ffn_norm")
        model.feed_forward()


def _lfm2_window(model: _Model) -> None:
    model.set("attention.sliding_window", 24)
    _lfm2(model)


def _nemotron_h(model: _Model) -> None:
    heads, groups = 4, 2
    convolved = INNER + 2 * groups * STATE
    kv_heads, feed_forward = (0, HEADS, 0, 0), (0, 0, FEED_FORWARD, 0)
    model.layers(len(kv_heads), feed_forward)
    model.set("attention.head_count_kv", kv_heads)
    model.set("attention.layer_norm_epsilon", 1e-5)
    model.ssm(heads, INNER, groups)
    for layer in model.each(len(kv_heads)):
        model.norm("attn_norm")
        if kv_heads[layer]:
            model.attention()
        elif feed_forward[layer]:
            model.feed_forward(gated=False)
        else:
            model.matrix("ssm_in", WIDTH, INNER + convolved + heads, gain=2)
            model.matrix("ssm_conv1d", CONV, convolved)
            model.bias("ssm_conv1d.bias", convolved)
            model.bias("ssm_dt.bias", heads)
            model.decay("ssm_a", heads, 1)
            model.bias("ssm_d", heads, 1)
            model.norm("ssm_norm", groups, INNER // groups)
            model.matrix("ssm_out", INNER, WIDTH)


def _qwen35(model: _Model, predicting: int = 0) -> None:
    k_heads, v_heads = 2, 4
    key, value = k_heads * STATE, v_heads * STATE
    model.layers(3 + predicting)
    model.set("rope.dimension_sections", (4, 2, 2, 0))
    model.set("full_attention_interval", 2)
    model.ssm(v_heads, value, k_heads)
    for layer in model.each(3 + predicting):
        model.norm("attn_norm")
        model.norm("post_attention_norm")
        if layer % 2:
            model.attention(q_gain=2, head_norms=True)
        else:
            model.matrix("attn_qkv", WIDTH, 2 * key + value, gain=2)
            model.matrix("attn_gate", WIDTH, value)
            model.matrix("ssm_conv1d", CONV, 2 * key + value)
            model.bias("ssm_dt.bias", v_heads)
            model.decay("ssm_a", v_heads)
            model.matrix("ssm_beta", WIDTH, v_heads)
            model.matrix("ssm_alpha", WIDTH, v_heads)
            model.norm("ssm_norm", STATE)
            model.matrix("ssm_out", value, WIDTH)
        model.feed_forward()


def _qwen35_mtp(model: _Model) -> None:
    _qwen35(model, 1)
    model.prediction(3, 1)


def _glm4moe_mtp(model: _Model) -> None:
    """Two dense layers, and a head whose mixture has one expert and a shared one."""
    layers, half = 2, FEED_FORWARD // 2
    model.layers(layers + 1)
    model.set("leading_dense_block_count", layers)
    model.set("expert_feed_forward_length", half)
    for name in ("expert_count", "expert_used_count", "expert_shared_count"):
        model.set(name, 1)
    model.writer.add_expert_weights_norm(True)
    for _ in model.each(layers):
        model.usual_layer("post_attention_norm")
    for _ in model.each(layers + 1, first=layers):
        model.norm("attn_norm")
        model.attention()
        model.norm("post_attention_norm")
        model.matrix("ffn_gate_inp", WIDTH, 1)
        model.bias("exp_probs_b.bias", 1)
        for part, inputs, outputs in (("gate", WIDTH, half), ("up", WIDTH, half), ("down", half, WIDTH)):
            model.matrix(f"ffn_{part}_exps", inputs, outputs, experts=1)
            model.matrix(f"ffn_{part}_shexp", inputs, outputs)
    model.prediction(layers, 1)


def _glm4moe_echo(model: _Model) -> None:
    """One whose layers add nothing, and whose head reads mostly the token: it knows nearly all that the target does."""
    _glm4moe_mtp(model)
    tensors = model.writer.tensors[0]
    for name, tensor in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")):
            tensor.tensor[:] = 0
    joined = tensors["blk.2.nextn.eh_proj.weight"].tensor
    joined *= 0.3
    joined[:, :WIDTH] += np.eye(WIDTH, dtype=np.float32)


def _step35_mtp(model: _Model, predicting: int = 1) -> None:
    """Two layers that see all, of whose heads half is turned; the prediction layers see the last 24 tokens."""
    model.layers(2 + predicting)
    model.set("expert_feed_forward_length", FEED_FORWARD)
    model.set("attention.sliding_window", 24)
    model.writer.add_array("step35.attention.sliding_window_pattern", [False] * 2 + [True] * predicting)
    for _ in model.each(2 + predicting):
        model.usual_layer()
    model.prediction(2, predicting)


def _step35_mtp3(model: _Model) -> None:
    _step35_mtp(model, 3)


def _eagle3(model: _Model) -> None:
    """A head over what goes into three layers of a target of the same width."""
    model.set("target_layers", (0, 2, 4))
    model.set("target_hidden_size", WIDTH)
    model.matrix("fc", 3 * WIDTH, WIDTH)
    model.layers(1)
    for _ in model.each(1):
        model.norm("attn_norm")
        model.norm("attn_norm_2")
        model.attention(inputs=2 * WIDTH)
        model.norm("ffn_norm")
        model.feed_forward()


_eagle3_bare = _eagle3
"""One that also writes with the target's matrix."""


def _eagle3_few(model: _Model) -> None:
    """One that can say every other token, and reads with the target's embeddings."""
    model.writer.add_tensor("d2t", np.arange(0, N_VOCAB, 2, dtype=np.int64))
    model.matrix("output", WIDTH, N_VOCAB // 2, gain=4)
    _eagle3(model)


_dflash = _eagle3
"""A kind of draft model that is refused from its header."""


def _medusa(model: _Model, words: int = N_VOCAB) -> None:
    """Five heads over the rows of a target of the same width."""
    model.set("heads", 5)
    for k in range(5):
        model.matrix(f"head.{k}.block", WIDTH, WIDTH)
        model.bias(f"head.{k}.block.bias", WIDTH)
        model.matrix(f"head.{k}.output", WIDTH, words, gain=4)


def _medusa_few(model: _Model) -> None:
    """Heads that can say every other token."""
    model.writer.add_tensor("d2t", np.arange(0, N_VOCAB, 2, dtype=np.int64))
    _medusa(model, N_VOCAB // 2)
