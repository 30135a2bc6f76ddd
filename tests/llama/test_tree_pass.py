"""Trees in a real cache: every node's logits are those of its path alone, and what is kept is as good as new."""

from itertools import pairwise

import numpy as np
import pytest
import tiny
from engines import open_session
from prompts import PROMPTS

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.types import NO_DRAFT, Draft, Verdict
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.target import LlamaTarget

ROWS, BRANCHES = 17, 8
KINDS = ("target", "llama", "olmo2-window")


@pytest.fixture
def both(opened):
    """Opens a context for trees and one without, which have read a prompt."""

    def open_both(kind, prompt, rows=ROWS, branches=BRANCHES, **options):
        contexts = [opened(kind, rows, most, **options) for most in (branches, 1)]
        for context in contexts:
            context.decode(prompt)
        return contexts

    return open_both


def same(row, other):
    """Equal but for rounding, which depends on how tokens are split into passes and adds up over a quantised cache.

    The most likely token is the same unless two are as good as equal. A node that saw one token too many, too few or
    another one is off by more: that is tested below.
    """
    tolerance = 0.5 if row.size > tiny.N_VOCAB else 0.05
    first, second = np.sort(other)[-1:-3:-1]
    near = first - second < 2 * tolerance
    return bool(np.abs(row - other).max() < tolerance and (near or row.argmax() == other.argmax()))


def path_to(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def random_tree(rng, size, branches=BRANCHES, n_vocab=300):
    """Parents and tokens; siblings differ."""
    parents, tokens = [], []
    while len(parents) < size:
        parent = int(rng.integers(-1, len(parents)))
        token = int(rng.integers(1, n_vocab))
        leaves = sum(node not in [*parents, parent] for node in range(len(parents))) + 1
        if leaves <= branches and (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return parents, tokens


def grown(rng, context, parents, tokens):
    """The rows of a tree in one pass or several, and whether a later pass forks off an earlier one."""
    passes = list(pairwise(sorted({0, len(tokens), *rng.integers(0, len(tokens) + 1, rng.integers(0, 3)).tolist()})))
    rows = np.concatenate([context.grow(tokens[a:b], parents[a:b]).copy() for a, b in passes])
    return rows, any(parents[b] != b - 1 for a, b in passes[1:] for b in range(a, b))


def prompt_of(length):
    return [(7 * i * i + 3 * i) % 290 + 1 for i in range(length)]


def siblings_follow(context, alone, prompt, *tokens):
    """Tokens that may follow a text are read as if each were the only one."""
    rows = context.grow(tokens, [-1] * len(tokens)).copy()
    for row, token in zip(rows, tokens, strict=True):
        alone.rewind(0)
        assert same(row, alone.decode([*prompt, token])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_each_nodes_logits_are_those_of_its_path(both, kind):
    """Trees in one pass or several, of which any path is kept, one after the other; a chain now and then, and the text
    goes on as in a cache that has read nothing else.
    """
    rng = np.random.default_rng(2)
    context, alone = both(kind, prompt_of(30))
    empty = forked = 0
    for step in range(120):
        if context.length > 500:
            for each in (context, alone):
                each.rewind(0)
                each.decode(prompt_of(30))
        whole = step % 12 == 0
        parents, tokens = random_tree(rng, int(rng.integers(1, ROWS if whole else 9)), BRANCHES if whole else 4)
        rows, forks = grown(rng, context, parents, tokens)
        path, length = path_to(parents, int(rng.integers(-1, len(tokens)))), alone.length
        for node in range(len(tokens)) if whole else path[-1:]:
            alone.rewind(length)
            last = alone.decode([tokens[above] for above in path_to(parents, node)])[0]
            assert same(rows[node], last), (step, parents, node)
        alone.rewind(length)
        context.keep(path)
        if path:
            alone.decode([tokens[node] for node in path])
        empty += not path
        forked += forks
        assert context.length == alone.length
        if step % 4 == 0:
            chain = rng.integers(1, 300, 3).tolist()
            rows = [each.decode(chain, all_rows=True).copy() for each in (context, alone)]
            assert all(same(a, b) for a, b in zip(*rows, strict=True)), step
            for each in (context, alone):
                each.rewind(each.length - 2)
    assert empty > 5 and forked > 25


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_sees_another_branch_would_be_seen(both, kind):
    """Negative control: what a wrong token on the path, one too many and one too few would look like."""
    prompt = prompt_of(12)
    context, alone = both(kind, prompt)
    for first, other in ((10, 20), (33, 77), (200, 5)):
        rows = context.grow((first, other, 30), (-1, -1, 1)).copy()
        context.keep(())
        for path, right in (((other, 30), True), ((first, 30), False), ((first, other, 30), False), ((30,), False)):
            assert same(rows[2], alone.decode(path)[0]) == right
            alone.rewind(len(prompt))


# The edges


def test_a_tree_that_fills_the_context(both):
    context, alone = both("target", prompt_of(256 - 6), n_ctx=256)
    context.grow((1, 2, 3, 4), (-1, -1, 0, 0))
    with pytest.raises(SpecdecError, match="context of 256 tokens is full"):
        context.grow((5, 6, 7), (1, 1, 2))
    rows = context.grow((5, 6), (1, 4))
    assert same(rows[1], alone.decode((2, 5, 6))[0])
    context.keep((1, 4, 5))
    assert context.length == 253
    context.decode((7, 8, 9))
    with pytest.raises(SpecdecError, match="full"):
        context.grow((5,), (-1,))
    assert context.length == 256


@pytest.mark.parametrize("how", ["keep", "rewind", "rewind to nothing"])
def test_too_many_branches(both, how):
    prompt = prompt_of(20)
    context, alone = both("target", prompt, branches=3)
    context.grow((1, 2), (-1, -1))
    with pytest.raises(ValueError, match="more than 3 branches"):
        context.grow((3, 4, 5), (0, 0, 0))
    if how == "keep":
        context.keep((1,))
        prompt.append(2)
    else:
        prompt = prompt if how == "rewind" else []
        context.rewind(len(prompt))
    siblings_follow(context, alone, prompt, 6, 7, 8)


def test_an_aborted_pass_leaves_the_text(both):
    own = Interrupt()
    prompt = prompt_of(30)
    context, alone = both("target", prompt, rows=200, interrupt=own)
    context.grow((1, 2), (-1, -1))
    own.set()
    with pytest.raises(Interrupted):
        context.grow((3,) * 150, (0, *range(2, 151)))
    own.clear()
    context.rewind(len(prompt))
    siblings_follow(context, alone, prompt, 4, 5)


def test_what_follows_a_side_branch_is_bit_for_bit_what_plain_decoding_gives(opened):
    """The cache holds the text in its order, whichever branch was accepted: rounding is the target's own."""
    with open_session(draft_tokens=8, tree=4) as session:
        rng = np.random.default_rng(5)
        target, other = LlamaTarget(session.models.contexts[0]), LlamaTarget(opened("target", 8, n_ctx=512))
        text = session.tokenize(PROMPTS[0], raw=True)
        target.prefill(text[:-1])
        again = 0
        for _ in range(20):
            parents, _ = random_tree(rng, 7, 4)
            draft = Draft(tuple(int(t) for t in rng.permutation(2000)[:7] + 100), None, "", tuple(parents))
            rows = target.verify(text[-1], draft)
            path = []
            while (children := draft.children(path[-1] if path else -1)) and rng.random() < 0.8:
                path.append(int(rng.choice(children)))
            row = np.array(rows[(path[-1] if path else -1) + 1])
            target.commit(Verdict(tuple(path), 0, "correction"))
            text = [*text, *(draft.tokens[node] for node in path)]
            again += len(target._again)
            assert session.models.contexts[0].length + len(target._again) == len(text)
            other.prefill(text[:1])
            for token in text[1:-1]:
                other.verify(token, NO_DRAFT)
                other.commit(Verdict((), 0, "plain"))
            assert np.array_equal(row, other.verify(text[-1], NO_DRAFT)[0])
            text.append(int(rng.integers(100, 2000)))
        assert again > 2, "the test means nothing unless side branches were accepted"
