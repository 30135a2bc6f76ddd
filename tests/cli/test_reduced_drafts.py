"""A draft with a part of its target's tokens, from the command line: wherever a draft model is, and nowhere else."""

from contextlib import closing

import ggufs
import pytest
import tiny
from driver import assert_refused, call, run, told
from engines import open_session
from fakes import tokens_of

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.draft_length.cost_model import SharedLoad
from specdec_cli.engine.slots import Slots
from specdec_cli.llama.interrupt import Interrupt

TEXT = "the rest of the lot"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reduced")
    target = tiny.write(folder / "target.gguf", "llama")
    return target, tiny.write_reduced(folder / "draft.gguf")


@pytest.fixture
def pair(files):
    return ("-m", files[0], "-md", files[1])


def answer(pair, *args):
    return told("run", TEXT, "--raw", "-n", 60, *pair, *args)


WAYS = {
    "a chain": ("-k", 4),
    "auto": (),
    "a tree": ("-k", 8, "--tree", 3),
    "after ngram": ("--drafter", "ngram+model", "-k", 4),
    "sped up": ("--drafter", "model<ngram", "-k", 4),
    "a short memory": ("-k", 4, "--draft-window", 64),
    "bit for bit": ("-k", 4, "--bitwise"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_answer_is_the_targets_own(pair, way):
    own, found = (answer(pair, *flags) for flags in (("--drafter", "none"), WAYS[way]))
    assert found["tokens"] == own["tokens"] and not any("draft" in note for note in found["notes"])
    assert way == "auto" or found["stats"]["accepted"] > 5


def test_slots_draft_with_it(files):
    with open_session(target=str(files[0]), draft=str(files[1]), draft_tokens=4) as session:
        prompt = session.tokenize(TEXT, raw=True)
        own = tokens_of(session.events(prompt, 0, settings=session.settings.alone()))
    opened = open_session(target=str(files[0]), draft=str(files[1]), draft_tokens=4)
    with opened as session, closing(Slots(session.weights, 2, 256, SharedLoad(), Interrupt())) as slots:
        events = list(slots.sessions[1].events(prompt, 0))
    assert tokens_of(events) == own and Metrics.of(events).accepted > 5


def test_alone_it_is_refused(files, tmp_path):
    draft = files[1]
    for args in (("run", TEXT, "-m", draft, "--drafter", "none"), ("run", TEXT, "-m", draft, "-md", draft)):
        assert_refused(call(*args), 1, "draft.gguf is a draft with a part of its target's tokens", "-md")
    copied = call("draft", "quantize", "-m", draft, "--type", "Q8_0", "-o", tmp_path / "q.gguf")
    assert_refused(copied, 1, "a part of its target's tokens")
    assert call("check", draft, draft).exit_code == 3


def test_another_target_is_refused(files, tmp_path):
    other = ggufs.with_token(files[0], tmp_path / "other.gguf", 299, b"zz")
    for args in (("-k", 4), ("--drafter", "ngram+model"), ("--tree", 3)):
        refused = run(TEXT, "-m", other, "-md", files[1], *args)
        assert_refused(refused, 3, "draft.gguf was made for another target", "same model family")
    done = call("check", other, files[1])
    assert done.exit_code == 3 and "made for another target" in " ".join(done.stdout.split())


def test_a_damaged_one_is_refused(files, tmp_path):
    twice = tiny.write_reduced(tmp_path / "d.gguf", ids=[*range(100), 5])
    assert_refused(run(TEXT, "-m", files[0], "-md", twice), 3, "names a token twice")
