"""Files that the recipe writes: llama.cpp cuts text as the tokenizer does, and loads and prunes the models."""

import math
from pathlib import Path

import numpy as np
import pytest

from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.tokenizer_comparison import compare
from training import export, tokenizer
from training.llama_rows import Reader
from training.sizes import FULL, SIZES, Shape, with_settings

SHAPE = Shape(layers=2, width=64, heads=2, feed_forward=96, vocabulary=400, context=128)
SMALLER = Shape(layers=1, width=32, heads=1, feed_forward=64, vocabulary=400, context=128)
PACKAGE = Path(tokenizer.__file__).parent.parent / "specdec_cli"

QUOTED = " b'Test' f'Result' u'Member' rb'Direction'"
"""What an apostrophe is parted from, or not: with the case of the letter after it ignored, it is."""

ODD = [
    "def f(x):\n    return x + 1\n\n\n\nclass A(B):\n\tdef __init__(self, *args, **kwargs):\r\n\t\tpass\n",
    "   leading, trailing   \n\n   \t  \n ",
    "naïve café — “quotes” … ½ Ünïcödé 日本語 🙂👩‍👩‍👧 \u200b\u00a0x\u0301 ٣٤٥ Ⅷ",
    "1234567890 3.14159e-10 0x1F 1_000_000 v1.2.3",
    "don't I'LL they'Ve 'tis <|endoftext|> a<|endoftext|>b" + QUOTED,
    "self.assertEqual(a['b'][0].c(d), {**e, 'f': [g for g in h if g]})  # type: ignore[x]",
    "if x:\n        y()\n    else:\n  z = {\n}\n)]}:::---===\n\n",
    "",
]


def sides(shape):
    """The tensors of a model, by the names that model.Decoder gives its parameters."""
    width, wide = shape.width, shape.feed_forward
    found = {"token_embd.weight": (shape.vocabulary, width), "output_norm.weight": (width,)}
    for layer in range(shape.layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            found[f"blk.{layer}.{name}.weight"] = (width, width)
        for name, size in (("ffn_gate", (wide, width)), ("ffn_up", (wide, width)), ("ffn_down", (width, wide))):
            found[f"blk.{layer}.{name}.weight"] = size
        found[f"blk.{layer}.attn_norm.weight"] = found[f"blk.{layer}.ffn_norm.weight"] = (width,)
    return found


def random_weights(shape):
    dice = np.random.default_rng(0)
    return {
        name: np.ones(size) if len(size) == 1 else dice.standard_normal(size) / (size[1] ** 0.5 if "blk" in name else 1)
        for name, size in sides(shape).items()
    }


@pytest.fixture(scope="module")
def encoder():
    texts = [path.read_text("utf-8") for path in sorted((PACKAGE / "decoding").glob("*.py"))]
    return tokenizer.train([*texts, QUOTED * 500], SHAPE.vocabulary)


@pytest.fixture(scope="module")
def files(encoder, tmp_path_factory):
    folder, words = tmp_path_factory.mktemp("models"), tokenizer.vocabulary(encoder)
    shapes = {"target": SHAPE, "draft": SMALLER}
    return {
        name: export.write(folder / f"{name}.gguf", random_weights(shape), shape, words, name, "a test")
        for name, shape in shapes.items()
    }


def test_llama_cpp_cuts_text_exactly_so(encoder, files):
    texts = [*ODD, *(path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))[:40])]
    reader = Reader(files["target"])
    theirs = [reader.model.tokenize(text, special=False) for text in texts]
    reader.close()
    ours = list(tokenizer.encode(encoder, texts, at_once=7))
    assert ours == theirs
    assert ours[-1][0] == 0
    assert encoder.decode(ours[2][1:]) == ODD[2]


def test_each_token_knows_its_bytes(encoder):
    lengths = tokenizer.byte_lengths(encoder)
    for text, ids in zip(ODD, tokenizer.encode(encoder, ODD), strict=True):
        assert sum(lengths[token] for token in ids) == len(text.encode("utf-8"))


def test_too_little_text_for_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match="tokens, not 5000"):
        tokenizer.train(["def f(): pass"], 5000)


def test_both_files_load_have_one_tokenizer_and_say_what_they_are(files):
    headers = {name: read_header(path) for name, path in files.items()}
    assert compare(headers["target"], headers["draft"]).verdict == "identical"
    assert headers["target"].setting("block_count") == SHAPE.layers
    assert headers["target"].metadata["general.license"] == "mit"
    for name, shape in (("target", SHAPE), ("draft", SMALLER)):
        reader = Reader(files[name])
        rows = reader.rows([0, 5, 6, 7])
        reader.close()
        assert rows.shape == (4, shape.vocabulary)
        assert np.isfinite(rows).all()
        assert rows.std() > 0.1
        assert abs(files[name].stat().st_size - export.file_bytes(shape)) < 20_000


def test_a_layer_of_zeros_and_a_norm_are_as_llama_cpp_sees_them(encoder, tmp_path):
    """With outlets of zeros, every row is the normed embedding times the embeddings: known without PyTorch."""
    weights = random_weights(SHAPE)
    for name in weights:
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            weights[name] = np.zeros_like(weights[name])
    weights["output_norm.weight"] = np.linspace(0.5, 1.5, SHAPE.width)
    words = tokenizer.vocabulary(encoder)
    reader = Reader(export.write(tmp_path / "m.gguf", weights, SHAPE, words, "m", kind="F32"))
    rows = reader.rows([0, 17, 255])
    reader.close()
    table = weights["token_embd.weight"].astype(np.float32)
    x = table[[0, 17, 255]]
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + SHAPE.eps) * weights["output_norm.weight"]
    assert np.allclose(rows, normed @ table.T, rtol=1e-3, atol=1e-2)


def test_a_tokenizer_of_another_size_is_refused(encoder, tmp_path):
    other = Shape(layers=1, width=32, heads=1, feed_forward=32, vocabulary=500, context=64)
    with pytest.raises(ValueError, match="400 tokens, the model 500"):
        export.write(tmp_path / "m.gguf", random_weights(other), other, tokenizer.vocabulary(encoder), "m")


def test_the_full_size_is_what_was_asked_for():
    assert 29e6 < FULL.target.parameters < 31e6 and 1.3e6 < FULL.draft.parameters < 1.6e6
    assert FULL.target.context == FULL.draft.context == 2048
    headers = 2 * 400_000  # two vocabularies with their merges
    assert export.file_bytes(FULL.target) + export.file_bytes(FULL.draft) + headers < 35e6


@pytest.mark.parametrize("name", SIZES)
def test_every_size_can_be_exported_and_sampled(name):
    size = SIZES[name]
    for shape in (size.target, size.draft):
        assert shape.vocabulary == size.vocabulary
        assert not shape.width % 32
        assert not shape.feed_forward % 32
        assert not shape.width % (2 * shape.heads)
        assert sum(math.prod(size) for size in sides(shape).values()) == shape.parameters
    assert size.batch % size.micro_batch == 0
    assert max(size.exits) < size.target.layers
    assert size.sample_length <= size.target.context


def test_settings_change_numbers_and_nothing_else():
    changed = with_settings(FULL, ["exit_weight=0", "target_tokens=1e6"])
    assert (changed.exit_weight, changed.target_tokens) == (0.0, 1_000_000)
    assert changed.draft == FULL.draft
    for wrong in ("nothing=1", "target=3", "exits=2"):
        with pytest.raises(ValueError, match="no number of a size"):
            with_settings(FULL, [wrong])
