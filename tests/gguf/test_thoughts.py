"""Thoughts are separated from answers, in the same way however the text is split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.gguf.thoughts import Thoughts, opens_thoughts

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
MARKS = [
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|channel>thought",
    "<channel|>",
    "<|end|>",
    "<|start|>",
    "assistant",
    "<|channel|>",
    "<|message|>",
    "final",
    ANALYSIS,
    FINAL,
]
TEXTS = st.lists(st.sampled_from([*MARKS, "\n", " ", "a", "<", "</", "<|", "<thin", "k>"]), max_size=9).map("".join)


@pytest.mark.parametrize(
    ("opened", "text", "thoughts", "answer"),
    [
        (False, " {}\n", "", " {}\n"),
        (False, "", "", ""),
        (False, "\n", "", "\n"),
        (False, "<think>\nHm.\n</think>\n\n{}\n", "Hm.\n", "{}\n"),
        (False, "\n<think></think>{}", "", "{}"),
        (False, "<think>Hm</thi", "Hm</thi", ""),
        (False, "<think", "", "<think"),
        (False, "The tag <think> begins thoughts, </think> ends them.", "", None),
        (True, "Hm.\n</think>\n\n{} </think>", "Hm.\n", "{} </think>"),
        (False, f"{ANALYSIS}Hm.{FINAL}Yes. {FINAL}", "Hm.", f"Yes. {FINAL}"),
        (False, "<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
        (False, "<|channel|>final<|message|>  indented", "", "  indented"),
        (False, f"{ANALYSIS}a<|end|><|start|>assistant<|channel|>commentary<|message|>b{FINAL}c", "ab", "c"),
        (False, f"{ANALYSIS}Hm <|en", "Hm <|en", ""),
        (False, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        (False, "<|channel>thought\nHm.<channel|>Yes.", "Hm.", "Yes."),
        (False, "<|channel|>ana", "", ""),
    ],
)
def test_what_is_thought_and_what_is_answered(opened, text, thoughts, answer):
    assert Thoughts(opened).push(text, ended=True) == (thoughts, text if answer is None else answer)


@given(opened=st.booleans(), text=TEXTS, cuts=st.lists(st.integers(0, 60)))
def test_a_stream_is_split_like_the_whole(opened, text, cuts):
    stream, places = Thoughts(opened), [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [stream.push(text[a:b], ended=False) for a, b in pairwise(places)]
    parts.append(stream.push("", ended=True))
    assert tuple(map("".join, zip(*parts, strict=True))) == Thoughts(opened).push(text, ended=True)


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ([], False),
        ([b"hello", b"", b"assistant\n", b"<think>", b"\n"], True),
        ([b"", b"<thi", b"nk>"], True),
        ([b"", b"<think>", b"\n\n", b"</think>", b"\n\n"], False),
        ([b"user", b"<think>", b"", b""], False),
    ],
)
def test_a_template_may_open_the_thoughts(prompt, opened):
    assert opens_thoughts(range(len(prompt)), prompt.__getitem__) == opened
