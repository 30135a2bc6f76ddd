"""What tests run in a child; imported by the process from which `fuzzing` forks it, and by which everything is."""

import atexit
import importlib
import os
import pkgutil
import pty
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import faulty_drafters
import ggufs
from full_disk import full_disk

import specdec_cli
from specdec_cli import Grammar
from specdec_cli.cli.app import app
from specdec_cli.cli.error_reporting import complain
from specdec_cli.constraints.grammar_state import GrammarState
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf import chat_template
from specdec_cli.gguf.header import Header

for module in pkgutil.walk_packages(specdec_cli.__path__, "specdec_cli."):
    if not module.name.endswith("__main__") and ".training" not in module.name:  # which takes torch
        importlib.import_module(module.name)


def enter(folder: str, environment: dict[str, str], function, args) -> None:
    """The child: streams to files, the environment of the test, and what it used at the end."""
    where = Path(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(("in", "out", "err")):
        os.dup2(os.open(where / name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT), number)
    _open_streams()
    before = used()[1]
    try:
        function(*args)
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()  # ends its own children, whose memory counts then
        seconds, peak, children = used()
        (where / "used").write_text(f"{seconds} {peak - before} {children}")


def _open_streams(errors: str = "strict") -> None:
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, "r" if n == 0 else "w", encoding="utf-8", errors=errors, closefd=False) for n in range(3)
    )


def used() -> tuple[float, int, int]:
    """Seconds of processor time of this process and its children, and the most memory that it and any of them has had,
    in bytes.
    """
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, own.ru_maxrss * unit, children.ru_maxrss * unit


def command(args: list[str]) -> None:
    """A command line, as the `specdec` command runs it."""
    sys.argv = ["specdec", *args]
    app()


def faulty(seed: str, own: list[int], prompt: int, needs_model: bool, args: list[str]) -> None:
    """A command with a faulty drafter."""
    wrong = faulty_drafters.fault(random.Random(seed))
    with faulty_drafters.installed(lambda: faulty_drafters.drafter(own, prompt, wrong, needs_model)):
        command(args)


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
    reader = _reader(main, lambda data: os.write(out, data))
    for number in range(3):
        os.dup2(side, number)
    os.close(side)
    _open_streams("replace")
    try:
        command(args)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(3):  # `enter` flushes what stands there
            os.dup2(out, number)
        reader.join(5)


def on_full_disk(most_bytes: int, args: list[str]) -> None:
    """A command. What it prints is kept elsewhere until it ends: that is not what the disk is for."""
    printed: dict[int, list[bytes]] = {1: [], 2: []}
    kept = {number: os.dup(number) for number in printed}
    readers = []
    for number, chunks in printed.items():
        source, goal = os.pipe()
        os.dup2(goal, number)
        os.close(goal)
        readers.append(_reader(source, chunks.append))
    try:
        with full_disk(most_bytes):
            command(args)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in kept.items():
            os.dup2(old, number)
        for reader in readers:
            reader.join(5)
        for number, chunks in printed.items():
            os.write(number, b"".join(chunks))


def _reader(source: int, take: Callable[[bytes], object]) -> threading.Thread:
    """Takes in what comes until nobody has the other end open any more."""

    def read() -> None:
        with suppress(OSError):
            while data := os.read(source, 1 << 16):
                take(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader
