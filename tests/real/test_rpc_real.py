"""--rpc with real models: what two servers compute is what this machine computes of the same weights, bit for bit."""

import pytest
from rpc import rpc_servers

from specdec_cli import SamplingParams, SpeculativeConfig, load
from specdec_cli.llama import placing
from specdec_cli.models import suites

pytestmark = pytest.mark.real
PROMPTS = [prompt.text for prompt in suites.load("code")[1:3]]


@pytest.fixture(scope="module")
def servers():
    with rpc_servers(2) as two:
        yield ",".join(server.address for server in two)


def answers(target, draft, drafter, rpc=None):
    params = SamplingParams(temperature=0.0, max_tokens=40)
    with load(target=target, draft=draft, threads=1, rpc=rpc, speculative=SpeculativeConfig(drafter)) as engine:
        return [engine.generate([{"role": "user", "content": prompt}], params).text for prompt in PROMPTS]


def test_smollm2_writes_the_same_over_the_network(smol, servers):
    assert answers(smol, None, "ngram", servers) == answers(smol, None, "ngram")


def test_a_pair_differs_by_what_is_repacked_here_and_by_nothing_else(qwen, qwen_small, servers, monkeypatch):
    """The CPU computes here with repacked copies of Q4_K weights, which round differently; servers' devices have
    none. Without the copies the texts are the same.
    """
    target, draft = qwen, qwen_small
    fill = placing.fill

    def without_copies(params, placement):
        params.use_extra_bufts = False
        return fill(params, placement)

    over_the_network = answers(target, draft, "ngram+model", servers)
    monkeypatch.setattr(placing, "fill", without_copies)
    assert over_the_network == answers(target, draft, "ngram+model")
