"""A server that gets 200 hostile schemas beside 200 honest requests, and signals at any moment."""

import random
import signal
import threading
import time

import fuzzing
import pytest
import tiny
from hostile_requests import assert_undisturbed, attack, hostile
from serving import TEMPLATE, Serving

pytestmark = pytest.mark.fuzz
GRACE_S = 0.5
SENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(scope="module")
def server_args(tmp_path_factory):
    target = tiny.write(tmp_path_factory.mktemp("model") / "target.gguf", "llama", chat_template=TEMPLATE)
    return ["-m", target, "--drafter", "ngram", "-t", 1, "-c", 512, "-np", 4, "--grace", GRACE_S]


def ended_in_time(server: Serving, sent) -> None:
    began = time.monotonic()
    for number in sent[:-1]:
        server.process.send_signal(number)
        time.sleep(random.Random(str(sent)).random() * 0.4)
    if server.process.poll() is None:
        server.process.send_signal(sent[-1])
    code = server.process.wait(20)
    assert code in {128 + number for number in sent}, (sent, code, server.said)
    assert time.monotonic() - began < GRACE_S + 1, sent
    assert "Traceback" not in server.said


def test_honest_requests_beside_hostile_ones(server_args):
    count = max(20, round(200 * fuzzing.SCALE))
    with Serving(*server_args) as server:
        assert_undisturbed(server, count, count)
        ended_in_time(server, [signal.SIGTERM])


@pytest.mark.parametrize("shard", range(4))
def test_signals_at_any_moment_of_an_attack(server_args, shard):
    """Twenty servers, each ended by one signal or two while hostile schemas are compiled."""
    hostile(40)
    for chance in fuzzing.cases(5, f"server signals/{shard}"):
        with Serving(*server_args) as server:
            stop = threading.Event()
            attacking = threading.Thread(target=attack, args=(server, 40, stop))
            attacking.start()
            time.sleep(2 * chance.random())
            try:
                ended_in_time(server, chance.choices(SENT, k=chance.choice((1, 2))))
            finally:
                stop.set()
                attacking.join()
