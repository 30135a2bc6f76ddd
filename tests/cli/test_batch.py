"""`specdec batch`: requests from a file, each answered once, whatever happens."""

import fcntl
import json
import os
import signal
import subprocess

import pytest
from devices import device
from driver import assert_refused, call, start, succeeded
from hub_pairs import wait_until

from specdec_cli.cli import batch
from specdec_cli.server import batch_run


@pytest.fixture(scope="module")
def models(chatting):
    return [*chatting, "-t", 1, "-c", 1024]


def requests(path, count, max_tokens=8):
    body = {"max_tokens": max_tokens, "temperature": 0}
    lines = [
        {"custom_id": f"text {i}", "method": "POST", "url": "/v1/completions", "body": {**body, "prompt": f"a {i}"}}
        if i % 2
        else {
            "custom_id": f"chat {i}",
            "url": "/v1/chat/completions",
            "body": {**body, "messages": [{"role": "user", "content": str(i)}]},
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path):
    return {line["custom_id"]: line["response"] for line in map(json.loads, path.read_bytes().splitlines())}


def test_each_request_is_answered_and_once_more_if_its_line_was_cut_off(models, tmp_path, monkeypatch):
    """Also one with many prompts, by a model whose name is not text."""
    source, output = requests(tmp_path / "in.jsonl", 9), tmp_path / "out.jsonl"
    with source.open("a") as file:
        body = {"prompt": ["a"] * 20, "temperature": 0}
        file.write(json.dumps({"custom_id": "many", "url": "/v1/completions", "body": body}))
    target = tmp_path / os.fsdecode(b"\xff.gguf")
    target.symlink_to(models[1])
    command = ("batch", *models, "-m", target, "-n", 9, "-np", 1, source, "-o", output)
    assert "10 answers" in succeeded(*command).stderr
    got = answers(output)
    assert len(got) == 10 and {response["status_code"] for response in got.values()} == {200}
    assert len(got["many"]["body"]["choices"]) == 20 and got["many"]["body"]["model"] == "\ufffd"
    assert got["chat 4"]["body"]["choices"][0]["message"]["content"]
    assert got["text 3"]["body"]["usage"]["completion_tokens"] == 8
    before = output.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(batch, "open_slots", None)  # nothing is left to answer
        assert "10 answers" in succeeded(*command).stderr
    assert output.read_bytes() == before
    with output.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert_refused(call(*command), 2, "another run writes to")
    output.write_bytes(before[:-30])
    succeeded(*command)
    texts = [{name: each["body"]["choices"] for name, each in some.items()} for some in (got, answers(output))]
    assert texts[0] == texts[1]


def test_bad_lines_are_reported_and_stop_nobody(models, tmp_path):
    source, output = requests(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    lines = source.read_text().splitlines()
    bad = [
        "nonsense",
        '{"custom_id": "no url"}',
        "[" * 5000,
        lines[0],
        '{"custom_id": "odd url", "url": "/v1/odd", "body": {}}',
        '{"custom_id": "odd body", "url": "/v1/completions", "body": {"prompt": 5}}',
        '{"custom_id": "long", "url": "/v1/completions", "body": {"prompt": "' + "x " * 3000 + '"}}',
    ]
    source.write_text("\n".join([*bad[:3], *lines, "", *bad[3:]]))
    done = call("batch", *models, source, "-o", output)
    assert done.exit_code == 1
    for number in (1, 2, 3, 9):
        assert f"line {number} is not a request" in done.stderr
    codes = {name: response["status_code"] for name, response in answers(output).items()}
    assert codes == {
        **{f"{'text' if i % 2 else 'chat'} {i}": 200 for i in range(4)},
        "odd url": 404,
        "odd body": 400,
        "long": 400,
    }
    assert f"7 answers in {output} (3 errors)" in done.stderr
    source.write_text(bad[4])
    assert f"1 answer in {output}2 (1 error)\n" in call("batch", *models, source, "-o", f"{output}2").stderr


def test_files_that_cannot_be_used(models, tmp_path):
    source = requests(tmp_path / "in.jsonl", 1)
    for name in ("none", "x" * 300):
        assert_refused(call("batch", *models, tmp_path / name, "-o", tmp_path / "out"), 2, "cannot read")
    assert_refused(call("batch", *models, source, "-o", source), 2, "overwrite the requests")
    for other in ("something else\n", "something else", '{"custom_id": "1", "response": {"status_code": 200}}'):
        (tmp_path / "other").write_text(other)
        assert_refused(call("batch", *models, source, "-o", tmp_path / "other"), 2, "is not an answer")
        assert (tmp_path / "other").read_text() == other
    assert_refused(call("batch", *models, source, "-o", tmp_path / "no" / "folder"), 2, "there is no folder")
    assert_refused(call("batch", *models, tmp_path, "-o", tmp_path / "out"), 2, "Is a directory")
    assert_refused(call("batch", *models, source, "-o", tmp_path), 1, "Is a directory")
    zero, new = device(tmp_path, "zero"), tmp_path / "new"
    assert_refused(call("batch", *models, zero, "-o", new), 2, f"{zero} is not a file")
    assert_refused(call("batch", *models, source, "-o", zero), 2, f"{zero} is not a file")
    assert zero.is_char_device() and not new.exists()


def test_lines_without_end(models, tmp_path, monkeypatch):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    assert_refused(call("batch", *models, source, "-o", output), 2, "line 1 of", "is longer than 16 MiB")
    source.write_text("no request\n" * 1001)
    assert_refused(call("batch", *models, source, "-o", output), 2, "more than 1,000 lines of")
    monkeypatch.setattr(batch_run, "_MAX_LINES", 2000)
    source.write_text("\n" * 2001)
    assert_refused(call("batch", *models, source, "-o", output), 2, "has more than 2,000 lines")


def test_a_pipe(models, tmp_path, monkeypatch):
    source, output, pipe = requests(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl", tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(batch_run, "_WRITER_S", 0.1)
    assert_refused(call("batch", *models, pipe, "-o", output), 2, "no program writes to")
    assert_refused(call("batch", *models, source, "-o", pipe), 2, "is not a file")
    monkeypatch.setattr(batch_run, "_WRITER_S", 10)
    with subprocess.Popen(["cp", source, pipe]) as writer:
        assert call("batch", *models, pipe, "-o", output).exit_code == 0 and len(answers(output)) == 3
        assert writer.wait(10) == 0
    monkeypatch.setattr(batch_run, "_MAX_PIPED", 1 << 20)
    with subprocess.Popen(["cp", device(tmp_path, "zero"), pipe], stderr=subprocess.DEVNULL):
        assert_refused(call("batch", *models, pipe, "-o", output), 2, "more than 1 MiB come from")


def test_a_source_that_changes(models, tmp_path, monkeypatch):
    source, output = requests(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    made = batch_run.BatchRun.__init__

    def changed(*args):
        made(*args)
        source.write_bytes(b"x" * source.stat().st_size)

    monkeypatch.setattr(batch_run.BatchRun, "__init__", changed)
    assert_refused(call("batch", *models, source, "-o", output), 1, "has changed")


def test_killed_or_interrupted_it_goes_on(models, tmp_path, monkeypatch):
    source, output = requests(tmp_path / "in.jsonl", 12, 60), tmp_path / "out.jsonl"
    command = ("batch", *models, source, "-o", output)
    with start(*command) as process:
        wait_until(lambda: output.exists() and b"\n" in output.read_bytes(), process)
        process.kill()
    # Perhaps all were answered by then.
    output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[:3]))
    answer, calls = batch_run.BatchRun._answer, iter(range(12))

    async def interrupted(self, *args):
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return await answer(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(batch_run.BatchRun, "_answer", interrupted)
        assert_refused(call(*command), 130, "interrupted", "to continue")
    assert 0 < output.read_bytes().count(b"\n") < 12
    succeeded(*command)
    assert len(output.read_bytes().splitlines()) == len(answers(output)) == 12
