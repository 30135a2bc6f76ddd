"""What llama.cpp would not survive, refused from the header: one thing wrong at a time with a model that runs."""

from contextlib import nullcontext

import ggufs
import pytest

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary


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
        ("llama", [*BYTES[:-1], "a"], "no token for the byte 0xFF"),
        ("llama", [*BYTES[:97], *BYTES[98:], "a"], None),
    ],
)
def test_vocabularies(tmp_path, model, tokens, said):
    keys = [ggufs.scalar("tokenizer.ggml.model", ggufs.STRING, model), ggufs.strings("tokenizer.ggml.tokens", tokens)]
    keys.append(ggufs.scalar("tokenizer.ggml.add_bos_token", ggufs.BOOL, True))
    header = read_header(ggufs.written(tmp_path, ggufs.padded(ggufs.header(keys))))
    with pytest.raises(SpecdecError, match=said) if said else nullcontext():
        require_sound_vocabulary(header)
