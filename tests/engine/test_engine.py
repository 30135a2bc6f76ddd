"""The library: answers, streams, what is read again and what is not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from driver import DRAFT, TARGET, run
from engines import loaded
from tiny import write

import specdec_cli
from specdec_cli import Done, Prefill, SamplingParams, SpecdecError, SpeculativeConfig, Step, compare, load
from specdec_cli.engine import contexts
from specdec_cli.llama.model import Model

PROMPT = "def median(values):\n"
SHORT = SamplingParams(max_tokens=24)
FIXED = SpeculativeConfig(draft_tokens=4)
ALONE = SpeculativeConfig(drafter="none")
EXAMPLES = [
    pytest.param(code, id=f"{page}-{number}")
    for page in ("../README.md", "python-api.md", "plugins.md")
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / page).read_text("utf-8"), re.DOTALL)
    )
]


@pytest.fixture(scope="module")
def session():
    with loaded(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as session:
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_of_the_pages_run(code):
    exec(compile(code, "example", "exec"), {})


@pytest.mark.slow
def test_the_examples_of_the_pages_are_typed(tmp_path):
    """As a user's program is checked: strictly, against the package's own types."""
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example.values[0])
    untyped = ["--allow-untyped-defs", "--allow-untyped-calls"]  # the pages leave out annotations
    checked = [sys.executable, "-m", "mypy", "--strict", *untyped, "--cache-dir", tmp_path / "cache", tmp_path]
    done = subprocess.run(checked, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_package_offers_what_it_names():
    assert all(getattr(specdec_cli, name) for name in specdec_cli.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = specdec_cli.nothing_of_this_name


def test_an_answer_is_that_of_the_command_line(session):
    answer = session.generate(PROMPT, SHORT)
    said = answer.text if answer.text.endswith("\n") else f"{answer.text}\n"
    assert said == run(PROMPT, "-n", 24, "-k", 4, "-q").stdout
    assert answer.tokens == session.generate(PROMPT, SHORT, ALONE).tokens
    assert (answer.finish_reason, answer.metrics.emitted, answer.lossless) == ("length", 24, True)


def test_a_stream_is_prefills_steps_and_one_done(session):
    events = list(session.stream(PROMPT, SHORT))
    kinds = [type(event) for event in events]
    assert kinds[0] is Prefill and kinds.count(Done) == 1 and kinds[-1] is Done
    text = "".join(token.text for event in events if isinstance(event, Step) for token in event.tokens)
    assert text + events[-1].tail == session.generate(PROMPT, SHORT).text


@pytest.mark.parametrize(("kind", "tree"), [("llama", 1), ("llama", 3), ("mamba", 1), ("lfm2", 1), ("nemotron_h", 1)])
def test_what_is_reused_gives_the_answer_that_reading_anew_does(tmp_path, kind, tree):
    target, draft = write(tmp_path / "t.gguf", kind), write(tmp_path / "d.gguf", kind, noise=0.3)
    with loaded(
        target=target, draft=draft, speculative=SpeculativeConfig(draft_tokens=3, tree=tree), threads=1
    ) as tiny:
        first = tiny.generate("the end", SHORT)
        prompts = [first.prompt + first.tokens[:9], first.prompt + first.tokens, first.prompt[:3], first.prompt]
        for prompt in prompts:
            again = tiny.generate(prompt, SHORT)
            fresh = tiny.start(prompt, SHORT, reuse=False)
            list(fresh)
            assert again.tokens == fresh.result.tokens
            tiny.generate(first.prompt, SHORT)


def test_another_prompt_shares_only_its_beginning_and_with_bitwise_nothing(session):
    session.generate(PROMPT + "    # one", SHORT)
    answer = session.generate(PROMPT + "    # two", SHORT)
    assert 0 < answer.cached_tokens < len(answer.prompt)
    assert answer.tokens == session.generate(PROMPT + "    # two", SHORT, ALONE).tokens
    assert session.generate(PROMPT, SHORT, SpeculativeConfig(bitwise=True)).cached_tokens == 0


def test_a_stream_can_be_abandoned(session):
    expected = session.generate(PROMPT, SHORT).tokens
    for event in session.stream(PROMPT, SHORT):
        if isinstance(event, Step) and event.drafted:
            break
    kept = session.stream(PROMPT, SHORT)
    next(kept)
    assert session.generate(PROMPT, SHORT).tokens == expected
    other = session.stream(PROMPT, SHORT)
    next(other)
    session.generate("x = 1\n" * 120, SHORT)  # in longer contexts
    for left in (kept, other):
        with pytest.raises(SpecdecError, match="another answer has started"):
            list(left)
    assert session.generate(PROMPT, SHORT).tokens == expected


@pytest.mark.parametrize(("most", "expected"), [(2048, 1024), (1000, 768)])
def test_a_context_grows_to_twice_its_size_or_where_that_does_not_fit_to_what_is_needed(monkeypatch, most, expected):
    def require(header, n_ctx, *_):
        if n_ctx > most and "draft" in header.name:
            raise SpecdecError("no room", "")
        return 0

    monkeypatch.setattr(contexts.memory, "require", require)
    with loaded(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as session:
        for tokens, n_ctx in ((300, 512), (520, expected), (200, expected)):
            assert session.generate([5] * tokens, SamplingParams(max_tokens=8)).metrics.emitted == 8
            assert [own.opened.n_ctx for own in session.models.all] == [n_ctx, n_ctx]
        assert session.drafts and session.notes == ()


@pytest.mark.parametrize(
    ("prompt", "sampling", "speculative", "says"),
    [
        ([], {}, {}, "no tokens"),
        ([-1], {}, {}, "outside the vocabulary"),
        ([{"role": "user"}], {}, {}, "not a message"),
        ([{"role": "user", "content": "hello"}], {}, {}, "chat template"),
        (PROMPT, {"temperature": -1}, {}, "temperature"),
        (PROMPT, {"max_tokens": "many"}, {}, "max_tokens is 'many'"),
        (PROMPT, {"stop": ("",)}, {}, "stop string"),
        (PROMPT, {"logprobs": -1}, {}, "logprobs cannot be -1"),
        (PROMPT, {"grammar": 'root ::= "a"'}, {}, "grammar is .* not a Grammar"),
        (PROMPT, {"temperature": 1}, {"bitwise": True, "accept": "rejection"}, "--bitwise promises"),
        (PROMPT, {}, {"drafter": "nobody"}, "no drafter 'nobody'"),
        (PROMPT, {}, {"accept": "maybe"}, "accept cannot be maybe"),
        (PROMPT, {}, {"drafter": "small>model"}, "no second draft model"),
        (PROMPT, {}, {"drafter": "self"}, "is not for self"),
        (PROMPT, {}, {"drafter": "mtp"}, "is not for mtp"),
        (PROMPT, {}, {"ngram_corpus": ("src",)}, "can't change its corpus"),
    ],
)
def test_what_makes_no_sense_or_was_not_loaded_is_refused(session, prompt, sampling, speculative, says):
    with pytest.raises(SpecdecError, match=says) as caught:
        session.generate(prompt, SamplingParams(**sampling), SpeculativeConfig(**speculative))
    assert caught.value.hint


def test_auto_means_the_heads_in_the_targets_own_file(tmp_path):
    heads = SpeculativeConfig(drafter="mtp")
    with loaded(target=write(tmp_path / "model.gguf", "glm4moe-mtp"), speculative=heads, threads=1) as session:
        assert session.settings_of(None, SpeculativeConfig(drafter="auto")).drafter == "ngram+mtp"


def test_auto_means_what_is_loaded():
    with loaded(target=TARGET, draft=DRAFT, speculative=SpeculativeConfig(drafter="ngram"), threads=1) as session:
        assert session.settings_of(None, SpeculativeConfig(drafter="auto")).drafter == "ngram"


def test_a_prediction_is_whole_for_a_part_of_an_answer():
    with loaded(target=TARGET, ctx=1024, threads=1, speculative=SpeculativeConfig(drafter="ngram")) as session:
        asked = SamplingParams(max_tokens=4), SpeculativeConfig(prediction="x y " * 1500)
        next(session.stream([5, 6], *asked))
        settings = session.settings_of(*asked)
        assert [len(session.drafting._predicted(settings, written)) for written in (0, 500)] == [1032, 2032]


def test_a_prediction_is_read_as_far_as_the_context_reaches(monkeypatch):
    read, tokenize = [], Model.tokenize

    def noted(model, text, **how):
        read.append(len(text))
        return tokenize(model, text, **how)

    monkeypatch.setattr(Model, "tokenize", noted)
    with loaded(target=TARGET, ctx=256, threads=1, speculative=SpeculativeConfig(drafter="ngram")) as session:
        asked = SamplingParams(max_tokens=2**31 - 1), SpeculativeConfig(prediction="x" * 100_000)
        next(session.stream([5, 6], *asked))
    assert 256 < max(read) < 50_000


def test_a_closed_session_computes_nothing_more():
    with load(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        session = engine.session()
        last, unread = (session.stream("x", SHORT) for _ in range(2))
        next(last)
        session.close()
        for go_on in (
            lambda: list(last),
            lambda: next(unread),
            lambda: session.generate("x"),
            lambda: compare(engine, [PROMPT], sampling=SHORT, progress=lambda *_: engine.close()),
        ):
            with pytest.raises(SpecdecError, match="session was closed"):
                go_on()
        assert session.models.target.text is None


def test_tokens_cannot_be_read_once_the_weights_are_freed():
    with load(target=TARGET, speculative=ALONE, threads=1) as engine:
        model = engine.weights.target.model
    for ask in (model.piece, model.is_end, lambda token: engine.detokenize([token])):
        with pytest.raises(SpecdecError, match="was closed"):
            ask(300)


def test_threads_stay_as_they_are_while_passes_must_agree():
    with loaded(target=TARGET, speculative=SpeculativeConfig(drafter="none")) as session:
        for bitwise in (True, False):
            session.generate(PROMPT, SHORT, SpeculativeConfig(bitwise=bitwise))
            assert session.models.target.costs.watch.on is not bitwise


@pytest.fixture(scope="module")
def engine():
    with load(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        yield engine


def test_streams_of_one_engine_go_on_side_by_side(engine, session):
    prompts = [PROMPT, "class Stack:\n"]
    streams, answers = [engine.stream(prompt, SHORT, raw=True) for prompt in prompts], [[], []]
    for _ in range(40):
        for stream, tokens in zip(streams, answers, strict=True):
            event = next(stream, None)
            tokens.extend([token.id for token in event.tokens] if isinstance(event, Step) else [])
    assert answers == [session.generate(prompt, SHORT, raw=True).tokens for prompt in prompts]
    assert engine.generate(PROMPT, SHORT, raw=True).cached_tokens, "a session is used again, with what it has read"
