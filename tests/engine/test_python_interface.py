"""What a program expects besides answers: log-probabilities, several answers, conversations, downloads, notebooks."""

import re
import sys
import threading
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from driver import DRAFT, TARGET
from engines import loaded
from hub_pairs import BIG, BIG_FILE, NAME, SMALL, SMALL_FILE
from serving import TEMPLATE

from specdec_cli import (
    DownloadError,
    SamplingParams,
    SpecdecError,
    SpeculativeConfig,
    Step,
    UsageError,
    check,
    load,
    pull,
    tune,
)
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.llama.bindings import lib

PROMPT = "def median(values):\n"
TOKENS = [*range(5, 45)]
FIXED = SpeculativeConfig(draft_tokens=4)


@pytest.fixture(scope="module")
def session():
    with loaded(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as session:
        yield session


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
    alone = session.start(PROMPT, sampling, SpeculativeConfig(drafter="none"), wrap_rule=watching)
    own = [token.id for event in alone if isinstance(event, Step) for token in event.tokens]
    assert [token.id for token in found] == own and len(rows) == 20
    for token, row in zip(found, rows, strict=True):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert token.logprobs.logprob == pytest.approx(expected[token.id], abs=0.01)
        assert [each for each, _ in token.logprobs.top] == np.argsort(-row)[:3].tolist()
        assert [p for _, p in token.logprobs.top] == pytest.approx(np.sort(expected)[::-1][:3], abs=0.01)


def test_several_answers_to_a_prompt_read_it_once(tmp_path):
    model = tiny.write(tmp_path / "model.gguf", "glm4moe-echo")
    prompt, sampling = [*range(5, 25)] * 20, SamplingParams(temperature=1.0, seed=7, max_tokens=12)
    with load(target=model, threads=1, speculative=SpeculativeConfig(drafter="ngram", draft_tokens=3)) as engine:
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


def test_a_conversation_keeps_its_messages_and_reads_only_what_is_new(tmp_path):
    paths = [tiny.write(tmp_path / f"{role}.gguf", "llama", chat_template=TEMPLATE) for role in ("target", "draft")]
    with load(target=paths[0], draft=paths[1], threads=1, sampling=SamplingParams(max_tokens=8)) as engine:
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
            chat.say("x " * 200_000)
        assert len(chat.messages) == 9


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
    first = session.start(PROMPT, SamplingParams(max_tokens=3), wrap_rule=holding(entered, leave))
    thread = threading.Thread(target=list, args=(first,))
    thread.start()
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
    thread.join()
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
    entered, leave, ends, compute = threading.Event(), threading.Event(), [], getattr(lib, function)
    engine = load(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1)
    session = engine.session()
    session.open(len(TOKENS))

    def held(*args):
        entered.set()
        leave.wait(30)
        return compute(*args)

    def working():
        try:
            work(session)
            ends.append("")
        except SpecdecError as error:
            ends.append(str(error))

    monkeypatch.setattr(lib, function, held)
    threads = [threading.Thread(target=target, daemon=True) for target in (working, engine.close)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    threads[1].join(0.3)
    waited = threads[1].is_alive()
    with pytest.raises(SpecdecError, match="the engine was closed"):
        engine.generate(TOKENS)
    leave.set()
    for thread in threads:
        thread.join(30)
    assert waited and len(ends) == 1 and found in ends[0] and bool(found) == bool(ends[0])


def test_closing_an_engine_ends_each_answer_with_an_error():
    entered, leave, ends = threading.Event(), threading.Event(), []
    engine = load(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1, ctx=8192)
    held = engine.session().start(PROMPT, wrap_rule=holding(entered, leave))
    free = engine.stream(PROMPT, SamplingParams(max_tokens=5000))
    next(free)

    def answer(events):
        with pytest.raises(SpecdecError, match="the session was closed"):
            ends.extend(events)
        ends.append("error")

    first, second, closing = (
        threading.Thread(target=target, args=args, daemon=True)
        for target, args in ((answer, [held]), (answer, [free]), (engine.close, []))
    )
    first.start()
    assert entered.wait(30)
    second.start()
    closing.start()
    second.join(30)
    leave.set()
    for thread in (first, closing):
        thread.join(30)
    assert ends.count("error") == 2


def test_a_stream_that_never_starts_gives_its_session_back():
    with load(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        for drop in (lambda stream: stream.close(), lambda _stream: None):
            drop(engine.stream_text(PROMPT))
            drop(engine.stream(PROMPT))
        assert engine.generate(PROMPT, SamplingParams(max_tokens=2)).text and len(engine._sessions) == 1


def test_a_session_is_not_closed_in_its_own_step():
    with load(target=TARGET, draft=DRAFT, speculative=FIXED, threads=1) as engine:
        other = engine.stream(PROMPT, SamplingParams(max_tokens=3))
        session, _ = engine.session(), next(other)

        def wrapped(rule):
            for close in (session.close, engine.close):
                with pytest.raises(SpecdecError, match="while it computes"):
                    close()
            return rule

        answer = session.start(PROMPT, SamplingParams(max_tokens=3), wrap_rule=wrapped)
        assert [*answer] and answer.result.finish_reason == "length"
        assert [*other], "a close that is refused ends no other answer"


@pytest.mark.usefixtures("inside")
def test_what_is_missing_is_pulled_if_that_is_asked_for():
    told, pair = [], {"target": f"{BIG}:Q4_K_M", "draft": f"{SMALL}:Q8_0"}
    with pytest.raises(DownloadError) as missing:
        load(**pair)
    assert "specdec pull" in missing.value.hint
    with load(**pair, download=True, progress=lambda *said: told.append(said), threads=1) as engine:
        assert engine.generate(PROMPT, SamplingParams(max_tokens=3)).text
    assert {state for _, state, _ in told} >= {"begin", "done"}
    assert {name for name, *_ in told} == {f"{BIG}/{BIG_FILE}", f"{SMALL}/{SMALL_FILE}"}, "also for files of one name"
    again = pull(**pair)
    assert again.already and again.name == NAME
    with load(NAME, threads=1) as engine:
        assert engine.pair.draft is not None
    alone = pull(target=f"{BIG}:Q4_K_M", name="alone")
    assert alone.name == "alone" and alone.draft is None
    assert check(**pair).verdict == "identical"
    for wrong in (pull, lambda: check(TARGET)):
        with pytest.raises(UsageError):
            wrong()


@pytest.mark.usefixtures("inside")
def test_a_third_model_that_is_missing_is_pulled_too():
    told, models = [], {"target": TARGET, "draft": DRAFT, "draft_small": f"{SMALL}/{SMALL_FILE}"}
    nested = SpeculativeConfig(drafter="small>model")
    with load(**models, speculative=nested, download=True, progress=lambda *said: told.append(said), threads=1):
        assert {name for name, *_ in told} == {f"{SMALL}/{SMALL_FILE}"}


@pytest.mark.slow
def test_a_pair_is_tuned():
    stages = []
    found = tune(target=TARGET, draft=DRAFT, seconds=5.0, progress=stages.append)
    assert found.kept and len(stages) == 2 and found.predictions
    with pytest.raises(UsageError):
        tune(target=TARGET)


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
    pull(target=f"{BIG}:Q4_K_M", draft=f"{SMALL}:Q8_0")
    assert len(shown) > 1 and all(html.count("<progress") == 2 for html in shown)
    values = re.findall(r'value="(\d+)" max="(\d+)"', shown[-1])
    assert len(values) == 2 and all(value == most for value, most in values)


def test_a_stream_that_was_left_does_not_overwrite_a_later_answer(tmp_path):
    path = tiny.write(tmp_path / "target.gguf", "llama", chat_template=TEMPLATE)
    with load(target=path, threads=1, sampling=SamplingParams(max_tokens=8)) as engine:
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
