"""Adapters by their headers: what fits a model, and what is refused before llama.cpp sees it."""

import ggufs
import loras
import pytest
import tiny
from driver import TARGET

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import adapters
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.adapter import Adapter, identity


@pytest.mark.parametrize(
    ("text", "path", "scale"),
    [
        ("a.gguf", "a.gguf", 1.0),
        ("a.gguf:0.5", "a.gguf", 0.5),
        ("a.gguf:-1e-3", "a.gguf", -0.001),
        ("a:b", "a:b", 1.0),
        ("C:\\a.gguf:3", "C:\\a.gguf", 3.0),
        ("a.gguf:", "a.gguf:", 1.0),
        ("a.gguf:1_0", "a.gguf:1_0", 1.0),
        ("a.gguf:\u0661", "a.gguf:\u0661", 1.0),
        (":2", ":2", 1.0),
    ],
)
def test_a_file_and_a_scale(text, path, scale):
    found = Adapter.parse(text)
    assert (str(found.path), found.scale) == (path, scale)


@pytest.mark.parametrize("scale", ["NaN", "-inf", "1e39"])
def test_scales_that_are_none(scale):
    with pytest.raises(UsageError, match=r"the scale of a\.gguf cannot be"):
        Adapter.parse(f"a.gguf:{scale}")


def test_other_files_and_scales_are_told_apart(tmp_path):
    cases = [("a", 1.0), ("a", 0.5), ("b", 1.0)]
    made = [Adapter(tmp_path, scale, 1, file) for file, scale in cases]
    assert len({identity([each]) for each in made} | {identity(made), identity(made[:2]), identity([])}) == 6
    assert identity([]) == ""


@pytest.fixture
def model(tmp_path):
    return tiny.write(tmp_path / "model.gguf", "llama")


def read(path, model):
    return adapters.read(path, read_header(model))


@pytest.mark.parametrize("adapted", [loras.ADAPTED, ("token_embd",), ("output",)])
def test_what_fits(tmp_path, model, adapted):
    path = loras.write(tmp_path / "a.gguf", model, adapted=adapted)
    assert read(path, model).size == path.stat().st_size
    loras.write(path, TARGET, rank=1)
    read(path, TARGET)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"keys": {"general.type": None}}, "is a model, not an adapter"),
        ({"keys": {"general.type": "mmproj"}}, "of type mmproj, not an adapter"),
        ({"keys": {"adapter.type": "control"}}, "of type control, not lora"),
        ({"keys": {"adapter.lora.alpha": "4"}}, "its alpha is 4"),
        ({"keys": {"adapter.lora.alpha": float("nan")}}, "its alpha is nan"),
        ({"keys": {"adapter.alora.invocation_tokens": "x"}}, "activated adapter"),
        ({"architecture": "qwen2"}, "for the architecture qwen2, but model.gguf is llama"),
        ({"shapes": {"lora_a": (4, 33)}}, "has parts of 33x4 and 4x32"),
        ({"shapes": {"lora_b": (32, 5)}}, "has parts of 32x4 and 5x32"),
        ({"shapes": {"lora_a": (32, 4)}}, "has parts of 4x32 and 4x32"),
        ({"adapted": ()}, "it adapts no tensor"),
    ],
)
def test_what_is_refused(tmp_path, model, changes, says):
    path = loras.write(tmp_path / "a.gguf", model, **changes)
    with pytest.raises(SpecdecError) as refused:
        read(path, model)
    assert says in str(refused.value) and len(refused.value.hint) > 10


def test_an_adapter_of_another_model(tmp_path, model):
    larger = tiny.write(tmp_path / "larger.gguf", "qwen3")
    path = loras.write(tmp_path / "a.gguf", larger, architecture="llama")
    with pytest.raises(SpecdecError, match=r"adapts blk\.2\.\S+, which model\.gguf does not have"):
        read(path, model)


def rewritten(path, old, new):
    """The file with a name in its tensor table changed to another of the same length."""
    data = path.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def test_parts_that_are_none_or_alone(tmp_path, model):
    old = b"blk.0.attn_q.weight.lora_b"
    for new, says in (
        (b"blk.0.attn_q.weight.lora_c", "not part of an adapter"),
        (b"blk.0.attn_k.weight.lora_b", r"blk\.0\.attn_[qk]\.weight has only one of its two parts"),
    ):
        with pytest.raises(SpecdecError, match=says):
            read(rewritten(loras.write(tmp_path / "a.gguf", model), old, new), model)


def test_embeddings_that_are_the_output_too(tmp_path):
    """llama.cpp would end the process."""
    path = loras.write(tmp_path / "a.gguf", TARGET, adapted=("token_embd",))
    with pytest.raises(SpecdecError, match="which are also its output matrix"):
        read(path, TARGET)


def test_files_that_are_none_or_damaged(tmp_path, model):
    whole = loras.write(tmp_path / "a.gguf", model).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 200, len(whole) - 64):
        cut.write_bytes(whole[:length])
        with pytest.raises(SpecdecError, match=r"is damaged|cut short"):
            read(cut, model)
    with pytest.raises(UsageError, match="there is no file"):
        read(tmp_path / "none.gguf", model)
    with pytest.raises(UsageError, match=r"a\.gguf is not a number: 'much'"):
        read(tmp_path / "a.gguf:much", model)
    parts = ggufs.with_keys(tmp_path / "a.gguf", tmp_path / "x.gguf", ggufs.scalar("split.count", ggufs.U32, 1))
    assert read(parts, model)
