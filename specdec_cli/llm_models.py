"""Models of the `llm` tool (https://llm.datasette.io): each pair on this machine is one, `specdec/NAME`."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import llm
from llm.parts import TextPart
from pydantic import Field

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.chat_template import template_of
from specdec_cli.pairs.pair_list import list_pairs
from specdec_cli.settings.options import OPTIONS, SamplingParams

if TYPE_CHECKING:
    from specdec_cli.engine.async_engine import AsyncEngine
    from specdec_cli.engine.engine import Engine

_LOADING = Lock()


def _option(name: str) -> Any:
    return Field(default=None, description=OPTIONS[name].help)


class _Options(llm.Model.Options):
    """What `llm -o` takes; unset ones are those of the pair's profile."""

    temperature: float | None = _option("temperature")
    top_k: int | None = _option("top_k")
    top_p: float | None = _option("top_p")
    min_p: float | None = _option("min_p")
    seed: int | None = _option("seed")
    max_tokens: int | None = _option("max_tokens")


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register a model, streaming and async, for each pair that is here."""
    for pair in list_pairs(here_only=True).pairs:
        register(PairModel(pair.name), AsyncPairModel(pair.name))


class _Pair:
    """A pair; its models are loaded at the first prompt, and stay."""

    can_stream = True
    Options = _Options

    def __init__(self, name: str) -> None:
        self.model_id, self._name = f"specdec/{name}", name


class PairModel(_Pair, llm.Model):
    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str]:
        from specdec_cli.decoding.metrics import Metrics
        from specdec_cli.engine.generation_result import text_of

        with _errors():
            engine, metrics = _engines(self._name)[0], Metrics()
            messages = _messages(engine, prompt)
            with closing(engine.stream(messages, SamplingParams(**prompt.options.model_dump()))) as events:
                for event in events:
                    metrics.add(event)
                    if text := text_of(event):
                        yield text
            response.set_usage(input=len(engine.tokenize(messages)), output=metrics.emitted)


class AsyncPairModel(_Pair, llm.AsyncModel):
    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,
    ) -> AsyncGenerator[str, None]:
        from specdec_cli.decoding.metrics import Metrics
        from specdec_cli.engine.generation_result import text_of

        with _errors():
            metrics, (_, engine) = Metrics(), await asyncio.to_thread(_engines, self._name)
            messages = _messages(engine.engine, prompt)
            async with aclosing(engine.stream(messages, SamplingParams(**prompt.options.model_dump()))) as events:
                async for event in events:
                    metrics.add(event)
                    if text := text_of(event):
                        yield text
            response.set_usage(input=len(engine.engine.tokenize(messages)), output=metrics.emitted)


@cache
def _loaded(name: str) -> tuple[Engine, AsyncEngine]:
    from specdec_cli.api import load  # which takes longer than `llm` itself
    from specdec_cli.engine.async_engine import AsyncEngine

    engine = load(name)
    atexit.register(engine.close)
    return engine, AsyncEngine(engine)


def _engines(name: str) -> tuple[Engine, AsyncEngine]:
    """A pair's engine, loaded once: `cache` alone would let two first prompts at a time load it twice."""
    with _LOADING:
        return _loaded(name)


def _messages(engine: Engine, prompt: llm.Prompt) -> str | list[dict[str, str]]:
    """The conversation up to the prompt; only its last message for a model that knows no conversations."""
    texts = [
        (message.role, "".join(part.text for part in message.parts if isinstance(part, TextPart)))
        for message in prompt.messages
    ]
    if template_of(engine.pair.target) is None:
        return texts[-1][1] if texts else ""
    return [{"role": role, "content": text} for role, text in texts]


@contextmanager
def _errors() -> Iterator[None]:
    """Errors as `llm` shows them."""
    try:
        yield
    except SpecdecError as error:
        raise llm.ModelError(f"{error} {error.hint or ''}".strip()) from None
