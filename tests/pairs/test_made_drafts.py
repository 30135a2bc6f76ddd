"""What is remembered of drafts made, and when it is not believed any more."""

import json
import os

import pytest

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.pairs import made_drafts as drafts


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    target.write_bytes(b"target")
    draft.write_bytes(b"draft")
    drafts.remember(target, draft, "layers 0-3 of 6")
    return target, draft


def test_the_latest_is_found_by_any_path(files, tmp_path, monkeypatch):
    target, draft = files
    (tmp_path / "link.gguf").symlink_to(target)
    monkeypatch.chdir(target.parent)
    assert drafts.find(target) == drafts.find(tmp_path / "link.gguf") == draft
    assert drafts.find(target.relative_to(target.parent)) == draft
    other = draft.with_name("other.gguf")
    other.write_bytes(b"other")
    drafts.remember(target, other.relative_to(target.parent), "Q2_K")
    assert drafts.find(target) == other


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "change", [lambda path: path.write_bytes(b"something else"), lambda path: os.utime(path, (1, 1)), os.unlink]
)
def test_other_files_are_not_believed(files, which, change):
    change(files[which])
    assert drafts.find(files[0]) is None


def test_parts_of_a_split_target_count_too(tmp_path):
    parts = [tmp_path / f"big-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"part")
    (tmp_path / "draft.gguf").write_bytes(b"draft")
    drafts.remember(parts[0], tmp_path / "draft.gguf", "Q2_K")
    assert drafts.find(parts[0]) == tmp_path / "draft.gguf"
    parts[1].write_bytes(b"another part")
    assert drafts.find(parts[0]) is None


def test_a_damaged_record_is_told_once(files):
    path = drafts.path_of(files[0])
    path.write_text(json.dumps({**json.loads(path.read_text()), "draft": []}))
    with pytest.raises(SpecdecError, match=r"cannot read .*target-.*renamed") as caught:
        drafts.find(files[0])
    assert "specdec draft" in caught.value.hint and drafts.find(files[0]) is None
