"""Request bodies of OpenAI's API, with this server's additions. Unknown fields are ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from specdec_cli.constraints.grammar import Grammar
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.options import SamplingOptions, options_of
from specdec_cli.settings.options import TYPE_NAMES, SamplingParams, SpeculativeConfig
from specdec_cli.settings.settings import check_value
from specdec_cli.weights.prompt import Prompt

_MAX_CHOICES = 16
_MAX_MESSAGES = 1 << 14
_MAX_STOPS = 16
_OBJECT = {"type": "object"}
_OTHER_NAMES = {
    **{"grammar": "grammar", "json_schema": "json"},
    **{f"guided_{name}": name for name in ("json", "regex", "choice", "grammar")},
}
"""Fields of llama-server and of older versions of vLLM, and the fields of `structured_outputs` that mean the same."""
_UNSUPPORTED = ("tools", "tool_choice", "functions", "function_call", "logit_bias", "structural_tag", "echo", "suffix")
"""Fields that would change an answer."""
_OFF: tuple[Any, ...] = (None, False, "", [], {}, "none", "auto")
"""Values with which those change nothing; some clients send them."""
_MEANT = (("top_p", 0, 1e-9), ("top_k", -1, 0), ("repeat_last_n", -1, 2**31 - 1))
"""Values that OpenAI's API, vLLM or llama-server allow, and the options' own values that mean the same."""
_INTEGERS = ("max_tokens", "max_completion_tokens", "seed", "n", "logprobs", "top_logprobs")
"""Fields of bodies that take integers."""
_Count = Annotated[int, Meta(ge=-1, lt=2**31)]
"""A number of tokens; -1, as LM Studio's clients send it, for the server's own limit."""
_HALF_PAIR = re.compile(
    rb"(?<!\\)(?:\\\\)*"  # other backslashes before it are escaped ones
    rb"(\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]\w\w)"
)
"""Half of a surrogate pair, such as a program writes that cuts texts inside an emoji."""
_Body = TypeVar("_Body")


class InvalidRequest(Exception):
    """A request that can't be answered. param: the invalid field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class StructuredOutputs(Struct):
    """vLLM's field of this name. Only one of its fields may be set."""

    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    structural_tag: Any = None

    def __post_init__(self) -> None:
        if self.structural_tag not in _OFF:
            raise ValueError("this server doesn't support structural_tag")
        named = [name for name in self.__struct_fields__[:-1] if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"structured_outputs takes one of its fields, not {' and '.join(named)}")

    def to_grammar(self) -> Grammar | None:
        if self.json is not None:
            return _schema(self.json)
        if self.json_object:
            return _schema(_OBJECT)
        if self.choice is not None:
            return Grammar.regex("|".join(map(re.escape, self.choice)))
        if self.regex is not None:
            return Grammar.regex(self.regex)
        return None if self.grammar is None else Grammar.rules(self.grammar)


class StreamOptions(Struct):
    """include_usage: whether a stream ends with the token counts."""

    include_usage: bool | None = None


class TextPart(Struct):
    type: str
    text: str | None = None


class Message(Struct):
    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None

    def __post_init__(self) -> None:
        if self.tool_calls or self.function_call or self.role in ("tool", "function"):
            raise ValueError("tools are not supported")

    def plain(self) -> dict[str, str]:
        """The message with its content as one text. Raises InvalidRequest on images and audio."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": _text(self.content, "messages")}


class Prediction(Struct):
    """What the answer mostly repeats."""

    type: Literal["content"]
    content: str | list[TextPart]


class Body(Struct):
    """The fields that both endpoints take. options: the sampling options, under their usual names; `parse` fills it.
    speculative: whether to draft, or how. return_steps: send each step's event.
    """

    model: str | None = None
    max_tokens: _Count | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=_MAX_STOPS)] | None = None
    n: Annotated[int, Meta(ge=1, le=_MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculative: bool | dict[str, Any] | None = None
    prediction: Prediction | None = None
    return_steps: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict, name="")  # no request has this name

    def __post_init__(self) -> None:
        if self.max_tokens == 0:
            name = "max_tokens" if getattr(self, "max_completion_tokens", None) is None else "max_completion_tokens"
            raise InvalidRequest(f"{name} must be at least 1, or -1 for the server's own limit", name)
        self.max_tokens = None if self.max_tokens == -1 else self.max_tokens
        _ = self.constraint

    @property
    def constraint(self) -> Grammar | None:
        """The grammar that the answer must match. Raises ValueError, InvalidRequest."""
        asked = {"response_format": self._format(), "structured_outputs": self.structured_outputs}
        for name, kind in _OTHER_NAMES.items():
            if (value := getattr(self, name)) not in (None, "", []):
                asked[name] = StructuredOutputs(**{kind: value})
        found = {name: grammar for name, each in asked.items() if each and (grammar := each.to_grammar())}
        if len(found) > 1:
            raise ValueError(f"{' and '.join(found)} can't be combined")
        return next(iter(found.values()), None)

    def _format(self) -> StructuredOutputs | None:
        """What response_format asks for. Raises InvalidRequest."""
        given = {name: value for name, value in (self.response_format or {}).items() if value is not None}
        match {"type": "text", "schema": _OBJECT, **given}:
            case {"type": "text"}:
                return None
            case {"type": "json_object", "schema": dict(schema)}:  # llama-server's form may have a schema
                return StructuredOutputs(json=schema or _OBJECT)
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                return StructuredOutputs(json=schema)
        what = "response_format must be text, json_object, or json_schema with a schema"
        raise InvalidRequest(what, "response_format")

    @property
    def n_choices(self) -> int:
        return self.n or 1

    def sampling(self, choice: int, most: int, seed: int | None = None) -> SamplingParams:
        """The sampling of a choice, without the grammar. most, seed: the maximum tokens and the seed if the request
        doesn't set them.
        """
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if "" in stop:
            raise InvalidRequest("a stop string cannot be empty", "stop")
        seed = seed if self.seed is None or self.seed < 0 else self.seed  # llama-server's clients send -1 for any
        seed = None if seed is None else (seed + choice) % 2**63
        most = self.max_tokens or most
        return SamplingParams(seed=seed, max_tokens=most, stop=stop, logprobs=self.n_logprobs, **self.options)

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is to know besides the conversation."""
        return {}

    @property
    def n_logprobs(self) -> int | None:
        """How many of the likeliest tokens to send for each position; None for no log probabilities."""
        return None

    @property
    def prompts(self) -> list[Prompt]:
        """The request's prompts. Raises InvalidRequest if they can't be answered."""
        raise NotImplementedError

    def speculation(self) -> SpeculativeConfig:
        if self.speculative is False:
            return SpeculativeConfig(drafter="none")
        prediction = _text(self.prediction.content, "prediction") if self.prediction else None
        more = self.speculative if isinstance(self.speculative, dict) else {}
        return SpeculativeConfig(**_options({"prediction": prediction}), **more)


class ChatBody(Body, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=_MAX_MESSAGES)]
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    def __post_init__(self) -> None:
        self.max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        super().__post_init__()

    @property
    def prompts(self) -> list[Prompt]:
        return [[message.plain() for message in self.messages]]

    @property
    def template_variables(self) -> dict[str, Any]:
        effort = self.reasoning_effort
        thinks = {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
        return {**(thinks if effort else {}), **(self.chat_template_kwargs or {})}

    @property
    def n_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Body, kw_only=True):
    prompt: str | list[str | int | list[int]]
    """A text, a list of tokens, or a list of texts and token lists."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {*map(type, self.prompt)}
        if int in kinds and len(kinds) > 1:
            raise InvalidRequest("prompt must be a text, token ids, or a list of texts and lists of ids", "prompt")
        return cast("list[Prompt]", [self.prompt] if int in kinds else self.prompt)

    @property
    def n_logprobs(self) -> int | None:
        return self.logprobs


def _schema(schema: str | dict[str, Any]) -> Grammar:
    """With msgspec, because Python's own encoder takes seconds for the largest."""
    return Grammar.json_schema(schema if isinstance(schema, str) else msgspec.json.encode(schema).decode())


def _text(content: str | list[TextPart] | None, param: str) -> str:
    """Content as one text. Raises InvalidRequest on images and audio."""
    parts = [TextPart("text", content)] if isinstance(content, str) else content or []
    if other := next((part.type for part in parts if part.type != "text" or part.text is None), None):
        raise InvalidRequest(f"parts of type {other!r} are not supported in {param}; send text", param)
    return "\n".join(part.text or "" for part in parts)


BODIES: dict[str, type[Body]] = {"/v1/chat/completions": ChatBody, "/v1/completions": CompletionBody}
"""The endpoints that answer, with their requests."""
_DRAFTING = ("drafter", "draft_tokens", "draft_min_p", "accept")
"""The options that `speculative` takes."""


class TokenizeBody(Struct):
    content: str
    add_special: bool | None = None


def parse(body: bytes, kind: type[_Body]) -> _Body:
    """The body as `kind`. Raises InvalidRequest if it doesn't match."""
    try:
        try:
            parsed = msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            parsed = msgspec.json.decode(_with_integers(body), type=kind)
        if isinstance(parsed, Body):
            raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            for name in _UNSUPPORTED:
                if name in raw and msgspec.json.decode(raw[name]) not in _OFF:
                    raise InvalidRequest(f"this server doesn't support {name}", name)
            given = {name: msgspec.json.decode(raw[name]) for name in options_of(SamplingOptions) if name in raw}
            for name, value, meant in _MEANT:
                if given.get(name) == value:
                    given[name] = meant
            given = {name: _integer(value) if TYPE_NAMES[name] == "int" else value for name, value in given.items()}
            if isinstance(temperature := given.get("temperature"), float) and temperature > 0:
                given["temperature"] = max(temperature, 0.001)
            parsed.options = _options(given)
            if isinstance(parsed.speculative, dict):
                if unknown := next((name for name in parsed.speculative if name not in _DRAFTING), None):
                    raise InvalidRequest(f"speculative has the unknown field {unknown!r:.60}", "speculative")
                parsed.speculative = _options(parsed.speculative, "speculative")
        return parsed
    except msgspec.ValidationError as error:
        _, _, where = str(error).partition(" - at `$")
        raise InvalidRequest(str(error), where.strip(".`").partition(".")[0].partition("[")[0] or None) from None
    except (ValueError, RecursionError) as error:
        half = _HALF_PAIR.search(body)
        cut = half and f"the request body has half a surrogate pair, {half[1].decode()}. Don't cut texts inside emoji."
        raise InvalidRequest(cut or f"the request body is not JSON: {error}") from None


def _with_integers(body: bytes) -> bytes:
    """The body with integers for whole numbers such as 256.0, which clients send that keep all numbers as floats."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    values = {name: _integer(msgspec.json.decode(raw[name])) for name in _INTEGERS if name in raw}
    return msgspec.json.encode({**raw, **values})


def _integer(value: object) -> object:
    """A float's whole number, if it is one and exact. Other values stay."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _options(given: dict[str, Any], param: str = "") -> dict[str, Any]:
    """The options that are set. Raises InvalidRequest on an invalid value. param: the field that holds them."""
    options = {}
    for name, value in given.items():
        try:
            options[name] = check_value(name, value)
        except UsageError as error:
            raise InvalidRequest(f"{error}. {error.hint}", param or name) from None
    return {name: value for name, value in options.items() if value is not None}
