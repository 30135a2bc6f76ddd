"""Arrays in a header where a number or a text is expected: an error of two lines, or what a missing value means."""

import struct

import ggufs
import pytest
from driver import DEMO, call, specdec
from gguf_models import Model

ARRAYS = {
    "one": ggufs.array(ggufs.U32, 1, ggufs.pack(ggufs.U32, 1)),
    "many": ggufs.array(ggufs.U32, 100, ggufs.pack(ggufs.U32, *range(100))),
    "none": ggufs.array(ggufs.U32, 0),
    "texts": ggufs.array(ggufs.STRING, 2, ggufs.pack(ggufs.STRING, "a", "b")),
}


def with_array(source, path, key, which):
    model = Model(source.read_bytes())
    model.keys[key.encode()] = struct.pack("<I", ggufs.ARRAY) + ARRAYS[which]
    path.write_bytes(model.raw())
    return path


@pytest.mark.parametrize("which", ARRAYS)
@pytest.mark.parametrize("key", ["medusa.embedding_length", "eagle3.target_hidden_size", "medusa.heads", "split.count"])
def test_heads(tmp_path, key, which):
    kind = "eagle3" if "eagle3" in key else "medusa"
    path = with_array(DEMO / f"{kind}.gguf", tmp_path / "heads.gguf", key, which)
    done = call("run", "-m", DEMO / "target.gguf", "-md", path, "--drafter", kind, "-n", 2, "x")
    if key == "split.count":
        assert done.exit_code == 1 and "is one of" in done.stderr
        return
    assert done.exit_code == 1 and "heads.gguf is damaged" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("key", ["tokenizer.ggml.model", "tokenizer.ggml.pre", "general.architecture"])
def test_models(tmp_path, key):
    path = with_array(DEMO / "target.gguf", tmp_path / "model.gguf", key, "many")
    done = specdec("run", "-m", path, "--drafter", "none", "-n", 2, "x")
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == 2, done.stderr
