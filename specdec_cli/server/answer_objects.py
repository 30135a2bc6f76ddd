"""Answers as objects of OpenAI's API, whole and in chunks, with llama-server's timings."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from specdec_cli.decoding.types import Done, FinishReason, Step
from specdec_cli.engine.generation import GenerationResult, text_of
from specdec_cli.measure.traces import event_json
from specdec_cli.server.request_answering import ChoiceEvent, RequestChoice, TokenLogprob
from specdec_cli.server.request_bodies import Body, ChatBody

_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "context": "length",
    "interrupted": "stop",
}


class Style:
    """Builds the objects of completions. kind: the type of a whole answer; chunk_kind: that of a streamed chunk."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str) -> None:
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._offsets: dict[int, int] = {}
        """Characters sent so far, by choice."""

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self.head, "object": self.chunk_kind, "choices": choices, **more}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """The chunks to send before the first token."""
        return []

    def chunks(self, index: int, events: Sequence[ChoiceEvent], steps: bool) -> list[dict[str, Any]]:
        """The chunks for consecutive events of a choice. steps: include the last event's step."""
        event = events[-1].event
        text = "".join([text_of(each.event) for each in events])
        noted = [each.logprobs for each in events if each.logprobs is not None]
        more = {"step": event_json(event)} if steps and isinstance(event, Step) else {}
        chunks = []
        if text or more or any(noted):
            places = [place for some in noted for place in some] if noted else None
            chunks.append(self.chunk([self.choice(index, self.delta(text), places)], **more))
            self._offsets[index] = self._offsets.get(index, 0) + len(text)
        if isinstance(event, Done):
            done = timings([events[-1].choice.answered])
            chunks.append(self.chunk([self.choice(index, self.delta(""), None, event.reason)], timings=done))
        return chunks

    def choice(
        self,
        index: int,
        content: dict[str, Any],
        places: Sequence[TokenLogprob] | None,
        reason: FinishReason | None = None,
    ) -> dict[str, Any]:
        logprobs = None if places is None else self.logprobs(places, self._offsets.get(index, 0))
        ended = None if reason is None else _REASONS[reason]
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": ended}

    def delta(self, text: str) -> dict[str, Any]:
        """The text's fields in a chunk's choice. The text may be empty."""
        return {"text": text}

    def message(self, text: str) -> dict[str, Any]:
        """The text's fields in a whole answer's choice."""
        return {"text": text}

    def logprobs(self, places: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
        texts = [place.piece.decode("utf-8", "replace") for place in places]
        likeliest = [{piece.decode("utf-8", "replace"): p for piece, p in place.likeliest} for place in places]
        return {
            "tokens": texts,
            "token_logprobs": [place.logprob for place in places],
            "top_logprobs": likeliest,
            "text_offset": [start + sum(map(len, texts[:i])) for i in range(len(texts))],
        }


class ChatStyle(Style):
    """Builds the objects of chats."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> list[dict[str, Any]]:
        first = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return [self.chunk([first])]

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, places: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
        def entry(piece: bytes, logprob: float) -> dict[str, Any]:
            return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

        content = [
            {**entry(place.piece, place.logprob), "top_logprobs": [entry(*likely) for likely in place.likeliest]}
            for place in places
        ]
        return {"content": content, "refusal": None}


def style_of(body: Body, model: str) -> Style:
    return (ChatStyle if isinstance(body, ChatBody) else Style)(model)


def whole(body: Body, choices: Sequence[RequestChoice], model: str) -> dict[str, Any]:
    """The whole answer to a request, as one object."""
    style, wants_logprobs = style_of(body, model), body.n_logprobs is not None
    parts = [
        style.choice(
            each.index,
            style.message(each.answered.text),
            each.logprobs if wants_logprobs else None,
            each.answered.finish_reason,
        )
        for each in choices
    ]
    return {**style.head, "object": style.kind, "choices": parts, **figures(choices)}


def error_object(
    message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def figures(choices: Sequence[RequestChoice]) -> dict[str, Any]:
    return {"usage": _usage(choices), "timings": timings([choice.answered for choice in choices])}


def _usage(choices: Sequence[RequestChoice]) -> dict[str, Any]:
    """The tokens of a request: each prompt once, and all answers."""
    first = {id(choice.prompt): choice.answered for choice in reversed(choices)}.values()
    read, written = sum(len(each.prompt) for each in first), sum(each.answered.metrics.emitted for each in choices)
    answers = [each.answered for each in choices if each.answered.settings.prediction]
    predicted = [answer.metrics.sources.get("ngram", (0, 0)) for answer in answers]
    accepted = sum(kept for _, kept in predicted)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in first)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(drafted for drafted, _ in predicted) - accepted,
        },
    }


def timings(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """llama-server's timings, for one or more answers. Unknown values are left out."""
    metrics = [each.metrics for each in results]
    prompt_n = sum(each.prompt_tokens for each in metrics)
    prompt_s, predicted_s = sum(each.prefill_s for each in metrics), sum(each.decode_s for each in metrics)
    written, decoded = (sum(each.emitted for each in metrics), sum(max(each.emitted - 1, 0) for each in metrics))
    known = {
        "cache_n": sum(each.cached_tokens for each in results),
        "prompt_n": prompt_n,
        "prompt_ms": 1000 * prompt_s,
        "predicted_n": written,
        "predicted_ms": 1000 * predicted_s,
    }
    if prompt_n and prompt_s:
        known |= {"prompt_per_token_ms": 1000 * prompt_s / prompt_n, "prompt_per_second": prompt_n / prompt_s}
    if decoded and predicted_s:
        known |= {"predicted_per_token_ms": 1000 * predicted_s / decoded, "predicted_per_second": decoded / predicted_s}
    if drafted := sum(each.drafted for each in metrics):
        known |= {"draft_n": drafted, "draft_n_accepted": sum(each.accepted for each in metrics)}
    return known
