"""OpenAI's own client against the running server. It takes seconds to import, so tests do that themselves."""

import pytest
from serving import Serving

pytestmark = pytest.mark.slow

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(chatting):
    with Serving(*chatting, "-t", 1, "-c", 32768, "--api-key", "secret") as server:
        yield server


@pytest.fixture
def client(server):
    import openai

    with openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(client):
    def ask(**more):
        return client.chat.completions.create(**{"model": "target", "messages": ASKED, "max_tokens": 20, **more})

    return ask


def test_openai_lists_chats_and_streams(client, ask):
    assert [model.id for model in client.models.list()] == ["target"]
    answer = ask(temperature=0, logprobs=True, top_logprobs=2, extra_body={"speculative": {"draft_tokens": 4}})
    (choice,) = answer.choices
    assert choice.message.content and answer.usage.completion_tokens == 20
    assert choice.finish_reason == "length" and answer.timings["draft_n"] > 0
    places = choice.logprobs.content
    assert len(places) == 20 and all(len(place.top_logprobs) == 2 and place.logprob <= 0 for place in places)
    *parts, last = ask(temperature=0, stream=True, stream_options={"include_usage": True})
    assert "".join(part.choices[0].delta.content or "" for part in parts) == choice.message.content
    assert parts[-1].choices[0].finish_reason == "length" and last.usage.completion_tokens == 20


def test_openai_predictions(ask):
    plain = ask(temperature=0)
    text = plain.choices[0].message.content
    for content in (text, [{"type": "text", "text": text}]):
        prediction = {"type": "content", "content": content}
        answer = ask(
            temperature=0, prediction=prediction, extra_body={"speculative": {"drafter": "ngram", "draft_tokens": 8}}
        )
        counts = answer.usage.completion_tokens_details
        assert answer.choices[0].message.content == text
        counted = counts.accepted_prediction_tokens + counts.rejected_prediction_tokens
        assert counts.accepted_prediction_tokens > 0 and counted == answer.timings["draft_n"]
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_openai_errors(server, client, ask):
    import openai

    with pytest.raises(openai.BadRequestError, match="context") as caught:
        ask(messages=[{"role": "user", "content": "x " * 40_000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0).models.list()
    completion = client.completions.create(model="target", prompt=["a", "b"], max_tokens=3, n=2)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
