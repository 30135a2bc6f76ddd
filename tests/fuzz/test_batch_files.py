"""Hostile files of requests and of answers: what can be answered is, once, and the rest is an error."""

import json
import random

import fuzzing
import pytest
from hostile import assert_shown

pytestmark = pytest.mark.fuzz
SHARDS = 4
ODD = (None, True, -1, 0, 2**63, 1e308, 0.5, "", "x", "\ud83d", "\x1b[2J", [], [1], {}, "x" * 10**6)
URLS = ("/v1/completions", "/v1/chat/completions", "/v1/odd", "", 5)


def line(chance: random.Random, number: int) -> bytes:
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.choice((1, 40, 4000)))
    if kind < 0.15:
        return chance.choice((b"[", b'{"a":')) * 10**5
    if kind < 0.2:
        return b"x" * chance.choice((10**6, 17 << 20))
    body = {"max_tokens": 2, "prompt": "x"} if kind < 0.6 else {"max_tokens": 2, chance.choice(("n", "p")): 1}
    if chance.random() < 0.3:
        body[chance.choice(("prompt", "max_tokens", "messages", "temperature", "stop", "n"))] = chance.choice(ODD)
    custom_id = chance.choice((str(number), str(number), "1", "x" * 10**5, *ODD[:6]))
    request = {"custom_id": custom_id, "url": chance.choice((URLS[0], *URLS)), "body": body}
    if chance.random() < 0.1:
        request.pop(chance.choice([*request]))
    text = json.dumps(request).encode()
    return text[: chance.randrange(len(text))] if chance.random() < 0.05 else text


def damaged_answers(chance: random.Random, content: bytes) -> bytes:
    way = chance.randrange(5)
    if way == 0:
        return content[: chance.randrange(len(content) + 1)]
    if way == 1:
        return content + chance.choice((b"\0", b"\n", b"{}\n", b"x" * 10**6))
    if way == 2 and content:
        at = chance.randrange(len(content))
        return content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
    return content


@pytest.mark.parametrize("shard", range(SHARDS))
def test_batches(chatting, tmp_path, shard):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def case(number, chance):
        ends = chance.choice((b"\n", b"\n", b"\r\n", b"\n\n"))
        start = chance.choice((b"", b"\xef\xbb\xbf"))
        source.write_bytes(start + ends.join(line(chance, n) for n in range(chance.choice((0, 1, 5, 12)))))
        output.unlink(missing_ok=True)
        about = f"case {number} of {shard}"
        for _ in range(2):
            ended = fuzzing.specdec("batch", *chatting, source, "-o", output, "-t", 1, "-c", 128)
            told = ended.err.decode("utf-8", "replace")
            assert_shown(told)
            assert ended.code in (0, 1, 2) and "Traceback" not in told, f"{about}\n{told[-3000:]}"
            assert ended.seconds < 5 and ended.peak < fuzzing.MOST_BYTES, f"{about}: {ended.seconds} s, {ended.peak}"
            if ended.code == 2:
                break
            lines = output.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
            answered = [json.loads(each)["custom_id"] for each in lines]
            assert len(answered) == len(set(answered)), about
            output.write_bytes(damaged_answers(chance, output.read_bytes()))

    fuzzing.try_all(200 // SHARDS, f"batches/{shard}", case)
