"""What the n-gram drafter tells a policy in hindsight: each place that the policy has not judged itself, once."""

from fakes import Counting, FakeTarget, ScriptedPolicy, Table, run

from specdec_cli.decoding.types import Step, Token
from specdec_cli.drafters.ngram import NgramDrafter

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def step(tokens, drafted=(), accepted=0):
    return Step(1, tuple(Token(t, "", "plain") for t in tokens), tuple(drafted), accepted, (), "ngram", 0, 0, 0, 0)


def test_what_a_draft_has_shown_is_not_told_again_after_steps_without_one():
    """Between the draft and the next, the policy rested for a step."""
    drafter, policy = NgramDrafter(), ScriptedPolicy([])
    drafter.start(TEXT)
    context = [*TEXT, 1, 2, 3]
    drafter.propose(context, 0, policy)
    policy.missed.clear()
    draft = drafter.propose(context, 4, policy)
    assert draft.tokens == (4, 5, 6, 7)
    context += [4, 5, 6, 7, 8]
    drafter.observe(step((4, 5, 6, 7, 8), draft.tokens, 4))
    context += [9]
    drafter.observe(step((9,)))
    drafter.propose(context, 0, policy)
    assert len(policy.missed) == 2, "the place after the draft, and the one of the step without a draft"


def test_a_new_text_is_not_judged_by_the_drafts_of_the_last_one():
    drafter, policy = NgramDrafter(), ScriptedPolicy([])
    drafter.start(TEXT)
    drafter.propose([*TEXT, 1, 2, 3], 4, policy)
    policy.missed.clear()
    drafter.start(TEXT)
    drafter.propose([*TEXT, 1, 2, 3, 4, 5, 6, 7, 8], 0, policy)
    assert len(policy.missed) == 7, "every place but the first, after which nothing was matched"


def test_each_place_is_heard_of_once_over_a_whole_answer():
    """Over runs with rests in between: judged or told in hindsight, never both."""
    for seed in range(10):
        drafter, policy = NgramDrafter(), ScriptedPolicy([3, 0, 0, 4, 0, 2, 2, 0] * 40)
        judged = []
        policy.observe = lambda step, judged=judged: judged.append(min(step.accepted + 1, len(step.drafted)))
        target = Table(5, seed, order=1) if seed else Counting(6)
        events = run(FakeTarget(target), (0, 1, 2, 0, 1), drafter, policy=policy, max_tokens=120)
        places = sum(len(event.tokens) for event in events if isinstance(event, Step))
        assert sum(judged) > 10 and sum(judged) + len(policy.missed) <= places
