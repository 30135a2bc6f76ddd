"""Hostile files of requests and of answers: what can be answered is, once, and the rest is an error."""

import json
import random

from damage import ODD, damaged
from fuzzing import cases, specdec
from hostile import assert_shown

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
    custom_id = chance.choice((*[str(number)] * 9, "1", "x" * 10**5, *ODD[:12]))
    request = {"custom_id": custom_id, "url": chance.choice((URLS[0], *URLS)), "body": body}
    if chance.random() < 0.1:
        request.pop(chance.choice([*request]))
    text = json.dumps(request).encode()
    return text[: chance.randrange(len(text))] if chance.random() < 0.05 else text


@cases(200)
def test_batches(chatting, tmp_path, chance):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    start, ends = chance.choice((b"", b"\xef\xbb\xbf")), chance.choice((b"\n", b"\n", b"\r\n", b"\n\n"))
    source.write_bytes(start + ends.join(line(chance, n) for n in range(chance.choice((0, 1, 5, 12)))))
    for _ in range(2):
        ended = specdec("batch", *chatting, source, "-o", output, "-t", 1, "-c", 128)
        assert_shown(ended.told)
        ended.assert_alive("a batch")
        assert ended.code in (0, 1, 2), ended
        if ended.code == 2:
            break
        lines = output.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
        answered = [json.loads(each)["custom_id"] for each in lines]
        assert len(answered) == len(set(answered))
        if chance.random() < 0.6:
            output.write_bytes(damaged(chance, output.read_bytes()))
