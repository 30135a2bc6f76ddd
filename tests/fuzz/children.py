"""What the tests of this folder run in a child."""

import os
import pty
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ggufs
from fuzzing_child import command, used

from specdec_cli import Grammar
from specdec_cli.cli.error_reporting import complain
from specdec_cli.constraints.grammar_state import GrammarState
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf import chat_template
from specdec_cli.gguf.header import Header


@contextmanager
def complaining() -> Iterator[None]:
    """End with a known error as a command does."""
    try:
        yield
    except SpecdecError as error:
        complain(error)
        sys.exit(error.exit_code)


class Letters:
    """A vocabulary of the bytes, and one token that ends an answer."""

    n_vocab = 257

    def piece(self, token):
        return bytes([token]) if token < 256 else b""

    def is_end(self, token):
        return token == 256

    def tokenize(self, text, add_bos=True, special=True):
        return [*text.encode()]


def answered(kind: str, text: str) -> None:
    """What `run` does with a constraint, and the masks of the first tokens of an answer."""
    grammar = {"json": Grammar.json_schema, "regex": Grammar.regex, "grammar": Grammar.rules}[kind](text)
    with complaining():
        grammar.compiled()
        state, context = GrammarState(Letters(), grammar), [0]
        state.begin(context, 1)
        before = used()[0]
        for _ in range(40):
            mask = state.mask()
            assert mask is not None
            state.expected(8)
            context.append(int(mask.nonzero()[0][len(context) % mask.sum()]))
            if context[-1] == 256:
                break
        print(used()[0] - before)


def rendered(template: str, text: str) -> None:
    """What `run` does with a template before the model reads anything."""
    metadata = {"tokenizer.ggml.tokens": ggufs.string_array(["<s>"]), "tokenizer.chat_template": template}
    with complaining():
        chat_template.render(Header("chat.gguf", 3, metadata, (), 0), [{"role": "user", "content": text}])


def impatient(timeout: float, *args: object) -> None:
    """A command line in which nobody waits as long as outside of tests."""
    # They read the environment, which is the test's own only now.
    from huggingface_hub import constants

    from specdec_cli.pairs.hub import repository

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
    constants.HF_HUB_DOWNLOAD_TIMEOUT = constants.HF_HUB_ETAG_TIMEOUT = timeout
    repository._HEADERS_S = repository._LISTING_S = 2.0
    command([*map(str, args)])


def on_terminal(args: list[str]) -> None:
    """A command on a pseudo-terminal, all that it writes there going to the child's own output."""
    main, side = pty.openpty()
    out = os.dup(1)

    def copy() -> None:
        try:
            while data := os.read(main, 65536):
                os.write(out, data)
        except OSError:  # nobody has it open any more
            pass

    thread = threading.Thread(target=copy)
    thread.start()
    for number in range(3):
        os.dup2(side, number)
    os.close(side)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, "r" if n == 0 else "w", encoding="utf-8", errors="replace", closefd=False) for n in range(3)
    )
    try:
        command(args)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(3):  # `enter` flushes what stands there
            os.dup2(out, number)
        thread.join(5)
