"""What llama.cpp would not survive, refused from the header: one thing wrong at a time with a model that runs."""

from contextlib import nullcontext

import ggufs
import pytest
import tiny

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("runnable") / "m.gguf", "llama")


def number(name, value):
    return ggufs.scalar(f"llama.{name}", ggufs.U32, value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([number("expert_count", 4)], "4 experts, 0 of them in use"),
        ([number("expert_used_count", 2)], "0 experts, 2 of them in use"),
        ([number("expert_count", 4), number("expert_used_count", 5)], "4 experts, 5 of them in use"),
        ([number("expert_count", 1000), number("expert_used_count", 5)], "1,000 experts"),
        ([number("expert_group_count", 2)], "0 experts, 0 of them in use, in 2 groups"),
        ([number("expert_count", 5), number("expert_used_count", 2), number("expert_group_count", 2)], "in 2 groups"),
        ([number("nextn_predict_layers", 3)], "of its 2 layers 3 are said to be prediction heads"),
    ],
)
def test_numbers_that_contradict_each_other(tmp_path, whole, keys, said):
    header = read_header(ggufs.with_keys(whole, tmp_path / "m.gguf", *keys))
    with pytest.raises(SpecdecError, match=said):
        require_runnable(header)


def test_numbers_that_fit(tmp_path, whole):
    keys = [number(f"expert_{name}", value) for name, value in (("count", 4), ("used_count", 2), ("group_count", 1))]
    require_runnable(read_header(ggufs.with_keys(whole, tmp_path / "m.gguf", *keys, number("nextn_predict_layers", 1))))
    require_sound_vocabulary(read_header(whole))


@pytest.mark.parametrize(
    ("name", "kind", "refused"),
    [
        ("blk.0.attn_norm.weight", 1, True),
        ("output_norm.weight", 8, True),
        ("blk.0.attn_q.weight", 28, True),
        ("token_embd.weight", 9, True),
        ("blk.1.ffn_up.weight", 25, True),
        ("blk.1.ffn_up.weight", 8, False),
        ("blk.1.ffn_up.weight", 30, False),
        ("blk.0.ffn_gate_tid2eid", 26, False),
    ],
)
def test_types_of_tensors(tmp_path, name, kind, refused):
    head = ggufs.header(
        [ggufs.scalar("general.architecture", ggufs.STRING, "llama")], [ggufs.tensor(name, (32,), kind)]
    )
    header = read_header(ggufs.written(tmp_path, ggufs.padded(head, bytes(512))))
    with pytest.raises(SpecdecError, match=f"cannot compute with {name}") if refused else nullcontext():
        require_runnable(header)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize(
    ("model", "tokens", "said"),
    [
        ("none", ["a"], "has no tokenizer"),
        ("no_vocab", ["a"], "has no tokenizer"),
        ("gpt2", ["a", "b", "a"], "the token 'a' twice"),
        ("gpt2", ["a", "", ""], None),
        ("llama", [*BYTES[:-1], "a"], "no token for the byte 0xFF"),
        ("llama", [*BYTES[:97], *BYTES[98:], "a"], None),
        ("gemma4", ["a"], "which that is"),
    ],
)
def test_vocabularies(tmp_path, model, tokens, said):
    keys = [ggufs.scalar("tokenizer.ggml.model", ggufs.STRING, model), ggufs.strings("tokenizer.ggml.tokens", tokens)]
    keys.append(ggufs.scalar("tokenizer.ggml.add_bos_token", ggufs.BOOL, True))
    header = read_header(ggufs.written(tmp_path, ggufs.padded(ggufs.header(keys))))
    with pytest.raises(SpecdecError, match=said) if said else nullcontext():
        require_sound_vocabulary(header)
