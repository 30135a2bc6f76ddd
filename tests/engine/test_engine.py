"""The library: answers, streams, what is read again and what is not; conversations, threads, downloads, notebooks."""

import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ggufs
import numpy as np
import pytest
from driver import DRAFT, TARGET, run
from engines import loaded, wrapped_rule
from hub_pairs import BIG, BIG_FILE, NAME, SMALL, SMALL_FILE, wait_until

import specdec_cli
from specdec_cli import Done, Prefill, SamplingParams, SpecdecError, SpeculativeConfig, Step, UsageError, compare
from specdec_cli import load as load_engine
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.engine import contexts
from specdec_cli.gguf.memory import cache_bytes
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import host
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.model import Model
from specdec_cli.measure.suites import SuitePrompt, fitting

PROMPT = "def median(values):\n"
TOKENS = [*range(5, 45)]
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
def engine():
    with load_engine(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def session(engine):
    return engine.session()


def test_what_the_file_suppresses_is_never_written(engine, tmp_path):
    sampling = SamplingParams(max_tokens=24, temperature=0)
    usual = {*engine.generate(PROMPT, sampling).tokens}
    keys = ggufs.values("tokenizer.ggml.suppress_tokens", ggufs.I32, sorted(usual))
    target = ggufs.with_keys(TARGET, tmp_path / "target.gguf", keys)
    with load_engine(target=target, draft=DRAFT, speculative=FIXED, threads=1) as other:
        drafted, alone = (other.generate(PROMPT, sampling, speculative) for speculative in (FIXED, ALONE))
    assert drafted.tokens == alone.tokens and not usual & {*drafted.tokens}
    assert drafted.metrics.accepted


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
def test_what_is_reused_gives_the_answer_that_reading_anew_does(load, kind, tree):
    how = SpeculativeConfig(draft_tokens=3, tree=tree)
    with loaded(target=load(kind).path, draft=load(kind, 0.3).path, speculative=how, threads=1) as tiny:
        first = tiny.generate("the end", SHORT)
        for prompt in (first.prompt + first.tokens[:9], first.prompt + first.tokens, first.prompt[:3], first.prompt):
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
def test_a_context_grows_to_twice_its_size_or_to_what_is_needed(monkeypatch, tmp_path, most, expected):
    draft = tmp_path / "draft.gguf"
    draft.symlink_to(TARGET)  # with a context as large as the target's

    def require(header, n_ctx, *_):
        if n_ctx > most and "draft" in header.name:
            raise SpecdecError("no room", "")
        return 0

    monkeypatch.setattr(contexts.memory, "require", require)
    with loaded(target=TARGET, draft=draft, speculative=FIXED, threads=1) as session:
        for tokens, n_ctx in ((300, 512), (520, expected), (200, expected)):
            assert session.generate([5] * tokens, SamplingParams(max_tokens=8)).metrics.emitted == 8
            assert [model.open_kv.n_ctx for model in session.models.all] == [n_ctx, n_ctx]
        assert session.drafts and session.notes == ()


def test_a_recurrent_state_needs_memory_for_each_snapshot(load, monkeypatch):
    path = load("qwen35").path
    needed = cache_bytes(read_header(path), 256, rows=5)
    with loaded(target=path, speculative=replace(FIXED, drafter="ngram"), threads=1) as session:
        monkeypatch.setattr(host, "available_memory", lambda: needed - 1)
        with pytest.raises(SpecdecError, match="256 tokens") as caught:
            session.generate(PROMPT, SHORT)
        assert "-k" in caught.value.hint
        monkeypatch.setattr(host, "available_memory", lambda: needed)
        session.generate(PROMPT, SHORT)
        assert [model.cache for model in contexts.memory_of(session.models)] == [needed]


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
        (PROMPT, {"grammar": 'root ::= "a"'}, {}, "grammar is .* not a Grammar"),
        (PROMPT, {"temperature": 1}, {"bitwise": True, "accept": "rejection"}, "--bitwise promises"),
        (PROMPT, {}, {"drafter": "nobody"}, "no drafter 'nobody'"),
        (PROMPT, {}, {"accept": "maybe"}, "accept cannot be maybe"),
        (PROMPT, {}, {"drafter": "small>model"}, "no second draft model"),
        (PROMPT, {}, {"drafter": "mtp"}, "is not for mtp"),
        (PROMPT, {}, {"ngram_corpus": ("src",)}, "can't change once it is read"),
    ],
)
def test_what_makes_no_sense_or_was_not_loaded_is_refused(session, prompt, sampling, speculative, says):
    with pytest.raises(SpecdecError, match=says) as caught:
        session.generate(prompt, SamplingParams(**sampling), SpeculativeConfig(**speculative))
    assert caught.value.hint


def test_auto_means_what_is_loaded(load):
    """Heads in the target's own file, too."""
    for models, drafter, chosen in (
        ({"target": load("glm4moe-mtp").path}, "mtp", "ngram+mtp"),
        ({"target": TARGET, "draft": DRAFT}, "ngram", "ngram"),
    ):
        with loaded(**models, speculative=SpeculativeConfig(drafter=drafter), threads=1) as session:
            assert session.settings_of(None, SpeculativeConfig(drafter="auto")).drafter == chosen


def test_a_prediction_is_whole_for_a_part_of_an_answer_and_read_as_far_as_the_context_reaches(monkeypatch):
    read, tokenize = [], Model.tokenize

    def noted(model, text, **how):
        read.append(len(text))
        return tokenize(model, text, **how)

    monkeypatch.setattr(Model, "tokenize", noted)
    with loaded(target=TARGET, ctx=1024, threads=1, speculative=SpeculativeConfig(drafter="ngram")) as session:
        prediction = SpeculativeConfig(prediction="x y " * 100_000)
        next(session.stream([5, 6], SamplingParams(max_tokens=2**31 - 1), prediction))
        part = session.settings_of(SamplingParams(max_tokens=4), prediction)
        assert [len(session.drafting._predicted(part, written)) for written in (0, 500)] == [1032, 2032]
    assert 1024 < max(read) < 100_000


def test_a_closed_session_computes_nothing_more():
    with load_engine(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        session, model = engine.session(), engine.weights.target.model
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
        assert session.models.target.kv is None
    for ask in (model.piece, model.is_end, lambda token: engine.detokenize([token])):
        with pytest.raises(SpecdecError, match="was closed"):
            ask(300)


def test_threads_stay_as_they_are_while_passes_must_agree():
    with loaded(target=TARGET, speculative=SpeculativeConfig(drafter="none")) as session:
        for bitwise in (True, False):
            session.generate(PROMPT, SHORT, SpeculativeConfig(bitwise=bitwise))
            assert session.models.target.costs.thread_tuner.on is not bitwise


def test_streams_of_one_engine_go_on_side_by_side(engine, session):
    prompts = [PROMPT, "class Stack:\n"]
    streams, answers = [engine.stream(prompt, SHORT, raw=True) for prompt in prompts], [[], []]
    for _ in range(40):
        for stream, tokens in zip(streams, answers, strict=True):
            event = next(stream, None)
            tokens.extend([token.id for token in event.tokens] if isinstance(event, Step) else [])
    assert answers == [session.generate(prompt, SHORT, raw=True).tokens for prompt in prompts]
    assert engine.generate(PROMPT, SHORT, raw=True).cached_tokens, "a session is used again, with what it has read"


# What a program expects besides answers


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_are_the_targets_own(session, temperature):
    rows = []

    def watching(rule):
        def judge(draft, logits, sampler, rng):
            rows.append(np.array(logits[0], dtype=np.float64))
            return rule(draft, logits, sampler, rng)

        return judge

    sampling = SamplingParams(temperature=temperature, max_tokens=20, seed=1, logprobs=3)
    found = [token for step in session.generate(PROMPT, sampling).metrics.history for token in step.tokens]
    with wrapped_rule(session, watching):
        alone = session.start(PROMPT, sampling, SpeculativeConfig(drafter="none"))
        own = [token.id for event in alone if isinstance(event, Step) for token in event.tokens]
    assert [token.id for token in found] == own and len(rows) == 20
    for token, row in zip(found, rows, strict=True):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert token.logprobs.logprob == pytest.approx(expected[token.id], abs=0.01)
        assert [each for each, _ in token.logprobs.top] == np.argsort(-row)[:3].tolist()
        assert [p for _, p in token.logprobs.top] == pytest.approx(np.sort(expected)[::-1][:3], abs=0.01)


def test_several_answers_to_a_prompt_read_it_once(load):
    prompt, sampling = [*range(5, 25)] * 20, SamplingParams(temperature=1.0, seed=7, max_tokens=12)
    how = SpeculativeConfig(drafter="ngram", draft_tokens=3)
    with load_engine(target=load("glm4moe-echo").path, threads=1, speculative=how) as engine:
        found = engine.generate(prompt, sampling, n=4)
        alone = [engine.generate(prompt, SamplingParams(temperature=1.0, seed=7 + i, max_tokens=12)) for i in range(4)]
        assert [each.tokens for each in found] == [own.tokens for own in alone]
        assert [each.seed for each in found] == [7, 8, 9, 10]
        assert found[0].metrics.prompt_tokens == 400 and sum(each.metrics.prompt_tokens for each in found[1:]) < 60
        lists = engine.generate([prompt, prompt[:9]], SamplingParams(max_tokens=3), n=2)
        assert [len(each.prompt) for each in lists] == [400, 400, 9, 9]
        for wrong, says in (({"n": 0}, "n=0"), ({"parallel": 0}, "parallel=0"), ({"parallel": 225}, "one pass")):
            with pytest.raises(UsageError, match=says):
                engine.generate([prompt], **wrong)


def test_a_conversation_keeps_its_messages_and_reads_only_what_is_new(chatting):
    _, target, _, draft = chatting
    with load_engine(target=target, draft=draft, threads=1, sampling=SamplingParams(max_tokens=8)) as engine:
        chat = engine.chat(system="Be brief.")
        first = chat.say("hello")
        second = chat.say("and then?")
        assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
        assert chat.messages[2]["content"] == first.text
        assert second.cached_tokens >= len(first.prompt) + len(first.tokens) - 1
        streamed = "".join(chat.stream_text("more"))
        assert chat.messages[-1]["content"] == streamed
        for _ in chat.stream_text("and more"):
            break
        assert chat.messages[-1]["role"] == "assistant" and len(chat.messages) == 9
        with pytest.raises(SpecdecError):
            chat.say("x " * 5000)
        assert len(chat.messages) == 9


def test_variables_of_the_template_are_the_answers_or_else_the_engines(chatting):
    calm, mad = (SamplingParams(max_tokens=1, chat_template_kwargs={"mood": mood}) for mood in ("calm", "mad"))
    with load_engine(target=chatting[1], threads=1, sampling=calm) as engine:
        usual = len(engine.tokenize("hello"))
        assert len(engine.generate("hello").prompt) == len(engine.chat(sampling=calm).say("hello").prompt) == usual
        chat = engine.chat(sampling=mad)
        answers = [engine.generate("hello", mad), *engine.generate(["hello"], mad), chat.say("hello")]
        assert {len(answer.prompt) for answer in answers} == {usual - 1}
        changed = replace(engine.weights.settings, chat_template_kwargs='{"mood": "mad"}')
        (tokens,) = fitting(engine.session(), changed, [SuitePrompt("1", "given", "hello")], 99, None, False).values()
        assert len(tokens) == usual - 1
        for wrong in ("calm", ["calm"], {"mood": {"calm"}}):
            with pytest.raises(UsageError, match=r"chat.template.kwargs"):
                engine.generate("hello", SamplingParams(chat_template_kwargs=wrong))


def holding(entered, leave):
    """Lets a rule wait."""

    def wrapped(rule):
        def judge(*args):
            entered.set()
            leave.wait(30)
            return rule(*args)

        return judge

    return wrapped


def test_a_second_thread_in_a_session_is_refused_at_once(session):
    entered, leave = threading.Event(), threading.Event()
    first = session.start(PROMPT, SamplingParams(max_tokens=3))
    with wrapped_rule(session, holding(entered, leave)), ThreadPoolExecutor(1) as pool:
        pool.submit(list, first)
        assert entered.wait(30)
        for compute in (
            lambda: session.open(5),
            lambda: [*session.events(TOKENS, 0)],
            lambda: session.paired_speeds(TOKENS, TOKENS, 0, session.settings),
            lambda: session.divergence(TOKENS, Transcript(()), Transcript(()), 0, session.settings),
            lambda: session.generate("import"),
        ):
            with pytest.raises(SpecdecError, match="another thread") as refused:
                compute()
        leave.set()
    assert "engine.session()" in refused.value.hint and first.result.complete


@pytest.mark.parametrize(
    ("function", "work", "found"),
    [
        ("llama_decode", lambda session: session.generate(PROMPT), "the session was closed"),
        ("llama_decode", lambda session: [*session.events(TOKENS, 0)], "the session was closed"),
        ("llama_init_from_model", lambda session: session.open(900), "the session was closed"),
        ("llama_tokenize", lambda session: session.tokenize("x"), ""),
    ],
)
def test_closing_an_engine_waits_for_another_thread_and_lets_no_other_begin(monkeypatch, function, work, found):
    entered, leave, compute = threading.Event(), threading.Event(), getattr(lib, function)
    engine = load_engine(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1)
    session = engine.session()
    session.open(len(TOKENS))

    def held(*args):
        entered.set()
        leave.wait(30)
        return compute(*args)

    monkeypatch.setattr(lib, function, held)
    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(work, session)
        assert entered.wait(30)
        closing = pool.submit(engine.close)
        wait_until(lambda: engine._parallel._closed)
        assert not wait([closing], 0.2).done
        with pytest.raises(SpecdecError, match="the engine was closed"):
            engine.generate(TOKENS)
        leave.set()
        closing.result(30)
        with pytest.raises(SpecdecError, match=found) if found else nullcontext():
            working.result(30)


def test_closing_an_engine_ends_each_answer_with_an_error():
    entered, leave = threading.Event(), threading.Event()
    engine = load_engine(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1, ctx=8192)
    session = engine.session()
    held = session.start(PROMPT)
    free = engine.stream(PROMPT, SamplingParams(max_tokens=5000))
    next(free)
    with wrapped_rule(session, holding(entered, leave)), ThreadPoolExecutor(3) as pool:
        first = pool.submit(list, held)
        assert entered.wait(30)
        second, closing = pool.submit(list, free), pool.submit(engine.close)
        wait([second], 30)
        leave.set()
        closing.result(30)
        for answer in (first, second):
            with pytest.raises(SpecdecError, match="the session was closed"):
                answer.result(30)


def test_a_stream_that_never_starts_gives_its_session_back():
    with load_engine(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        for drop in (lambda stream: stream.close(), lambda _stream: None):
            drop(engine.stream_text(PROMPT))
            drop(engine.stream(PROMPT))
        assert engine.generate(PROMPT, SamplingParams(max_tokens=2)).text and len(engine._sessions) == 1


def test_a_session_is_not_closed_in_its_own_step():
    with load_engine(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        other = engine.stream(PROMPT, SamplingParams(max_tokens=3))
        session, _ = engine.session(), next(other)

        def wrapped(rule):
            for close in (session.close, engine.close):
                with pytest.raises(SpecdecError, match="while it computes"):
                    close()
            return rule

        answer = session.start(PROMPT, SamplingParams(max_tokens=3))
        with wrapped_rule(session, wrapped):
            assert [*answer]
        assert answer.result.finish_reason == "length"
        assert [*other], "a close that is refused ends no other answer"


@pytest.mark.usefixtures("inside")
def test_what_is_missing_is_pulled_if_that_is_asked_for():
    told, pair = [], {"target": f"{BIG}:Q4_K_M", "draft": f"{SMALL}:Q8_0"}
    with pytest.raises(specdec_cli.DownloadError) as missing:
        load_engine(**pair)
    assert "specdec pull" in missing.value.hint
    with load_engine(**pair, download=True, progress=lambda *said: told.append(said), threads=1) as engine:
        assert engine.generate(PROMPT, SamplingParams(max_tokens=3)).text
    assert {state for _, state, _ in told} >= {"begin", "done"}
    assert {name for name, *_ in told} == {f"{BIG}/{BIG_FILE}", f"{SMALL}/{SMALL_FILE}"}, "also for files of one name"
    again = specdec_cli.pull(**pair)
    assert again.already and again.name == NAME
    with load_engine(NAME, threads=1) as engine:
        assert engine.pair.draft is not None
    alone = specdec_cli.pull(target=f"{BIG}:Q4_K_M", name="alone")
    assert alone.name == "alone" and alone.draft is None
    assert specdec_cli.check(**pair).verdict == "identical"
    for wrong in (specdec_cli.pull, lambda: specdec_cli.check(TARGET)):
        with pytest.raises(UsageError):
            wrong()


@pytest.mark.usefixtures("inside")
def test_a_third_model_that_is_missing_is_pulled_too():
    told, models = [], {"target": TARGET, "draft": DRAFT, "draft_small": f"{SMALL}/{SMALL_FILE}"}
    nested = SpeculativeConfig(drafter="small>model")
    with load_engine(**models, speculative=nested, download=True, progress=lambda *said: told.append(said), threads=1):
        assert {name for name, *_ in told} == {f"{SMALL}/{SMALL_FILE}"}


@pytest.mark.slow
def test_a_pair_is_tuned():
    stages = []
    found = specdec_cli.tune(target=TARGET, draft=DRAFT, seconds=5.0, progress=stages.append)
    assert found.kept and len(stages) == 2 and found.predictions
    with pytest.raises(UsageError):
        specdec_cli.tune(target=TARGET)


def test_an_answer_in_a_notebook(session):
    found = session.generate("<b>&", SamplingParams(max_tokens=30))
    page = found._repr_html_()
    assert page.count('title="accepted"') == found.metrics.accepted > 0
    assert "<pre" in page and "tokens/s" in page and "<b>" not in page


@pytest.mark.usefixtures("inside")
def test_downloads_in_a_notebook_have_bars(monkeypatch):
    shown = []
    cell = SimpleNamespace(update=shown.append)
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="a kernel"))
    display = SimpleNamespace(HTML=str, display=lambda html, display_id: shown.append(html) or cell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    specdec_cli.pull(target=f"{BIG}:Q4_K_M", draft=f"{SMALL}:Q8_0")
    assert len(shown) > 1 and all(html.count("<progress") == 2 for html in shown)
    values = re.findall(r'value="(\d+)" max="(\d+)"', shown[-1])
    assert len(values) == 2 and all(value == most for value, most in values)


def test_a_stream_that_was_left_does_not_overwrite_a_later_answer(chatting):
    with load_engine(target=chatting[1], threads=1, sampling=SamplingParams(max_tokens=8)) as engine:
        chat = engine.chat()
        left = chat.stream_text("first")
        begun = next(left)
        second = chat.say("second")
        del left
        assert [message["content"] for message in chat.messages] == ["first", begun, "second", second.text]
        for remove, count in ((chat.undo, 4), (chat.clear, 0)):
            left = chat.stream_text("third")
            next(left)
            remove()
            left.close()
            assert len(chat.messages) == count
        chat.close()
        assert engine._sessions == []
        with pytest.raises(UsageError):
            engine.chat(sampling=SamplingParams(temperature=-1.0))
        assert engine._sessions == []
        with closing(engine.stream_text("x")) as texts:
            assert next(texts)
        assert engine.detokenize(second.tokens) == second.text
