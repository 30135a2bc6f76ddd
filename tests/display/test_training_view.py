"""How a training is shown: a line for each tenth where there is no terminal, nothing with --json."""

import pytest

from specdec_cli.display.draft_making import DraftView
from specdec_cli.make_drafts.recipe import TrainingStep


@pytest.mark.parametrize("silent", [False, True])
def test_without_a_terminal_there_is_a_line_for_each_tenth(capsys, monkeypatch, silent):
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes no terminal of a pipe
    with DraftView(silent) as view:
        for done in range(0, 1001, 50):
            view.recording(done, 1000, 90.0 - 0.09 * done)
        view.planned(200, 0.5, 3_000_000_000)
        for step in range(1, 201):
            view.training(TrainingStep(step, 200, 3.0 / step, (0.5,), 100.0 - step / 2))
        view.measuring("head.gguf")
        view.stopped("x" * 100)
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == "" and bool(lines) != silent
    if lines:
        assert lines[-1].startswith("x" * 100)
        assert lines[:2] == ["the target writes 1,000 tokens", "  10%: 100 tokens, about 81 s left"]
        assert sum("%: " in line and "agrees 50%" in line for line in lines) == 10
