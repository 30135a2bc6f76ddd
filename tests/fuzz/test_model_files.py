"""Files that pass for models, through `run`: other counts, types, shapes, tokens and architectures, and flipped bits.

llama.cpp ends its process on many of them; specdec must not end with it.
"""

import random
import struct
from pathlib import Path

import gguf
import ggufs
import loras
import pytest
import tiny
from driver import DEMO, TARGET
from fuzzing import cases, specdec
from gguf_models import Model, parts, tensor

KINDS = (*tiny.ATTENTION, *tiny.RECURRENT, *tiny.HYBRID, "qwen3", "olmo2-window")
MORE_KINDS = ("llama", "lfm2", "qwen35-mtp", "draft", "eagle3", "medusa", "adapter")
ARCHITECTURES = [name for name in gguf.MODEL_ARCH_NAMES.values() if not name.startswith(("clip", "mmproj"))]
COUNTS = (0, 0, 1, 2, 3, 4, 7, 8, 16, 33, 255, 4096, 65535, 2**31 - 1, 2**32 - 1)
SETTINGS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
    "attention.kv_lora_rank", "attention.q_lora_rank", "attention.indexer.head_count", "attention.indexer.top_k",
    "rope.dimension_count", "rope.scaling.original_context_length", "expert_count", "expert_used_count",
    "expert_shared_count", "expert_group_count", "expert_group_used_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_gating_func", "leading_dense_block_count", "nextn_predict_layers",
    "interleave_moe_layer_step", "full_attention_interval", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank", "ssm.group_count", "wkv.head_size", "shortconv.l_cache", "kda.head_dim", "token_shift_count",
    "altup.num_inputs", "embedding_length_per_layer_input", "pooling_type", "decoder_block_count",
)  # fmt: skip
TOKENIZERS = ("none", "no_vocab", "llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "unheard-of", "")
IDS = ("bos", "eos", "eot", "eom", "unknown", "padding", "fim_pre", "separator", "mask")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    found = {kind: tiny.write(folder / f"{kind}.gguf", kind) for kind in (*KINDS, "qwen35-mtp")}
    found |= {name: DEMO / f"{name}.gguf" for name in ("eagle3", "medusa", "draft")}
    return {**found, "adapter": loras.write(folder / "adapter.gguf", found["llama"])}


def other_counts(model: Model, rng: random.Random) -> None:
    for name in rng.sample(SETTINGS, rng.randint(1, 4)):
        kind = rng.choice((*[ggufs.U32] * 9, ggufs.I32, ggufs.BOOL, ggufs.F32, ggufs.STRING))
        value = rng.choice(COUNTS)
        values = {ggufs.I32: min(value, 2**31 - 1), ggufs.BOOL: value % 2, ggufs.F32: float(value), ggufs.STRING: "1"}
        model.set(f"{model.architecture}.{name}", kind, values.get(kind, value))


def other_architecture(model: Model, rng: random.Random) -> None:
    model.rename(rng.choice(ARCHITECTURES))
    other_counts(model, rng)


def missing_key(model: Model, rng: random.Random) -> None:
    model.keys.pop(rng.choice(list(model.keys)))


def other_tokenizer(model: Model, rng: random.Random) -> None:
    if rng.random() < 0.7:
        model.set("tokenizer.ggml.model", ggufs.STRING, rng.choice(TOKENIZERS))
    for name in rng.sample(IDS, rng.randint(0, 3)):
        model.set(f"tokenizer.ggml.{name}_token_id", ggufs.U32, rng.choice((0, 1, 5, 299, 300, 2**31, 2**32 - 1)))
    if rng.random() < 0.5:
        tokens, merges = tiny.vocabulary()
        for _ in range(rng.randint(0, 3)):
            tokens[rng.randrange(len(tokens))] = rng.choice([*tokens, "", "x" * 70_000, "<0x41>", "▁"])
        tokens = tokens[: rng.choice((300, 300, 300, 299, 1, 0))]
        model.keys[b"tokenizer.ggml.tokens"] = ggufs.strings("", tokens)[8:]
        model.keys[b"tokenizer.ggml.merges"] = ggufs.strings("", rng.choice((merges, merges[::-1], ["x"], [])))[8:]
    if rng.random() < 0.3:
        charsmap = [rng.randrange(-128, 128) for _ in range(rng.choice((0, 3, 4, 40)))]
        model.keys[b"tokenizer.ggml.precompiled_charsmap"] = ggufs.values("", ggufs.I8, charsmap)[8:]


def other_tensors(model: Model, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(model.tensors))
        name, shape, kind, offset = parts(model.tensors[i])
        what = rng.randrange(6)
        if what < 2:
            kind = rng.choice((0, 1, 2, 8, 9, 12, 14, 24, 25, 26, 27, 28, 30, 39))
        elif what == 2:
            rng.shuffle(shape)
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 16, 31, 32, 64, 300))
        elif what == 3:
            name = rng.choice((name + b"x", b"rope_freqs.weight", b"output_norm.bias", parts(model.tensors[0])[0]))
        elif what == 4:
            offset = rng.choice((0, 32, 1 << 40))
        model.tensors[i : i + 1] = [] if what == 5 else [tensor(name, shape, kind, offset)]
    if rng.random() < 0.9:
        model.pack()


CHANGES = (other_counts, other_architecture, other_architecture, missing_key, other_tokenizer, other_tensors)


def flipped(raw: bytes, rng: random.Random) -> bytes:
    """One bit of the header is another."""
    damaged = bytearray(raw)
    damaged[rng.randrange(ggufs.layout(raw).end)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def changed(raw: bytes, rng: random.Random) -> bytes:
    model = Model(raw)
    for change in rng.choices(CHANGES, k=rng.choice((1, 1, 2))):
        change(model, rng)
    return model.raw()


@cases(4000)
def test_a_file_that_is_no_model_ends_nothing_but_itself(tmp_path, files, chance):
    path, damage = tmp_path / "m.gguf", flipped if chance.random() < 0.15 else changed
    path.write_bytes(damage(files[chance.choice(KINDS)].read_bytes(), chance))
    drafts = chance.random() < 0.2
    alone = chance.choice(("none", "none", "ngram"))
    models = ["-m", TARGET, "-md", path, "--drafter", "model"] if drafts else ["-m", path, "--drafter", alone]
    specdec("run", *models, "def f(é):", "-n", 4, "-t", 1, "-c", 256).assert_sound(f"{damage.__name__} {models}")


# Of another type than a key has.
VALUES = {
    "an array": (ggufs.ARRAY, ggufs.array(ggufs.I32, 300, ggufs.pack(ggufs.I32, *range(300)))),
    "an empty array": (ggufs.ARRAY, ggufs.array(ggufs.U32, 0)),
    "an array of texts": (ggufs.ARRAY, ggufs.array(ggufs.STRING, 2, ggufs.pack(ggufs.STRING, "a", "b"))),
    "an array of arrays": (ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 1, ggufs.array(ggufs.F32, 1, b"\0" * 4))),
    "a text": (ggufs.STRING, ggufs.text("eagle")),
    "NaN": (ggufs.F32, struct.pack("<f", float("nan"))),
    "a flag": (ggufs.BOOL, b"\1"),
    "a negative number": (ggufs.I64, struct.pack("<q", -1)),
}
EXTRA = (*("split.count", "split.no", "general.file_type", "general.alignment", "tokenizer.ggml.pre"), "vocab_size")
BRIEF = ("--raw", "-n", 3, "-t", 1, "-c", 256, "x")


def of_another_type(raw: bytes, rng: random.Random) -> bytes:
    model = Model(raw)
    key = rng.choice([*model.keys, *map(str.encode, EXTRA)])
    kind, value = VALUES[rng.choice([*VALUES])]
    model.keys[key] = struct.pack("<I", kind) + value
    return model.raw()


def commands(kind: str, path: Path, adapted: Path) -> list[tuple[object, ...]]:
    target = ("-m", TARGET, "-md", path)
    match kind:
        case "eagle3" | "medusa":
            return [("run", *target, "--drafter", kind, *BRIEF), ("check", *target)]
        case "adapter":
            return [("run", "-m", adapted, "--drafter", "none", "--lora", path, *BRIEF)]
    runs = [("run", "-m", path, "--drafter", "none", *BRIEF), ("run", *target, "--drafter", "model", *BRIEF)]
    return [*runs, ("check", *target), ("draft", "prune", "-m", path)]


@cases(1200)
def test_models_heads_and_adapters(tmp_path, files, case, chance):
    path, kind = tmp_path / "damaged.gguf", MORE_KINDS[case % len(MORE_KINDS)]
    damage = flipped if kind == "adapter" and case % 2 else of_another_type
    path.write_bytes(damage(files[kind].read_bytes(), chance))
    args = chance.choice(commands(kind, path, files["llama"]))
    specdec(*args).assert_sound(f"{kind} {damage.__name__}: {args[0]}")
