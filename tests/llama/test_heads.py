"""Heads on the target's hidden rows, of every kind, on a random model of each architecture."""

from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import tiny
from engines import loaded
from exactness import p_value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec_cli import Grammar, SamplingParams, SpecdecError, SpeculativeConfig
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.drafters.head_drafters import MtpDrafter
from specdec_cli.gguf.head_files import read_medusa
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import undeclared
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.head_context import HeadContext
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.medusa_context import MedusaContext
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement

PROMPT = [5, 6, 7, 8] * 5
TEXT = [1 + 7 * i % 290 for i in range(60)]
MTP = [*tiny.PREDICTING, "glm4moe-echo"]
KINDS = [*MTP, *tiny.HEAD_FILES]
AT_ONCE = ["medusa", "medusa-few"]
"""Kinds whose tokens of a draft know nothing of each other."""
END = 0
"""The token that ends an answer."""


def files(folder, kind):
    """Target and draft files for a kind of heads."""
    if kind in tiny.HEAD_FILES:
        return tiny.write(folder / "target.gguf", "qwen3"), tiny.write(folder / f"{kind}.gguf", kind)
    return tiny.write(folder / f"{kind}.gguf", kind), None


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    target, draft = files(tmp_path_factory.mktemp("heads"), request.param)
    drafter = tiny.HEAD_FILES.get(request.param, "mtp")
    with loaded(target=target, draft=draft, threads=1, speculative=SpeculativeConfig(drafter, 3)) as session:
        yield request.param, session


def distance(one, other):
    """Of two rows; tokens that a head cannot say are -inf in both."""
    assert np.array_equal(np.isfinite(one), np.isfinite(other))
    known = np.isfinite(one)
    return np.abs(one[known] - other[known]).max()


def both(session, sampling, speculative):
    """An answer with drafts, and that of the target alone."""
    answer = session.generate(PROMPT, sampling, speculative)
    assert answer.metrics.drafted > 0 and not [note for note in answer.notes if "failed" in note], answer.notes
    return answer.tokens, session.generate(PROMPT, sampling, SpeculativeConfig(drafter="none")).tokens


SINGLE = [pytest.param(1, 1, temperature, marks=pytest.mark.slow) for temperature in (0, 0.8)]


@pytest.mark.parametrize(("k", "tree", "temperature"), [*SINGLE, (5, 1, 0), (5, 1, 0.8), (6, 3, 0)])
def test_the_answer_is_the_targets_own(pair, k, tree, temperature):
    kind, session = pair
    sampling = SamplingParams(temperature=temperature, seed=2, max_tokens=48)
    how = SpeculativeConfig(draft_tokens=k, tree=tree)
    if tree > 1 and kind == "qwen35-mtp":
        with pytest.raises(SpecdecError, match="its memory is recurrent"):
            session.generate(PROMPT, sampling, how)
        return
    drafted, alone = both(session, sampling, how)
    assert drafted == alone


def test_a_conversation_goes_on(pair):
    """What both hold of a text is not read again, and what comes after drafts as ever."""
    session = pair[1]
    first = session.generate(PROMPT, SamplingParams(max_tokens=20))
    longer = [*PROMPT, *first.tokens, 9, 10, 11]
    session.models.reuse(True)
    try:
        again = session.generate(longer, SamplingParams(max_tokens=30))
    finally:
        session.models.reuse(False)
    assert again.metrics.drafted and not [note for note in again.notes if "failed" in note]
    assert again.tokens == session.generate(longer, SamplingParams(max_tokens=30)).tokens


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "tree"), [(0.0, 1), (0.0, 3), (0.8, 1), (0.8, 3)])
@pytest.mark.parametrize("kind", ["eagle3-few", "medusa-few"])
def test_a_grammar_may_allow_nothing_that_the_heads_can_say(tmp_path, kind, temperature, tree):
    target, draft = files(tmp_path, kind)
    grammar = Grammar.rules('root ::= ("a" | "b" | "c" | "hello ")+ "."')
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=20, grammar=grammar)
    with loaded(target=target, draft=draft, threads=1) as session:
        how = SpeculativeConfig(tiny.HEAD_FILES[kind], 4, accept="coupled", tree=tree)
        drafted, alone = both(session, sampling, how)
    assert drafted == alone


# What the head reads


class Opened:
    """A target's context and that of its heads, with a text in both."""

    def __init__(self, folder, kind, branches=1, head=None):
        target, draft = files(folder, kind)
        draft = head or draft
        interrupt = Interrupt()
        self.model = self.heads = Model(target, Placement(0), interrupt, heads=draft is None)
        self.target = LlamaContext.open(self.model, 256, 9, 1, interrupt)
        if kind.startswith("medusa"):
            heads, words = read_medusa(read_header(draft), draft, self.model.n_vocab)
            self.drafts = MedusaContext(heads, words, "", self.target, 1, branches)
            return
        self.heads = Model(draft, Placement(0), interrupt, heads=True) if draft else self.model
        self.drafts = HeadContext(self.heads, self.target, 9, 1, interrupt, branches)

    def read(self, text):
        """The target reads a text, and the heads all of it but the last token. Returns their row after that."""
        self.target.begin(text)
        self.target.decode(text[:-3])
        self.target.decode(text[-3:], all_rows=True)  # Medusa's rows come with logits
        unread = self.drafts.unread(text)
        kept = self.drafts.begin(text)
        assert unread == len(text) - kept
        self.drafts.decode(text[kept:-1]) if kept < len(text) - 1 else None
        return self.drafts.decode(text[-1:])[0].copy()

    def close(self):
        for part in (self.drafts, self.target, self.heads, self.model):
            part.close()


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    parts = Opened(tmp_path, request.param)
    yield parts
    parts.close()


@pytest.mark.parametrize(
    ("rejected", "last"), [((3, 4, 5), 26), ((), 22)], ids=["rejected tokens", "a draft that came to nothing"]
)
def test_what_does_not_stand_leaves_no_trace(opened, rejected, last):
    """After drafts that were thrown away, rows are those of a text that never had any."""
    expected = opened.read(TEXT[:last])
    opened.read(TEXT[:20])
    for end in range(20, last):
        opened.drafts.begin_draft()
        for token in rejected:
            opened.drafts.decode((token,))
        opened.drafts.end_draft(end)
        opened.target.decode((TEXT[end], *rejected[1:]), all_rows=True)
        if rejected and not opened.target.rewinds:
            opened.target.begin_draft()
        opened.target.rewind(end + 1)
        row = opened.drafts.decode(TEXT[opened.drafts.length : end + 1])[0].copy()
    assert distance(row, expected) < 1e-3


def test_a_state_that_is_one_token_late_is_seen(opened, monkeypatch):
    own = HiddenRows.before
    right = opened.read(TEXT)
    monkeypatch.setattr(HiddenRows, "before", lambda self, first, count: own(self, first - 1, count))
    opened.drafts.rewind(0)
    assert distance(opened.read(TEXT), right) > 0.05


@pytest.mark.parametrize("opened", [kind for kind in KINDS if kind not in AT_ONCE], indirect=True)
def test_a_draft_carries_the_heads_own_state(opened):
    """Without it, the second token would be read with a row of the target's, which there is none of."""
    opened.read(TEXT[:20])
    opened.drafts.begin_draft()
    opened.drafts.decode((3,))
    second = opened.drafts.decode((4,))[0].copy()
    opened.drafts.end_draft(20)
    opened.drafts.decode(TEXT[opened.drafts.length : 20]) if opened.drafts.length < 20 else None
    opened.drafts.begin_draft()
    opened.drafts.decode((3,))
    opened.drafts._own[-1] = np.zeros_like(opened.drafts._own[-1])
    assert distance(opened.drafts.decode((4,))[0], second) > 0.02


@pytest.mark.parametrize("opened", AT_ONCE, indirect=True)
def test_the_tokens_of_a_draft_know_nothing_of_each_other(opened):
    """One computation gives the rows of all places; each knows the text, and where it is."""
    drafts, found, passes = opened.drafts, [], []
    drafts.passes.on_pass = lambda tokens, seconds: passes.append(tokens)
    for token in (3, 4):
        opened.read(TEXT[:20])
        drafts.begin_draft()
        passes.clear()
        found.append([drafts.decode((token,))[0].copy() for _ in range(4)])
        drafts.end_draft(20)
    assert all(distance(one, other) == 0 for one, other in zip(*found, strict=True))
    assert all(distance(found[0][i], found[0][i + 1]) > 0.05 for i in range(3)) and passes == []


@pytest.mark.parametrize("opened", ["glm4moe-echo", "medusa"], indirect=True)
def test_for_heads_that_were_closed_the_target_keeps_no_rows(opened):
    opened.drafts.close()
    assert opened.target.hidden is None
    with closing(LlamaContext.open(opened.target.passes.model, 256, 1, 1, Interrupt())) as plain:
        assert (opened.target.decode(TEXT)[-1] == plain.decode(TEXT)[-1]).all(), "the row of the last token"


@pytest.mark.parametrize("opened", ["glm4moe-echo"], indirect=True)
def test_for_heads_without_room_the_target_keeps_no_rows(opened, monkeypatch):
    def refuse(*_, **__):
        raise SpecdecError("no room", "")

    opened.target.hidden = None
    monkeypatch.setattr("specdec_cli.llama.head_context.Passes", refuse)
    with pytest.raises(SpecdecError, match="no room"):
        HeadContext(opened.heads, opened.target, 9, 1, Interrupt())
    assert opened.target.hidden is None


@pytest.mark.parametrize("opened", ["step35-mtp3"], indirect=True)
def test_several_layers_draft_one_place_each(opened, monkeypatch):
    chosen, own = [], undeclared.call

    def call(name, *given):
        if name == "llama_set_nextn_layer_offset":
            chosen.append(given[1])
        return own(name, *given)

    opened.read(TEXT[:20])
    monkeypatch.setattr(undeclared, "call", call)
    opened.target.decode((1,))
    opened.drafts.decode((1,))
    opened.drafts.begin_draft()
    for token in (3, 4, 5, 6):
        opened.drafts.decode((token,))
    assert chosen == [2, 1, 0, 1, 2, 2, 2], "all read the text; then each drafts, and the last goes on"


# Distributions


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "wrong"), [("glm4moe-echo", False), ("glm4moe-echo", True), ("eagle3-few", False)])
def test_sampled_answers_have_the_targets_distribution(tmp_path, kind, wrong, monkeypatch):
    """By chi-square; and a q that is another than the one drawn from is seen."""
    target, draft = files(tmp_path, kind)
    drafter = tiny.HEAD_FILES.get(kind, "mtp")
    how = SpeculativeConfig(drafter, 2, accept="rejection")
    with loaded(target=target, draft=draft, threads=1, speculative=how) as session:
        if wrong:
            own = MtpDrafter.propose
            monkeypatch.setattr(MtpDrafter, "propose", lambda *given: halved(own(*given)))
        found, _ = p_value_of_answers(session, how, top_k=4, length=3, n=800)
    assert (found > 1e-3) != wrong


def p_value_of_answers(session, how, top_k, length, n):
    """By the target's own probabilities of all continuations; and the number of accepted tokens."""
    wide, counts, accepted = {"top_k": top_k, "top_p": 1.0, "min_p": 0.0}, Counter(), 0
    for seed in range(n):
        params = SamplingParams(temperature=1.0, **wide, seed=seed, max_tokens=length)
        answer = session.generate(PROMPT, params, how)
        counts[tuple(answer.tokens)] += 1
        accepted += answer.metrics.accepted
    expected = _exact(session.models.target.open_kv, SamplingOptions(1.0, **wide), length)
    return p_value(counts, expected, n), accepted


def halved(draft):
    """q is half of what it was: a draft token is accepted too often."""
    return draft if draft.q is None else replace(draft, q=tuple(Categorical(q.ids, q.probs * 0.5) for q in draft.q))


def _exact(context, sampling, length):
    """The probability of each continuation of the prompt, by the target's own rows."""
    sampler, found = StandardSampler(sampling), {}

    def go_on(text, prob):
        if len(text) - len(PROMPT) == length or (len(text) > len(PROMPT) and text[-1] == END):
            found[tuple(text[len(PROMPT) :])] = prob
            return
        context.begin(text)
        p = sampler.categorical(context.decode(text)[0].copy())
        for token in p.ids.tolist():
            if prob * p.prob(token) > 0:
                go_on([*text, token], prob * p.prob(token))

    sampler.follow([])
    go_on(list(PROMPT), 1.0)
    return found


# What cannot draft costs the drafts


def answered(target, head, **how):
    """An answer of the target alone, and the notes that say why."""
    with loaded(target=target, draft=head, threads=1, speculative=SpeculativeConfig(**how)) as session:
        answer = session.generate(PROMPT, SamplingParams(max_tokens=8))
        alone = session.generate(PROMPT, SamplingParams(max_tokens=8), SpeculativeConfig(drafter="none"))
    assert answer.tokens == alone.tokens and not answer.metrics.drafted
    return " ".join(answer.notes)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("olmo2-window", "crashes on heads from head.gguf"),  # llama.cpp ends the process there: in the trial
        ("llama", "reads layers 0, 2, 4 of llama-0.0.gguf, which has only 2"),
    ],
)
def test_a_target_without_the_rows_that_a_head_reads(load, tmp_path, kind, says):
    assert says in answered(load(kind).path, tiny.write(tmp_path / "head.gguf", "eagle3"), drafter="eagle3")


def test_a_build_without_hidden_rows(monkeypatch, load):
    monkeypatch.setitem(undeclared.FOR_HEADS, "llama_future", "P13llama_context")
    assert undeclared.missing_for_heads() == ["llama_future"]
    model = load("glm4moe-mtp").path
    assert "it lacks llama_future" in answered(model, None, drafter="mtp")
    with loaded(target=model, threads=1) as session:
        assert session.settings.drafter == "ngram"


def test_heads_that_are_there_are_the_default(load, tmp_path):
    files = {kind: tiny.write(tmp_path / f"{kind}.gguf", kind) for kind in ("eagle3", "medusa")}
    for target, drafter in (("step35-mtp", "mtp"), ("qwen3", "eagle3"), ("qwen3", "medusa")):
        with loaded(target=load(target).path, draft=files.get(drafter), threads=1) as session:
            assert session.settings.drafter == f"ngram+{drafter}" and session.models.draft


@pytest.mark.parametrize(
    ("drafter", "draft", "said"),
    [
        ("mtp", None, "it has no next-token layers"),
        ("medusa", None, "a set of Medusa heads is a separate file"),
        ("mtp", "eagle3", "it is an EAGLE-3 head"),
        ("eagle3", "llama", "it is a model without heads"),
        ("model", "eagle3", "holds only heads, not a model"),
        ("auto", "dflash", "a DFlash draft model, which specdec cannot use"),
    ],
)
def test_what_is_asked_for_must_be_there(load, tmp_path, drafter, draft, said):
    file = tiny.write(tmp_path / "draft.gguf", draft) if draft else None
    with pytest.raises(SpecdecError, match=said):
        loaded(target=load("qwen3").path, draft=file, speculative=SpeculativeConfig(drafter))


# Rows that are kept


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["read", "cut", "tree"]), st.integers(1, 40)), max_size=12))
def test_rows_are_those_of_the_text(monkeypatch, script):
    """Whatever was read, taken back and branched: the row before a token is that of the token before it."""
    monkeypatch.setattr("specdec_cli.llama.hidden_rows._MAX_BYTES", 2 * 256 * 2 * 4)
    made = []
    rows = HiddenRows.__new__(HiddenRows)
    monkeypatch.setattr(HiddenRows, "_read", lambda self, count: np.array(made[-count:], np.float32))
    HiddenRows.__init__(rows, None, 2, [])
    rows.width, rows._rows = 2, np.empty((256, 2), np.float32)
    text, number = [], 0
    for what, count in script * 8:
        if what == "cut":
            text = text[: max(len(text) - count, 0)]
            rows.cut(len(text))
            continue
        made = [(number + i, -number - i) for i in range(count)]
        number += count
        if what == "read":
            rows.take(len(text), count)
            text += made
        else:
            rows.take_nodes(count)
            path = list(range(0, count, 2))
            rows.keep(len(text), path)
            text += [made[node] for node in path]
    known = rows.before(rows.first + 1, len(text) - rows.first)
    assert np.array_equal(known, np.array(text[rows.first :], np.float32).reshape(-1, 2))
    assert len(text) - rows.first <= 1024
