"""The models of tests/tables.py have the very rows that numpy has, in passes of any width and shape: nothing rounds."""

import numpy as np
import pytest
import tables
import tiny
from fakes import paths_of

from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.llama.target import LlamaTarget

TEXT = np.random.default_rng(0).integers(1, tiny.N_VOCAB, 900).tolist()


@pytest.fixture(params=[False, True], ids=["target", "draft"])
def draft(request):
    return request.param


@pytest.fixture
def model(draft, tmp_path_factory):
    return tables.write(tmp_path_factory.mktemp("tables") / "model.gguf", draft)


def test_passes_of_every_width_give_the_rows_of_the_table(opened, model, draft):
    context, expected, at = opened(model), tables.rows_of(TEXT, draft), 0
    for width in (*range(1, 18), 400, *range(17, 0, -1)):
        rows = context.decode(TEXT[at : at + width], all_rows=width < 18)
        assert np.array_equal(rows, expected[at : at + width][-len(rows) :]), width
        at += width


def test_a_tree_gives_the_rows_of_its_branches_and_leaves_nothing_of_those_that_are_rejected(opened, model, draft):
    target = LlamaTarget(opened(model, rows=33, branches=5))
    text = TEXT[:70]
    target.prefill(text[:-1])
    for turn in range(4):
        tree = Draft(tuple(TEXT[100 + 9 * turn :][:9]), parents=(-1, -1, -1, 0, 0, 1, 3, 3, 5))
        rows = target.verify(text[-1], tree)
        for row, path in zip(rows, [(), *paths_of(tree)], strict=True):
            assert np.array_equal(row, tables.rows_of([*text, *path], draft)[-1])
        target.commit(Verdict((0, 3, 7), 5, "bonus"))
        text += [tree.tokens[0], tree.tokens[3], tree.tokens[7], 5]
