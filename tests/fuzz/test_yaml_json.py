"""Settings, profiles, suites, hardware and kept results that are damaged, hostile or only odd."""

import json
import os
from pathlib import Path

import pytest
from fuzzing import cases, specdec

from specdec_cli.settings.options import OPTIONS

pytestmark = pytest.mark.fuzz

KEPT = Path(__file__).parent.parent / "cli" / "unchanged" / "kept-comparison.json"
SETTINGS = [*OPTIONS, "temp", "profile", "nonsense"]
PROFILE = [
    *("target", "draft", "description", "why", "licence", "gated", "download_gb", "memory_gb", "fits_gb", "settings"),
    *("sources", "verified", "name", "folder"),
]
HARDWARE = ["basis", "verify_ms", "draft_ms", "other_ms", "description", "source", "name"]
ENTRY = ["prompt", "id", "category", "turns", "task_id", "question_id"]
SCALARS = [
    *("", "~", "null", "true", "no", "0", "-1", "1", "2", "64", "0.5", "1e-300", "1e999", "-1e308", ".inf", ".nan"),
    "-0",
    *("9" * 18, "9" * 19, "9" * 400, "9" * 4300, "9" * 60_000, "0x" + "f" * 5000, "1:1:1", "1" + ":59" * 20_000 + ".5"),
    *("4:3:4", "99:99:99", "2026-01-02", "2026-99-99", "auto", "demo", "x", "x.gguf", "a/b:Q4", "a/b/c.gguf"),
    "/dev/zero",
    *("'text'", '"a\\0b"', '"\\ud800"', '"\\e]52;c;eA==\\a"', '"\\n\\n"', "word " * 10_000, "'" + "é" * 20_000 + "'"),
    "[" * 30_000,
    *("&a [*a]", "*a", "!!python/object/apply:os.getcwd []", "!!binary YQ==", "!!set {a, b}", "<<", "{<<: {a: 1}}"),
    *("{1: 20, 4: 23}", "{1: 1e-6, 8: 9999999}", "{1: 20, 999999999999999999: 23}", "{0: 1}", "{1: 1e400}", "measured"),
]
BOMBS = [
    "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(60)) + "target: *a60\n",
    "a0: &a0 {x: 1}\n" + "".join(f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}], y{i}: 1}}\n" for i in range(60)),
    "prompts:\n" + "".join(f"- &b{i + 1} [*b{i}, *b{i}]\n" if i else "- &b1 [x]\n" for i in range(60)),
    *("# \n" * 10_000_000, "a: b\n---\na: b\n", "\t", "\0", "- " * 50_000, "? " * 50_000, "a:\n" * 50_000),
    "\ufeffa: 1",
    *("x" * 30_000_000, "[" + "1, " * 20_000 + "]", "{" + "a: 1, " * 9000 + "}", "\n" * 1_000_000),
    '{"prompt": 1}\n' * 200_000,
]
VALUES = [
    *(None, True, -1, 0, 1e308, 10**18, 10**19, 10**300, 10**4299, float("nan"), float("inf"), "", "x", "x" * 100_000),
    *("\x1b]52;c;eA==\x07", "\ud800", "\0", "../../x", [], {}, [[]], [None], {"a": None}, [1] * 10_000, "2026-99-99"),
    0.5,
]
PULLED = {
    "format": 1,
    "target": {
        "reference": "a/b:Q4",
        "repo": "a/b",
        "commit": "c" * 40,
        "files": [{"name": "x.gguf", "size": 5, "digest": "d" * 64}],
    },
    "draft": None,
    "verdict": "identical",
    "pulled": "2026-01-02",
}


def value(rng, depth: int = 0) -> str:
    """A value in YAML."""
    kind = rng.randrange(8)
    if kind == 0 and depth < 3:
        return "[" + ", ".join(value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    if kind == 1 and depth < 3:
        return "{" + ", ".join(f"{rng.choice([*SETTINGS, '1', '~'])}: {value(rng, depth + 1)}" for _ in range(3)) + "}"
    return rng.choice(SCALARS)


def mapping(rng, keys: list[str], base: str = "") -> bytes:
    """YAML with some of these keys, or none at all."""
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice(BOMBS).encode("utf-8")
    text = base + "".join(f"{key}: {value(rng)}\n" for key in rng.sample(keys, rng.randint(1, min(4, len(keys)))))
    return damaged(rng, text.encode("utf-8", "surrogatepass")) if kind == 1 else text.encode("utf-8")


def damaged(rng, data: bytes) -> bytes:
    """A few bytes wrong, or the end missing."""
    changed = bytearray(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data)
    for _ in range(rng.randint(0, 3)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def altered(rng, record: object) -> bytes:
    """JSON with a value or two of another kind."""
    record = json.loads(json.dumps(record))
    for _ in range(rng.randint(1, 2)):
        place = record
        while True:
            key = rng.choice([*place]) if isinstance(place, dict) else rng.randrange(len(place))
            if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
                place = place[key]
                continue
            if isinstance(place, dict) and rng.random() < 0.2:
                del place[key]
            else:
                place[key] = rng.choice(VALUES)
            break
        if not record:
            break
    text = json.dumps(record).encode()
    kind = rng.randrange(10)
    if kind == 0:
        return b"[" * rng.choice([100, 100_000]) + text
    return damaged(rng, text) if kind == 1 else text


@pytest.fixture
def folder(tmp_path):
    """The user's folder of settings, with other folders for what is kept."""
    for name in ("profiles", "suites", "hardware", "pulled", "tuned", "drafts"):
        (tmp_path / "config" / "specdec" / name).mkdir(parents=True)
    return tmp_path / "config" / "specdec"


def check(about: bytes, *args: object) -> None:
    seconds = 15.0 if "tune" in args else 5.0  # to simulate what a machine would do takes seconds by itself
    specdec(*args, seconds=seconds).assert_sound(f"{args}\n{about[:2000]!r}", seconds=seconds)


@pytest.mark.parametrize("shard", range(4))
def test_settings(shard, folder):
    for rng in cases(35, f"settings {shard}"):
        content = mapping(rng, SETTINGS)
        (folder / "config.yaml").write_bytes(content)
        check(content, "run", "x", "-n", 1, "-q", *rng.choice([(), ("-p", "demo")]))


@pytest.mark.parametrize("shard", range(4))
def test_profiles(shard, folder):
    for rng in cases(35, f"profiles {shard}"):
        content = mapping(rng, PROFILE, rng.choice(["", "target: demo\n", "target: a/b:Q4\n"]))
        settings = "".join(f"  {key}: {value(rng)}\n" for key in rng.sample(SETTINGS, 2))
        content += f"settings:\n{settings}".encode() if rng.random() < 0.3 else b""
        (folder / "profiles" / "own.yaml").write_bytes(content)
        listed = specdec("ls")
        listed.assert_sound(content[:2000])
        assert listed.code == 0 and b"demo" in listed.out
        check(
            content,
            *rng.choice([("show", "own"), ("show", "own", "--json"), ("check", "own"), ("run", "x", "-p", "own")]),
        )


@pytest.mark.parametrize("shard", range(4))
def test_suites(shard, folder):
    for rng in cases(25, f"suites {shard}"):
        path = folder / "suites" / f"own.{rng.choice(['yaml', 'yml', 'json', 'jsonl', 'txt'])}"
        content = mapping(rng, ["prompts", "description", "x"], rng.choice(["", "prompts: [a, {prompt: b, id: 1}]\n"]))
        if path.suffix.startswith(".js"):
            lines = [altered(rng, dict.fromkeys(rng.sample(ENTRY, 3), "a/b")) for _ in range(rng.randint(1, 4))]
            content = b"\n".join(lines)
        path.write_bytes(content)
        check(content, "compare", "--prompts", rng.choice([path, "own"]), "--limit", 1, "-n", 1)
        path.unlink()


@pytest.mark.parametrize("shard", range(2))
def test_hardware(shard, folder):
    base = "basis: derived\nverify_ms: {1: 20, 4: 23}\ndraft_ms: {1: 1, 8: 3}\n"
    for rng in cases(20, f"hardware {shard}"):
        content = mapping(rng, HARDWARE, rng.choice(["", base]))
        (folder / "hardware" / "own.yaml").write_bytes(content)
        check(content, "tune", "--what-if", "own")


@pytest.mark.parametrize("shard", range(2))
def test_kept_results(shard, folder):
    result = json.loads(KEPT.read_text())
    for rng in cases(25, f"results {shard}"):
        content = altered(rng, result)
        path = folder / "result.json"
        path.write_bytes(content)
        check(content, "compare", "def f", "-n", 1, "--against", path)


@pytest.mark.parametrize("shard", range(2))
def test_records(shard, folder):
    specdec("run", "x", "-n", 2, "-q", SPECDEC_DRAFT_TOKENS="auto").assert_sound("a run that keeps what passes cost")
    specdec("tune", "--seconds", 1, seconds=30.0).assert_sound("a tuning", seconds=30.0)
    records = [*Path(os.environ["XDG_CACHE_HOME"]).rglob("costs/*.json"), *folder.glob("tuned/*.json")]
    assert len(records) >= 2
    for rng in cases(20, f"records {shard}"):
        path = rng.choice([*records, folder / "pulled" / "own.json"])
        before = path.read_bytes() if path.exists() else b""
        content = altered(rng, json.loads(before) if before else PULLED)
        path.write_bytes(content)
        kept = [("run", "x", "-n", 2, "-q"), ("ls",), ("tune", "--what-if", "h200"), ("show", "demo")]
        check(content, *(rng.choice(kept) if before else rng.choice([("ls",), ("show", "own"), ("rm", "own", "-y")])))
        path.with_name(path.name + ".damaged").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        if before:
            path.write_bytes(before)
