"""Whatever goes wrong: one line that says what, one that says what to do, the right exit code. And small slips of the
command line, each told instead of passed over.
"""

import json
import os
import re
import resource
from functools import partial
from pathlib import Path

import ggufs
import pytest
from driver import DEMO, DRAFT, PROMPT, TARGET, assert_refused, call, piped, run, specdec, succeeded, told
from engines import loaded
from hub_pairs import with_other_tokenizer, with_other_words

from specdec_cli import IncompatiblePair, SpeculativeConfig
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import host, library

BRIEF = ("-n", 2, "-k", 3)

# --- models ------------------------------------------------------------------------------------------------------


def test_a_bad_model_file(tmp_path):
    whole, bad = DRAFT.read_bytes(), tmp_path / "bad.gguf"
    for says, content in (
        ("not a GGUF", b"PK\x03\x04" + bytes(1000)),
        ("damaged", whole[:5000]),
        ("cut short", whole[:-1000]),
    ):
        bad.write_bytes(content)
        assert_refused(run(PROMPT, "-m", bad, "-md", DRAFT), 1, says, "bad.gguf")
    assert_refused(run(PROMPT, "-p", "demo", "-md", bad), 1, "cut short", "bad.gguf")
    assert_refused(run(PROMPT, "-m", tmp_path / "none.gguf", "-md", DRAFT), 2, "no file", "none.gguf")
    assert_refused(run(PROMPT, "-p", "demo", "-md", DEMO), 2, "folder")
    bad.write_bytes(whole.replace(ggufs.text("llama"), ggufs.text("ylama"), 1))
    assert_refused(run(PROMPT, "-m", bad, "--drafter", "none"), 1, "ylama", "update")


def test_a_file_whose_name_is_not_text(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.gguf")
    path.symlink_to(DRAFT)
    done = succeeded("run", os.fsdecode(b"def \xff\xfe("), "-n", 2, "--drafter", "none", "-q", "-m", path)
    assert done.stdout and done.stderr == ""


def test_no_pair_and_half_a_pair():
    assert_refused(run(PROMPT, "-p", "def f(x):"), 2, "no profile", "leave out -p")
    assert_refused(run(PROMPT, "-m", TARGET), 2, "no draft", "-md", "--drafter none")
    assert_refused(run(PROMPT, "-md", DRAFT), 2, "target", "-m")


def test_a_target_beside_a_pair_takes_the_draft_of_the_pair_and_says_so():
    said = "note: -m replaces the target of demo; its draft stays: draft.gguf\n"
    for more in ((), ("-md", DRAFT), ("--drafter", "none"), ("-q",)):
        done = succeeded("run", "-p", "demo", "-n", 2, PROMPT, "-m", TARGET, *more)
        assert done.stderr.startswith(said) == (not more)


def test_a_draft_whose_tokens_nobody_knows(tmp_path):
    words = read_header(DRAFT).metadata["tokenizer.ggml.tokens"].values
    pair = (PROMPT, "-m", TARGET, "-md", with_other_tokenizer(tmp_path))
    says = (f"token 300 is {words[300].decode()!r}", repr("~" * len(words[300])), "--drafter none", "1 of 4,096")
    assert_refused(run(*pair), 3, *says)
    assert run(*pair, "--drafter", "none", "-n", 1).exit_code == 0


def test_a_draft_with_another_tokenizer_is_translated_in_chains_alone(tmp_path):
    pair = (PROMPT, "-m", TARGET, "-md", with_other_words(tmp_path))
    done = succeeded("run", *pair, "-n", 12, "-k", 3)
    assert done.stdout == succeeded("run", PROMPT, "-m", TARGET, "--drafter", "none", "-n", 12).stdout
    assert "4,095 of its 4,096 tokens are the target's, too" in " ".join(done.stderr.split())
    # Each model is timed with tokens of its own: ids of the target's may not be there.
    timed = succeeded("run", *pair, "-n", 40, "--drafter", "model", "-v")
    assert "not used" not in timed.stderr and "failed" not in timed.stderr
    needed = "needs a draft model with the target's tokenizer"
    for more in (("--tree", 3), ("--drafter", "model<ngram"), ("--drafter", "self")):
        assert_refused(run(*pair, *more), 3, needed, "token 300")
    assert_refused(call("tune", *pair[1:]), 3, needed)
    with loaded(target=TARGET, draft=pair[-1], threads=1) as session:
        assert session.settings_of(None, SpeculativeConfig("ngram", tree=3))
        for change in ({"tree": 3}, {"drafter": "model<ngram"}):
            text = ",".join(f"{name}={value}" for name, value in change.items())
            assert_refused(call("compare", *pair, "--vs", text), 3, needed, "token 300")
            with pytest.raises(IncompatiblePair, match=f"{needed}: token 300"):
                session.generate(PROMPT, None, SpeculativeConfig(**change))


def test_a_chat_template_is_used(tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    key = ggufs.key("tokenizer.chat_template", ggufs.STRING, ggufs.text(template))
    path = ggufs.with_keys(DRAFT, tmp_path / "chat.gguf", key)
    common = ("--drafter", "none", "-n", 8)
    chat = told("run", "hello", "--system", "be brief", "-m", path, *common)
    same = told("run", "system: be brief\nuser: hello\n", "-m", DRAFT, *common)
    assert (chat["tokens"], chat["prompt_tokens"]) == (same["tokens"], same["prompt_tokens"])
    raw = told("run", "hello", "-m", path, *common, "--raw")
    assert raw["tokens"] == told("run", "hello", "-m", DRAFT, *common)["tokens"]


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("-n 0", "max-tokens"),
        ("-k many", "draft tokens"),
        ("-k 512", "draft tokens"),
        ("--tree 65", "1 (a chain) to 64"),
        ("--tree 4 --drafter model<ngram", "drafts chains"),
        ("--temp nan", "temperature"),
        ("--chat-template-kwargs [1]", "a JSON object"),
        ("--chat-template-kwargs {", "a JSON object"),
        ("-ngl 4294967296", "gpu-layers"),
        ("-k auto --draft-min-p 1", "draft-min-p"),
        ("--stop ", "stop"),
        ("--baseline -q", "nowhere to report"),
        ("-n 1.5", "run -h"),
        ("--nonsense", "run -h"),
        ("a b", "run -h"),
        ("-fa", "no option -fa"),
        ("-mdx.gguf", "-md x.gguf"),
    ],
)
def test_a_senseless_setting(flags, says):
    """Others are refused where settings are made: see tests/settings and tests/decoding/test_sampling.py."""
    assert_refused(run(PROMPT, *flags.split(" ")), 2, says)


def test_numbers_values_and_long_short_options_are_no_slips():
    for flags in (["-n2", "-k3"], ["-ngl=0", "-td", 1, "-n", 2], ["--stop", "-cd", "-n2"], ["-qn2"]):
        assert succeeded("run", *flags, PROMPT, "-m", TARGET, "-md", DRAFT).stdout
    assert succeeded("run", "-n2", "--raw", "--", "-fa").stdout


def test_layers_for_a_gpu_that_there_is_not(monkeypatch):
    monkeypatch.setattr(library, "supports_gpu", lambda: False)
    (note,) = told("run", PROMPT, *BRIEF, "-ngl", 99, "-ngld", 5)["notes"]
    assert note.startswith("-ngl 99 and -ngld 5 do nothing: ")
    assert "-ngl" not in succeeded("run", PROMPT, *BRIEF, "-ngl", 0).stderr
    monkeypatch.setattr(library, "supports_gpu", lambda: True)
    assert "does nothing" not in succeeded("run", PROMPT, *BRIEF, "-ngl", 99).stderr


def test_memory_that_is_not_there(monkeypatch):
    """Main memory counts for layers that are not on the GPU."""
    monkeypatch.setattr(library, "supports_gpu", lambda: False)
    assert_refused(run(PROMPT, "-c", 10**9), 1, "1,000,000,000 tokens", "GB", "-c")
    monkeypatch.setattr(library, "supports_gpu", lambda: True)
    monkeypatch.setattr(host, "available_memory", lambda: 10**6)
    assert_refused(run(PROMPT, "-n", 2, "-ngl", 0), 1, "256 tokens", "1.0 MB are free", "-c")
    assert run(PROMPT, "-n", 2, "-ngl", 99, "-ngld", 0).exit_code == 0


def test_out_of_memory():
    """For a context of 262,144 tokens."""
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (1 << 30, 1 << 30))
    done = specdec("run", PROMPT, "-n", 2, "-c", 1 << 18, preexec_fn=limit)
    assert_refused(done, 1, "insufficient memory", "-c")


# --- prompts -----------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_none(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("\n\t\n")
    assert_refused(run(""), 2, "empty")
    assert_refused(run("-f", path), 2, "empty")
    assert_refused(piped(b"", "compare", "-"), 2, "the prompt is empty")
    for name in (".", "x" * 300, "/proc/self/mem"):
        assert_refused(run("-f", tmp_path / name), 2, "cannot read the prompt file", Path(name).name)
    assert_refused(run("-f", "/dev/zero"), 2, "too long for a prompt", "/dev/zero")
    path.write_bytes("# caf\u00e9\n".encode("latin-1"))
    assert_refused(run("-f", path), 2, "not UTF-8", "0xe9", "at 5", f"iconv -t UTF-8 {path}")
    assert_refused(piped(b"ab\xff", "run"), 2, "standard input", "0xff", "iconv")
    nothing = piped(b"", "run")
    assert nothing.exit_code == 2 and "Usage: " in nothing.stdout and "Traceback" not in nothing.stderr


def test_an_argument_a_file_and_a_pipe_give_the_same_prompt_and_are_joined(tmp_path):
    def understood(done):
        found = json.loads(done.stdout)
        return found["prompt_tokens"], found["tokens"]

    text, asked = b"\ndef f(x):\r\n\n", ("-n", 4, "--json")
    (tmp_path / "p.txt").write_bytes(text)
    said = understood(succeeded("run", "\ndef f(x):", *asked))
    assert understood(succeeded("run", "-f", tmp_path / "p.txt", *asked)) == said
    for dash in ((), ("-",), ("-f", "-")):
        assert understood(piped(text, "run", *dash, *asked)) == said
    (tmp_path / "p.txt").write_text("B = 2\n")
    joined = piped(b"C = 3\nD =\n", "run", "A = 1", "-f", tmp_path / "p.txt", *asked)
    assert understood(joined) == understood(succeeded("run", "A = 1\nB = 2\nC = 3\nD =", *asked))


def test_a_prompt_longer_than_the_context(tmp_path):
    (tmp_path / "long.txt").write_text("x = 1\n" * 2000)
    for flags, says in (([], "Shorten"), (["-c", "300"], "larger -c")):
        assert_refused(run("-f", tmp_path / "long.txt", *flags), 1, "tokens and fills the context", says)


def test_a_context_longer_than_the_training_is_noted_and_used(tmp_path):
    (tmp_path / "long.txt").write_text("x = 1\n" * 270)
    result = told("run", "-f", tmp_path / "long.txt", "-c", 4096, "-n", 2)
    assert result["prompt_tokens"] > 1024 and result["completion_tokens"] == 2
    assert any("1,024" in note for note in result["notes"])


# --- answers -----------------------------------------------------------------------------------------------------


def test_an_answer_ends_where_the_context_does():
    result = told("run", "def f(x):", "-c", 256, "-n", 5000)
    assert result["finish_reason"] == "context"
    assert 254 <= result["prompt_tokens"] + result["completion_tokens"] <= 257


def test_an_answer_ends_at_a_line_break():
    found = told("run", "def f(x):\n    y = x\n    return", "-n", 40, "--stop", r"\n")
    assert found["finish_reason"] == "stop_string" and "\n" not in found["text"]


def test_a_seed_is_told_where_it_gives_the_answer_again(tmp_path):
    common, trace = ("run", PROMPT, "--temp", 1, *BRIEF), tmp_path / "run.jsonl"
    assert "seed" not in succeeded(*common, "--trace", trace).stderr + succeeded("replay", trace).stderr
    drawn = succeeded(*common, "--accept", "match", "-n", 20)
    seed = re.findall("seed[= ]([0-9]+)", drawn.stderr)[0]  # a narrow line has "seed 7"
    assert succeeded(*common, "--accept", "match", "-n", 20, "-s", seed).stdout == drawn.stdout
