"""Models whose logits are a table: the same bits on every processor, with every build of llama.cpp.

Whatever they add up are small whole numbers and fractions by powers of two, so sums are exact in any order, and nothing
is left to round. A row depends on the last two tokens: attention looks at the one before and at no other, by some
hundred times what a kernel rounds. So a cache that keeps a rejected token, or loses an accepted one, shows.
"""

from functools import cache
from pathlib import Path

import gguf
import ggufs
import numpy as np
import tiny

CODE = 32
WIDTH = 2 * CODE
N_CTX = 2048
SPOKEN = [token for token, text in enumerate(tiny.vocabulary()[0]) if len(text) == 2 or text in ("Ġ", "Ċ")]
"""The tokens that it says: pairs of letters, the space and the end of a line."""
_SEED, _DRAFT_SEED = 728, 6
"""With these, the target's texts go on for some 30 tokens before they come round, and most drafts are partly accepted.
"""
_FREQUENCIES = 100.0
_QUERY = 24.0
"""The score of the token before is 137 above any other's."""
_UNSPOKEN = -64.0


def write(path: Path, draft: bool = False) -> Path:
    """Write the target to `path`, or a draft that resembles it, and return that."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("table")
    tiny.add_tokenizer(writer)
    writer.add_vocab_size(tiny.N_VOCAB)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_rope_freq_base(_FREQUENCIES)
    writer.add_layer_norm_rms_eps(1e-12)  # of no account beside a mean square of 1
    for name, values in _weights(draft).items():
        writer.add_tensor(name, values.astype(np.float32))
    ggufs.finish(writer)
    return path


def _weights(draft: bool) -> dict[str, np.ndarray]:
    embedding, output = _table(draft)
    nothing, square = np.zeros(WIDTH), np.zeros((WIDTH, WIDTH))
    upper = np.arange(CODE, WIDTH)
    # Of each token, attention hands on its code less one, to where the embedding has ones.
    value, handed = square.copy(), square.copy()
    value[upper, upper - CODE] = 1
    value[upper, CODE] = -1
    handed[upper, upper] = 1
    query, key = nothing.copy(), nothing.copy()
    angle = _FREQUENCIES ** (-np.arange(CODE) / CODE)
    query[:CODE] = _QUERY
    key[:CODE], key[CODE:] = _QUERY * np.cos(angle), _QUERY * np.sin(angle)  # turned on by one token
    return {
        "token_embd.weight": embedding,
        "output_norm.weight": np.ones(WIDTH),
        "output.weight": output,
        "blk.0.attn_norm.weight": np.ones(WIDTH),
        "blk.0.attn_q.weight": square,
        "blk.0.attn_q.bias": query,
        "blk.0.attn_k.weight": square,
        "blk.0.attn_k.bias": key,
        "blk.0.attn_v.weight": value,
        "blk.0.attn_v.bias": nothing,
        "blk.0.attn_output.weight": handed,
        "blk.0.ffn_norm.weight": np.ones(WIDTH),
        "blk.0.ffn_gate.weight": square,
        "blk.0.ffn_up.weight": square,
        "blk.0.ffn_down.weight": square,
    }


@cache
def _table(draft: bool) -> tuple[np.ndarray, np.ndarray]:
    """(n_vocab, WIDTH) each: the embeddings, and what a logit takes of the two codes."""
    rng = np.random.default_rng(_SEED)
    n_vocab = tiny.N_VOCAB
    embedding, liking = (rng.choice((-1.0, 1.0), (n_vocab, WIDTH)) for _ in range(2))
    embedding[:, 0] = embedding[:, CODE:] = 1
    if draft:
        other = np.random.default_rng([_SEED, _DRAFT_SEED]).choice((-1.0, 1.0), liking.shape)
        liking = 0.75 * liking + 0.25 * other
    output = 0.375 * liking
    output[:, 0] = output[:, CODE] = 0
    output[SPOKEN, 0] = np.arange(len(SPOKEN)) / (256 if draft else 64)  # so that no two tokens are ever liked as well
    silent = np.setdiff1d(np.arange(n_vocab), SPOKEN)
    output[silent] = 0
    output[silent, 0] = _UNSPOKEN
    return embedding, output
