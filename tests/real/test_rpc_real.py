"""--rpc with real models: what two servers compute is what this machine computes of the same weights, bit for bit.

The CPU computes here with repacked copies of most quantised weights, which round otherwise; servers' devices have none.
"""

from contextlib import contextmanager

import pytest
from rpc import differs_by_repacking, rpc_servers

from specdec_cli.decoding.divergence import Transcript
from specdec_cli.engine.engine import one_session
from specdec_cli.measure import suites
from specdec_cli.settings.settings import Settings

PROMPTS = [[{"role": "user", "content": prompt.text}] for prompt in suites.load("code")[1:3]]


@pytest.fixture(scope="module")
def servers():
    with rpc_servers(2) as two:
        yield ",".join(server.address for server in two)


@contextmanager
def opened(target, draft, rpc=None):
    draft = str(draft) if draft else None
    drafter = "ngram+model" if draft else "ngram"
    settings = Settings(str(target), draft, drafter=drafter, draft_tokens=4, max_tokens=40, threads=1, rpc=rpc)
    with one_session(settings) as session:
        prompts = [session.tokenize(prompt) for prompt in PROMPTS]
        session.open(max(map(len, prompts)))
        yield session, prompts


def answers(*pair_and_servers):
    """Passes included: of what was drafted, and what was accepted."""
    with opened(*pair_and_servers) as (session, prompts):
        return [Transcript.of(session.events(prompt, seed=0)) for prompt in prompts]


@pytest.fixture(params=[("smol",), ("qwen", "qwen_small")])
def pair(request):
    return [*map(request.getfixturevalue, request.param), None][:2]


def test_without_repacking_the_answer_is_the_local_one_bit_for_bit(pair, servers, monkeypatch):
    monkeypatch.setenv("SPECDEC_REPACK", "0")
    assert answers(*pair, servers) == answers(*pair)


def test_an_answer_differs_by_what_is_repacked_here_and_by_nothing_else(pair, servers, monkeypatch):
    """With `-k auto`, whose passes are as wide as measuring made them, on either side."""
    with opened(*pair) as (here, prompts), opened(*pair, servers) as (there, _):
        monkeypatch.setenv("SPECDEC_REPACK", "0")
        with opened(*pair) as (plain, _):
            found = [differs_by_repacking(here, there, plain, prompt, draft_tokens="auto") for prompt in prompts]
    print(f"{sum(found)} of {len(found)} answers differ, by rounding")
