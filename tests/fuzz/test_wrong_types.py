"""Every key of a model's, a head's and an adapter's header with a value of another type: an array, a text, NaN."""

import struct

import fuzzing
import ggufs
import loras
import pytest
import tiny
from driver import DEMO
from gguf_models import Model

pytestmark = pytest.mark.fuzz
SHARDS = 4
VALUES = {
    "an array of one": (ggufs.ARRAY, ggufs.array(ggufs.U32, 1, ggufs.pack(ggufs.U32, 1))),
    "an array": (ggufs.ARRAY, ggufs.array(ggufs.I32, 300, ggufs.pack(ggufs.I32, *range(300)))),
    "an empty array": (ggufs.ARRAY, ggufs.array(ggufs.U32, 0)),
    "an array of texts": (ggufs.ARRAY, ggufs.array(ggufs.STRING, 2, ggufs.pack(ggufs.STRING, "a", "b"))),
    "an array of arrays": (ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 1, ggufs.array(ggufs.F32, 1, b"\0" * 4))),
    "a text": (ggufs.STRING, ggufs.text("eagle")),
    "NaN": (ggufs.F32, struct.pack("<f", float("nan"))),
    "a flag": (ggufs.BOOL, b"\1"),
    "a negative number": (ggufs.I64, struct.pack("<q", -1)),
}


def commands(kind, path, adapted):
    brief = ("--raw", "-n", 3, "-t", 1, "-c", 256, "x")
    target = ("-m", DEMO / "target.gguf")
    match kind:
        case "eagle3" | "medusa":
            pair = (*target, "-md", path, "--drafter", kind)
            return [("run", *pair, *brief), ("check", *pair[:4])]
        case "adapter":
            return [("run", "-m", adapted, "--drafter", "none", "--lora", path, *brief)]
    alone = ("-m", path, "--drafter", "none", *brief)
    draft = (*target, "-md", path, "--drafter", "model", *brief)
    return [("run", *alone), ("run", *draft), ("check", *target, "-md", path), ("draft", "prune", "-m", path)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    adapted = tiny.write(folder / "llama.gguf", "llama")
    found = {"adapter": loras.write(folder / "adapter.gguf", adapted), "llama": adapted}
    found |= {kind: tiny.write(folder / f"{kind}.gguf", kind) for kind in ("lfm2", "qwen35-mtp")}
    return found | {name: DEMO / f"{name}.gguf" for name in ("eagle3", "medusa", "draft")}


EXTRA = (*("split.count", "split.no", "general.file_type", "general.alignment", "tokenizer.ggml.pre"), "vocab_size")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_values_of_another_type(files, tmp_path, shard):
    failures = fuzzing.Failures()
    for i, chance in enumerate(fuzzing.cases(1000 // SHARDS, f"types/{shard}")):
        kind = ("eagle3", "medusa", *files)[i % (len(files) + 2)]
        model = Model(files[kind].read_bytes())
        key = chance.choice([*(name.decode() for name in model.keys), *EXTRA])
        what = chance.choice([*VALUES])
        value_type, payload = VALUES[what]
        model.keys[key.encode()] = struct.pack("<I", value_type) + payload
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(model.raw())
        args = chance.choice(commands(kind, path, files["llama"]))
        with failures:
            fuzzing.specdec(*args).assert_sound(f"{kind}: {key} is {what} in case {i} of {shard}: {args[0]}")
    failures.assert_none()
