"""Settings, profiles, suites and hardware that are damaged, hostile or only odd."""

import json

import pytest
from damage import damaged, spoilt
from fuzzing import cases, specdec

from specdec_cli.settings.options import OPTIONS

SETTINGS = [*OPTIONS, "temp", "profile", "nonsense"]
PROFILE = [
    *("target", "draft", "description", "why", "licence", "gated", "download_gb", "memory_gb", "fits_gb", "settings"),
    *("sources", "verified", "name", "folder"),
]
HARDWARE = ["basis", "verify_ms", "repeated_ms", "draft_ms", "other_ms", "description", "source", "name"]
MACHINE = "basis: derived\nverify_ms: {1: 20, 4: 23}\ndraft_ms: {1: 1, 8: 3}\n"
ENTRY = ["prompt", "id", "category", "turns", "task_id", "question_id"]
SCALARS = [
    *("", "~", "null", "true", "no", "0", "-1", "1", "64", "0.5", "1e-300", "1e999", "-1e308", ".inf", ".nan", "-0"),
    *("9" * 18, "9" * 19, "9" * 400, "9" * 4300, "9" * 60_000, "0x" + "f" * 5000, "1:1:1", "1" + ":59" * 20_000 + ".5"),
    *("4:3:4", "99:99:99", "2026-01-02", "2026-99-99", "auto", "demo", "x.gguf", "a/b:Q4", "/dev/zero", "[" * 30_000),
    *("'text'", '"a\\0b"', '"\\ud800"', '"\\e]52;c;eA==\\a"', '"\\n\\n"', "word " * 10_000, "'" + "é" * 20_000 + "'"),
    *("&a [*a]", "*a", "!!python/object/apply:os.getcwd []", "!!binary YQ==", "!!set {a, b}", "<<", "{<<: {a: 1}}"),
    *("{1: 20, 4: 23}", "{1: 1e-6, 8: 9999999}", "{1: 20, 999999999999999999: 23}", "{0: 1}", "{1: 1e400}", "measured"),
]
BOMBS = [
    "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(60)) + "target: *a60\n",
    "a0: &a0 {x: 1}\n" + "".join(f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}], y{i}: 1}}\n" for i in range(60)),
    "prompts:\n" + "".join(f"- &b{i + 1} [*b{i}, *b{i}]\n" if i else "- &b1 [x]\n" for i in range(60)),
    *("# \n" * 10_000_000, "a: b\n---\na: b\n", "\t", "\0", "- " * 50_000, "? " * 50_000, "\ufeffa: 1"),
    *("x" * 30_000_000, "[" + "1, " * 20_000 + "]", "{" + "a: 1, " * 9000 + "}", '{"prompt": 1}\n' * 200_000),
]


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


@pytest.fixture
def folder(tmp_path):
    """The user's folder of settings, with other folders for what is kept."""
    for name in ("profiles", "suites", "hardware"):
        (tmp_path / "config" / "specdec" / name).mkdir(parents=True)
    return tmp_path / "config" / "specdec"


def check(about: bytes, *args: object) -> None:
    seconds = 15.0 if "tune" in args else 5.0  # to simulate what a machine would do takes seconds by itself
    specdec(*args, seconds=seconds).assert_sound(f"{args}\n{about[:2000]!r}", seconds=seconds)


@cases(140)
def test_settings(folder, chance):
    content = mapping(chance, SETTINGS)
    (folder / "config.yaml").write_bytes(content)
    check(content, "run", "x", "-n", 1, "-q", *chance.choice([(), ("-p", "demo")]))


@cases(140)
def test_profiles(folder, chance):
    content = mapping(chance, PROFILE, chance.choice(["", "target: demo\n", "target: a/b:Q4\n"]))
    settings = "".join(f"  {key}: {value(chance)}\n" for key in chance.sample(SETTINGS, 2))
    content += f"settings:\n{settings}".encode() if chance.random() < 0.3 else b""
    (folder / "profiles" / "own.yaml").write_bytes(content)
    listed = specdec("ls")
    listed.assert_sound(content[:2000])
    assert listed.code == 0 and b"demo" in listed.out
    command = chance.choice([("show", "own"), ("show", "own", "--json"), ("check", "own"), ("run", "x", "-p", "own")])
    check(content, *command)


@cases(100)
def test_suites(folder, chance):
    path = folder / "suites" / f"own.{chance.choice(['yaml', 'yml', 'json', 'jsonl', 'txt'])}"
    base = chance.choice(["", "prompts: [a, {prompt: b, id: 1}]\n"])
    content = mapping(chance, ["prompts", "description", "x"], base)
    if path.suffix.startswith(".js"):
        first, *more = (
            json.dumps(dict.fromkeys(chance.sample(ENTRY, 3), "a/b")).encode() for _ in range(chance.randint(1, 4))
        )
        content = b"\n".join([*more, spoilt(chance, first)])
    path.write_bytes(content)
    check(content, "compare", "--prompts", chance.choice([path, "own"]), "--limit", 1, "-n", 1)


@cases(40)
def test_hardware(folder, chance):
    content = mapping(chance, HARDWARE, chance.choice(["", MACHINE]))
    (folder / "hardware" / "own.yaml").write_bytes(content)
    check(content, "tune", "--what-if", "own")
