"""benchmarks/inflate.py: the inflated pair writes what the bundled one does, and the comparison would notice if not."""

import functools
from dataclasses import replace

import common
import inflate
import numpy as np
import pytest

from specdec_cli.decoding.metrics import Metrics

pytestmark = pytest.mark.slow

TARGET, DRAFT = common.DEMO / "target.gguf", common.DEMO / "draft.gguf"
SHAPES = {
    TARGET: inflate.Shape(7, 640, 12, 6, 128, 1024, 4400),
    DRAFT: inflate.Shape(3, 512, 8, 4, 64, 512, 4400),
}
PROMPTS = common.PROMPTS[:3]

opened = functools.cache(inflate.Source)


@pytest.fixture(scope="module", autouse=True)
def less_noise():
    """Random numbers enough for so small models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate.Noise, "SIZE", 1 << 18)
        yield


def inflated(folder, path, chosen="Q8_0", **changes):
    out = folder / f"{path.stem}-{chosen}.gguf"
    inflate.write(opened(path), out, replace(SHAPES[path], **changes), chosen)
    return out


def compared(source, result, tokens=16):
    return inflate.compare(source, result, tokens, threads=1, prompts=PROMPTS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inflated")
    return inflated(folder, TARGET), inflated(folder, DRAFT)


@pytest.mark.parametrize("at", [0, 1])
def test_the_same_tokens_but_for_near_ties(pair, at):
    found = compared((TARGET, DRAFT)[at], pair[at])
    assert found.same, str(found)
    assert len(found.missed) <= 1 < found.tokens
    assert found.below > 100


def test_the_same_tokens_as_numbers_of_16_bits(tmp_path):
    own = tmp_path / "own.gguf"
    inflate.write(opened(DRAFT), own, opened(DRAFT).shape, "F16")
    found = compared(own, inflated(tmp_path, DRAFT, "F16"))
    assert found.same and found.apart < 0.1, str(found)
    assert compared(DRAFT, own).same


def test_in_its_own_shape_a_copy_is_the_source(tmp_path):
    inflate.write(opened(DRAFT), tmp_path / "copy.gguf", opened(DRAFT).shape, "Q8_0")
    assert compared(DRAFT, tmp_path / "copy.gguf", 4).apart == 0


NORMS, ROWS = inflate.Inflation.norms, inflate.Noise.rows
SCALE = np.float32((128 / 512) ** 0.5)
MISTAKES = {
    "norms not scaled": (inflate.Inflation, "norms", lambda self: ((name, norm / SCALE) for name, norm in NORMS(self))),
    "queries not scaled": (inflate.Inflation, "_weights", lambda self, name: self.source.tensor(name)),
    "zeros are missing": (inflate.Noise, "rows", lambda self, n, columns, zero: ROWS(self, n, columns, zero[:0])),
    "added tokens may be chosen": (inflate, "PENALTY", 0.0),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_noticed(tmp_path, monkeypatch, mistake):
    monkeypatch.setattr(*mistake)
    assert not compared(DRAFT, inflated(tmp_path, DRAFT)).same


def test_no_text_reaches_the_added_tokens(pair):
    tokens = opened(pair[0]).field("tokenizer.ggml.tokens")
    assert len(set(tokens)) == len(tokens) == 4400
    with common.open_demo(target=str(pair[0]), drafter="none", threads=1) as session:
        assert max(session.tokenize(f"{tokens[-1]} def f(x): return '{tokens[4096]}'", raw=True)) < 4096


def test_the_draft_is_accepted_as_often(pair):
    rates = []
    for target, draft in ((TARGET, DRAFT), pair):
        settings = {"target": str(target), "draft": str(draft), "draft_tokens": 4, "max_tokens": 32, "threads": 1}
        with common.open_demo(**settings) as session:
            prompts = map(session.models.target.model.tokenize, PROMPTS)
            reports = [Metrics.of(session.events(prompt, seed=0)) for prompt in prompts]
        rates.append(sum(report.accepted for report in reports) / sum(report.drafted for report in reports))
    assert rates[0] == pytest.approx(rates[1], abs=0.05)


@pytest.mark.parametrize("change", [{"layers": 3}, {"heads": 13}, {"width": 512}])
def test_what_does_not_fit_is_refused(tmp_path, change):
    with pytest.raises(SystemExit, match=r"fit into|need a width"):
        inflated(tmp_path, TARGET, **change)
