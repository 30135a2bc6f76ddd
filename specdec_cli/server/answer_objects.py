"""Answers as objects of OpenAI's API, whole and in chunks, with llama-server's timings."""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import Done, FinishReason, Step, Token
from specdec_cli.engine.generation_result import GenerationResult, text_of
from specdec_cli.engine.scheduler import QueueFull
from specdec_cli.gguf.thoughts import Thoughts, opens_thoughts
from specdec_cli.measure.traces import event_json
from specdec_cli.server.request_answering import Answering, ChoiceEvent, RequestChoice
from specdec_cli.server.request_bodies import Body, ChatBody, InvalidRequest


class CompletionFormat:
    """Builds the objects of completions. kind: the type of a whole answer; chunk_kind: that of a streamed chunk."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, answering: Answering) -> None:
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self.head = {"id": name, "created": int(time.time()), "model": answering.names[0]}
        self._piece = answering.piece
        self._texts = defaultdict[int, TextStream](lambda: TextStream(self._piece))
        self._offsets = Counter[int]()
        """Characters of the tokens so far, by choice, including those that a stop string holds back."""

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self.head, "object": self.chunk_kind, "choices": choices, **more}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """The chunks to send before the first token."""
        return []

    def chunks(self, index: int, events: Sequence[ChoiceEvent], steps: bool) -> list[dict[str, Any]]:
        """The chunks for consecutive events of a choice. steps: include the last event's step."""
        choice, event = events[-1]
        fields = self.delta(choice, "".join([text_of(each.event) for each in events]), isinstance(event, Done))
        tokens = [token for each in events if isinstance(each.event, Step) for token in each.event.tokens]
        more = {"step": event_json(event)} if steps and isinstance(event, Step) else {}
        chunks = []
        if any(fields.values()) or more or any(token.logprobs for token in tokens):
            chunks.append(self.chunk([self.choice(index, fields, tokens)], **more))
        if isinstance(event, Done):
            last, done = self.delta(choice, "", True), timings([choice.result])
            chunks.append(self.chunk([self.choice(index, last, (), event.reason)], timings=done))
        return chunks

    def choice(
        self, index: int, content: dict[str, Any], tokens: Sequence[Token], reason: FinishReason | None = None
    ) -> dict[str, Any]:
        """tokens: those whose log-probabilities it has, if requested."""
        noted = [token for token in tokens if token.logprobs]
        logprobs = self.logprobs(index, noted) if noted else None
        ended = None if reason is None else "length" if reason in ("length", "context") else "stop"
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": ended}

    def delta(self, choice: RequestChoice, text: str, ended: bool) -> dict[str, Any]:
        """The text's fields in a chunk's choice. The text may be empty. ended: whether no other follows."""
        return {"text": text}

    def message(self, choice: RequestChoice) -> dict[str, Any]:
        """The text's fields in a whole answer's choice."""
        return {"text": choice.result.text}

    def logprobs(self, index: int, tokens: Sequence[Token]) -> dict[str, Any]:
        def text(token: int) -> str:
            return self._piece(token).decode("utf-8", "replace")

        def likeliest(top: Sequence[tuple[int, float]]) -> dict[str, float]:
            by_text: dict[str, float] = {}
            for token, p in top:  # tokens may have the same text, such as parts of characters
                by_text.setdefault(text(token), p)
            return by_text

        texts, found = [text(token.id) for token in tokens], [token.logprobs for token in tokens if token.logprobs]
        lengths = (len(self._texts[index].push(token.id)) for token in tokens)
        *offsets, self._offsets[index] = accumulate(lengths, initial=self._offsets[index])
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [likeliest(each.top) for each in found],
            "text_offset": offsets,
        }


class ChatFormat(CompletionFormat):
    """Builds the objects of chats, with the thoughts apart from the answer."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, answering: Answering) -> None:
        super().__init__(answering)
        self._splits: dict[int, Thoughts] = {}
        """By choice."""

    def opening(self, index: int) -> list[dict[str, Any]]:
        first = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return [self.chunk([first])]

    def delta(self, choice: RequestChoice, text: str, ended: bool) -> dict[str, Any]:
        if choice.index not in self._splits:
            self._splits[choice.index] = Thoughts(opens_thoughts(choice.prompt, self._piece))
        thoughts, answer = self._splits[choice.index].push(text, ended)
        parts = {"reasoning_content": thoughts, "content": answer}
        return {"delta": {name: part for name, part in parts.items() if part}}

    def message(self, choice: RequestChoice) -> dict[str, Any]:
        delta = self.delta(choice, choice.result.text, True)["delta"]
        return {"message": {"role": "assistant", "content": "", "refusal": None, **delta}}

    def logprobs(self, index: int, tokens: Sequence[Token]) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            piece = self._piece(token)
            return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

        content = [
            {**entry(token.id, own.logprob), "top_logprobs": [entry(*likely) for likely in own.top]}
            for token in tokens
            if (own := token.logprobs)
        ]
        return {"content": content, "refusal": None}


def format_of(body: Body, answering: Answering) -> CompletionFormat:
    return (ChatFormat if isinstance(body, ChatBody) else CompletionFormat)(answering)


def whole(body: Body, choices: Sequence[RequestChoice], answering: Answering) -> dict[str, Any]:
    """The whole answer to a request, as one object."""
    answer_format, parts = format_of(body, answering), []
    for choice in choices:
        result = choice.result
        tokens = [token for step in result.metrics.history for token in step.tokens]
        parts.append(answer_format.choice(choice.index, answer_format.message(choice), tokens, result.finish_reason))
    return {**answer_format.head, "object": answer_format.kind, "choices": parts, **figures(choices)}


def failure(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the object that answer a request that failed."""
    if isinstance(error, InvalidRequest):
        return error.status, error_object(str(error), param=error.param, code=error.code)
    if isinstance(error, QueueFull):
        return 429, error_object(str(error), "rate_limit_error", code="queue_full")
    said = str(error) if isinstance(error, SpecdecError) else "internal server error"
    return 500, error_object(said, "server_error")


def error_object(
    message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def figures(choices: Sequence[RequestChoice]) -> dict[str, Any]:
    """The tokens of a request, each prompt once, and all answers; and their times."""
    first = {id(choice.prompt): choice.result for choice in reversed(choices)}.values()
    read, written = sum(len(each.prompt) for each in first), sum(each.result.metrics.emitted for each in choices)
    answers = [each.result for each in choices if each.result.settings.prediction]
    predicted = [answer.metrics.sources.get("ngram", (0, 0)) for answer in answers]
    accepted = sum(kept for _, kept in predicted)
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in first)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(drafted for drafted, _ in predicted) - accepted,
        },
    }
    return {"usage": usage, "timings": timings([choice.result for choice in choices])}


def timings(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """llama-server's timings, for one or more answers. Unknown values are left out."""
    metrics = [each.metrics for each in results]
    prompt_n = sum(each.prompt_tokens for each in metrics)
    prompt_s, predicted_s = sum(each.prefill_s for each in metrics), sum(each.decode_s for each in metrics)
    written, decoded = (sum(each.emitted for each in metrics), sum(each.decoded for each in metrics))
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
