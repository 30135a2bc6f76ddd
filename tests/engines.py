"""Models in memory: the one place where tests load them and open a pair as the engine does."""

import os
from contextlib import contextmanager
from dataclasses import replace

import pytest
import tables
import tiny
from driver import DEMO
from serving import TEMPLATE

import specdec_cli
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.session import Session
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.settings.settings import Settings

TARGET, DRAFT = str(DEMO / "target.gguf"), str(DEMO / "draft.gguf")


def open_session(prompt_tokens=64, ways=(), **changes):
    """The bundled pair for prompts of so many tokens; ways: other settings that its contexts must serve, too."""
    chosen = Settings(
        **{"target": TARGET, "draft": DRAFT, "drafter": "model", "max_tokens": 64, "threads": 1, **changes}
    )
    session = session_of(Engine(chosen))
    session.open(prompt_tokens, [replace(chosen, **way) for way in ways])
    return session


def loaded(*args, **named):
    """A session of a pair that is loaded as a program does it."""
    return session_of(specdec_cli.load(*args, **named))


def session_of(engine):
    """A session that closes its engine with it."""
    session = engine.session()

    def close(closed=session.close):
        session.close = closed
        engine.close()

    session.close = close
    return session


@contextmanager
def wrapped_rule(session, wrapper):
    """Let the answers that begin in this block call their acceptance rule through a wrapper."""
    session._rule = lambda settings: wrapper(Session._rule(session, settings))
    try:
        yield
    finally:
        del session._rule


@pytest.fixture(scope="session")
def load(tmp_path_factory):
    """A model by name, loaded once: target or draft (the bundled ones), a path, or a kind of tests/tiny.py."""
    folder = tmp_path_factory.mktemp("tiny")
    models = {}

    def load(name, noise=0.0):
        key = (str(name), noise)
        if key not in models:
            path = {"target": TARGET, "draft": DRAFT}.get(name, name)
            if "/" not in str(path):
                path = tiny.write(folder / f"{name}-{noise}.gguf", name, noise=noise)
            repacks = os.environ.get("SPECDEC_REPACK") != "0"  # as in sessions, with which contexts are compared
            models[key] = Model(path, Placement(0), Interrupt(), repacks=repacks)
        return models[key]

    yield load
    for model in models.values():
        model.close()


@pytest.fixture(scope="session")
def table_pair(tmp_path_factory):
    """Names a pair on a command line that answers alike on every processor: tests/tables.py."""
    folder = tmp_path_factory.mktemp("tables")
    return "-m", tables.write(folder / "target.gguf"), "-md", tables.write(folder / "draft.gguf", draft=True)


@pytest.fixture(scope="session")
def chatting(tmp_path_factory):
    """Names a tiny pair on a command line that has a chat template."""
    folder = tmp_path_factory.mktemp("chatting")
    target = tiny.write(folder / "target.gguf", "llama", chat_template=TEMPLATE)
    draft = tiny.write(folder / "draft.gguf", "llama", noise=0.05, chat_template=TEMPLATE)
    return ["-m", str(target), "-md", str(draft)]


@pytest.fixture
def opened(load):
    """Opens contexts that are closed after the test."""
    contexts = []

    def open_context(name, rows=17, branches=1, n_ctx=1024, noise=0.0, interrupt=None, made=LlamaContext.open):
        contexts.append(made(load(name, noise), n_ctx, rows, 1, interrupt or Interrupt(), branches))
        return contexts[-1]

    yield open_context
    for context in contexts:
        context.close()
