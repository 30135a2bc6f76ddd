"""`specdec chat`: a conversation in the live view."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Literal

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.loading import context_of, loaded, require_template

_CONTEXT = 8192
"""Tokens of context without -c, or fewer if the model was trained on fewer."""


@opt.takes(*opt.ALL, ctx=str(_CONTEXT))
def chat(
    given: opt.Given,
    system: opt.System = None,
    prediction: opt.Prediction = None,
    resume: Annotated[str | None, typer.Option(help="Continue a conversation that you saved with /save.")] = None,
    ctx_policy: Annotated[
        Literal["drop", "stop"],
        typer.Option(help="If the context is full: drop the oldest turns, or stop."),
    ] = "drop",
) -> None:
    """/help lists the commands. In a pipe, each line is a message; put three quotes before and after several lines."""
    from specdec_cli.weights.model_pair import check_pair

    settings = given.settings()
    pair = check_pair(settings)
    fix = "Use specdec run, or an instruct model: specdec chat -p qwen2.5-coder-1.5b."
    require_template(pair, "it can only continue text", fix)
    from specdec_cli.chat import saved_conversations
    from specdec_cli.cli.chat_session import ChatSession, turns
    from specdec_cli.cli.prompt_input import asked_prediction
    from specdec_cli.engine.conversation import Conversation
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.settings.options import SpeculativeConfig

    if settings.accept == "rejection" and given.chosen("accept") is None:
        settings = replace(settings, accept="coupled")  # so that /alone can compare sampled answers
    settings = replace(settings, ctx=context_of(settings, pair, _CONTEXT))
    predicted = asked_prediction(prediction, settings)
    if resume:
        saved_conversations.read(resume)  # raises
    with ExitStack() as stack:
        with Interrupt() as interrupt:
            engine = stack.enter_context(loaded(settings, pair, interrupt))
            conversation = Conversation(engine.session(), drops_oldest=ctx_policy == "drop")
            conversation.session.open(0)
        conversation.speculative = SpeculativeConfig(prediction=predicted, accept=given.chosen("accept"))
        session = ChatSession(conversation, interrupt)
        if resume:
            session.do_load(resume)
        if system is not None:
            conversation.system = system
        if sys.stdin.isatty():
            session.say(
                f"{pair.target_path.name}, {settings.ctx:,} tokens of context; /help lists the commands, Ctrl-D leaves"
            )
        for text, is_command in turns(session.take_unsent):
            session.take(text, is_command)
            if session.left:
                break
        raise typer.Exit(session.exit_code)
