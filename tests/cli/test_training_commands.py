"""`specdec draft distill`, `eagle3`, `medusa`, `exit` where they cannot be run; how they train: tests/training."""

import pytest
from driver import TARGET, assert_refused, call

from specdec_cli.display.draft_making import training_tables
from specdec_cli.make_drafts.draft_figures import CategoryAcceptance, DraftFigures, ExpectedSpeedup
from specdec_cli.make_drafts.train import DraftTrainingResult

KINDS = [("eagle3",), ("medusa",), ("exit", "--layers", "2"), ("distill", "--from", "scratch")]


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_without_pytorch_it_says_what_to_install(kind, without_torch, tmp_path):
    result = call("draft", kind[0], "-m", TARGET, "-o", tmp_path / "out.gguf", *kind[1:])
    assert_refused(result, 1, "packages that aren't installed: torch, gguf", 'pip install "specdec-cli[train]"')
    assert not list(tmp_path.glob("*.gguf"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eagle3", "--temps", "warm"), "'warm' isn't a list of temperatures"),
        (("eagle3", "--width", "100"), "cannot have 100 numbers"),
        (("medusa", "--heads", "0"), "there cannot be 0 heads"),
        (("distill", "--from", "scratch", "--depth", "0"), "cannot have 0 layers"),
        (("distill", "--from", "scratch", "--words", "-3"), "a vocabulary of -3 tokens"),
        (("distill", "--from", "x.gguf", "--words", "9"), "are only for --from scratch"),
        (("distill", "--from", "x.gguf", "--depth", "2"), "are only for --from scratch"),
        (("eagle3", "--minutes", "0"), "take 0 minutes"),
        (("eagle3", "-t", "-3"), "threads cannot be -3"),
        (("medusa", "-ngl", "-5"), "gpu-layers cannot be -5"),
        (("prune", "--search", "4", "-ngl", "-5"), "gpu-layers cannot be -5"),
        (("eagle3", "--tokens", "5"), "5 tokens"),
        (("eagle3", "--tokens", "2000000000"), "Use --tokens 1000 to 1000000000."),
    ],
)
def test_senseless_options_are_refused(arguments, said, tmp_path):
    result = call("draft", arguments[0], "-m", TARGET, "-o", tmp_path / "out.gguf", *arguments[1:])
    assert_refused(result, 2, said)


@pytest.mark.parametrize(
    ("option", "said"), [("--what-if", "there is no hardware 'nosuch'"), ("--against", "neither a file")]
)
def test_what_is_for_the_page_is_looked_for_before_the_work(option, said, monkeypatch, tmp_path):
    monkeypatch.setattr("specdec_cli.make_drafts.train.require_torch", lambda: None)
    result = call("draft", "medusa", "-m", TARGET, "-o", tmp_path / "out.gguf", option, "nosuch")
    assert_refused(result, 2, said)
    assert not list(tmp_path.iterdir())


def figures(name, *tokens):
    categories = [CategoryAcceptance(f"kind {i}", 3, 40, (0.5, 0.25, 0.125), each) for i, each in enumerate(tokens)]
    expected = (ExpectedSpeedup("here", 0, 1.0), ExpectedSpeedup("rtx-4090", 3, 1.9))
    return DraftFigures(name, 1, tuple(categories), 0.010, 0.002, expected)


def test_the_page_compares_before_and_after(snapshot, capsys):
    from specdec_cli.cli.output import print_parts

    result = DraftTrainingResult(
        kind="eagle3",
        target="big.gguf",
        out="head.gguf",
        bytes=5_000_000,
        target_bytes=900_000_000,
        texts=400,
        steps=1200,
        agreement=(0.7, 0.6),
        before=figures("small.gguf", 1.9, 2.1),
        after=figures("head.gguf", 2.4, 2.6),
        notes=("the texts are in head.training",),
        seconds=4000.0,
        run='specdec run -m big.gguf -md head.gguf "..."',
    )
    print_parts(training_tables(result))
    snapshot("training.txt", capsys.readouterr().out)
