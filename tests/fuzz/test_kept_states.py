"""Damaged states of kept conversations: the answer is that of before, and a note says what was read again."""

import json
import shutil

import fuzzing
import pytest
from kept_states import DAMAGES, damage

from specdec_cli.chat.kept_conversations import CONVERSATIONS, cache_path

pytestmark = pytest.mark.fuzz
SHARDS = 4
AGAIN = "reads the conversation again"


@pytest.fixture(scope="module")
def models(chatting):
    return ["chat", *chatting, "-k", 3, "-n", 8, "-c", 512]


def chat(models, *lines, resume=None):
    more = ["--resume", resume] if resume else []
    return fuzzing.specdec(*models, *more, stdin="".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def expected(models):
    """Saves the conversations "mine" and "other". The next answer of the first."""
    assert chat(models, "something else", "/save other").code == 0
    assert chat(models, "one", "/save mine").code == 0
    ended = chat(models, "two", resume="mine")
    assert ended.code == 0 and ended.out and AGAIN not in ended.text
    return ended.out


def kept_copy(tmp_path):
    """What was saved, to put back after each case."""
    return shutil.copytree(CONVERSATIONS.folder(), tmp_path / "kept")


def put_back(copy):
    shutil.rmtree(CONVERSATIONS.folder())
    shutil.copytree(copy, CONVERSATIONS.folder())


@pytest.mark.parametrize("shard", range(SHARDS))
def test_damaged_states(models, expected, tmp_path, shard):
    failures, copy = fuzzing.Failures(), kept_copy(tmp_path)
    for i, chance in enumerate(fuzzing.cases(500 // SHARDS, f"states/{shard}")):
        how, roles = DAMAGES[i % len(DAMAGES)], chance.choice((["target"], ["draft"], ["target", "draft"]))
        put_back(copy)
        for role in roles:
            damage(cache_path("mine", role), how, chance)
        with failures:
            about = f"{how} {roles} in case {i} of {shard}"
            ended = chat(models, "two", "/save again", resume="mine")
            ended.assert_sound(about)
            assert ended.code == 0 and ended.out == expected, f"{about}\n{ended.text}"
            assert [role for role in ("target", "draft") if f"the {role} {AGAIN}" in ended.text] == roles, about
            assert chat(models, "three", resume="again").code == 0, about
    failures.assert_none()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_damaged_records(models, expected, tmp_path, shard):
    """What was read of a conversation is not the messages, so its tokens are checked, too."""
    failures, copy, path = fuzzing.Failures(), kept_copy(tmp_path), CONVERSATIONS.path("mine")
    keys = ("text", "tokens", "marks", "checksum", "caches", "checksums")
    for i, chance in enumerate(fuzzing.cases(100 // SHARDS, f"records/{shard}")):
        put_back(copy)
        record = json.loads(path.read_bytes())
        key = chance.choice(keys)
        old = json.dumps(record[key])
        at = chance.randrange(len(old))
        new = f"{old[:at]}{chance.randrange(10)}{old[at + 1 :]}"
        content = json.dumps(record).replace(old, new)
        path.write_text(content)
        with failures:
            about = f"{key} {new} in case {i} of {shard}"
            ended = chat(models, "two", resume="mine")
            ended.assert_sound(about)
            said = "the conversation again" if ended.code == 0 else "cannot read"
            assert ended.out == expected or (said in ended.text and new != old), f"{about}\n{ended.text}"
    failures.assert_none()
