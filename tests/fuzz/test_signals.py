"""A signal at any moment, in every command that draws: the terminal is as it was, and the exit code tells which."""

import signal
import time
from contextlib import suppress

import pytest
from driver import DRAFT
from fuzzing import cases
from hostile import trace
from terminal import Terminal

SENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
COMMANDS = {
    "an answer": ("run", "def f(x):", "-n", 3000, "-c", 4096, "-t", 1),
    "a replay": ("replay", "slow.jsonl", "--speed", 0.001),
    "steps": ("replay", "slow.jsonl", "--step"),
    "demo": ("demo",),
    "compare": ("compare", "--limit", 9, "-n", 200, "-t", 1),
    "tune": ("tune", "--seconds", 30, "-t", 1),
    "prune": ("draft", "prune", "-m", DRAFT, "--search", 1, "-o", "out.gguf", "-t", 1),
    "quantize": ("draft", "quantize", "-m", DRAFT, "--type", "Q4_0", "-o", "out.gguf", "-t", 1),
    "check": ("check", DRAFT, DRAFT),
    "rm": ("rm", "none"),
    "serve": ("serve", "--port", 0, "-t", 1, "--grace", 0.2),
    "chat": ("chat", "-t", 1),
    "a schema": ("run", "x", "--json-schema", '{"type": "integer", "multipleOf": 9999991}'),
}


@pytest.mark.parametrize("command", COMMANDS)
@cases(15)
def test_signals(tmp_path, chance, command, monkeypatch):
    """Ctrl-Z and fg perhaps, then one signal or some, at random moments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.jsonl").write_text(trace("some text").replace('"at": 0.0', '"at": 0.2'))
    with Terminal(*COMMANDS[command]) as terminal:
        began = time.monotonic()
        pause = chance.choice((0.2, 1.0, 3.0)) * chance.random()
        while time.monotonic() - began < pause and terminal.process.poll() is None:
            if terminal.raw and chance.random() < 0.02:
                break
            read(terminal, 0.02)
        if chance.random() < 0.2:
            terminal.process.send_signal(signal.SIGSTOP)
            time.sleep(0.02)
            terminal.process.send_signal(signal.SIGCONT)
        sent = [chance.choice(SENT) for _ in range(chance.choice((1, 1, 2, 3)))]
        loaded = bool(terminal.raw)
        for number in sent:
            if terminal.process.poll() is None:
                terminal.process.send_signal(number)
                read(terminal, chance.choice((0.0, 0.01, 0.2)))
        if not loaded:
            terminal.read()
            terminal.raw = b""  # what Python says of a signal before specdec has begun
        code = terminal.ended()
        # Before specdec has begun, Python or the system decides.
        allowed = {128 + number for number in sent} | (set() if loaded else {-number for number in sent})
        assert code in allowed or (code == 1 and not loaded) or code in (0, 2), f"{sent} {code}\n{terminal.text}"
        assert "Traceback" not in terminal.text or not loaded, terminal.text
    if command in ("prune", "quantize"):
        assert {each.name for each in tmp_path.iterdir()} <= {"slow.jsonl", "out.gguf"}


def read(terminal: Terminal, seconds: float) -> None:
    """Take in what comes in this time; nothing is waited for."""
    with suppress(AssertionError):
        terminal.read(until="\0", seconds=seconds)
