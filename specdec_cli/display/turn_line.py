"""The line under an answer in a chat: how fast it was, and what the drafts were worth."""

from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.engine.baseline import BaselineResult

_ENDS = {
    "length": "stopped at -n",
    "context": "stopped: the context is full",
    "stop_string": "stopped at a stop string",
    "interrupted": "interrupted",
}


def turn_line(metrics: Metrics, baseline: BaselineResult | None, cached_tokens: int) -> Text:
    """baseline: the target alone, as far as it is known. cached_tokens: of the prompt, read in earlier turns."""
    parts = [f"{metrics.tokens_per_s:,.1f} tokens/s"] if metrics.tokens_per_s else []
    if baseline and baseline.claim and baseline.speedup:
        parts.append(f"{baseline.claim:.1f}x the target alone {baseline.speedup.bounds}".rstrip())
    if metrics.drafted:
        parts.append(f"{metrics.acceptance_rate:.0%} of {metrics.drafted:,} drafted tokens kept")
        parts.append(f"{metrics.tokens_per_step:.1f} tokens a pass")
    parts.append(f"{metrics.prompt_tokens:,} tokens read" + (f", {cached_tokens:,} known" if cached_tokens else ""))
    if metrics.reason in _ENDS:
        parts.append(_ENDS[metrics.reason])
    return Text("; ".join(parts))


def alone_line(drafted: Metrics, alone: Metrics, differs_at: int | None) -> Text:
    """How the target alone answered: the same text or not, and in what time. differs_at: the first other token."""
    if differs_at is not None:
        return Text(f"the target alone wrote another text from token {differs_at + 1} on")
    if not drafted.drafted:
        return Text("the target alone wrote the same text, token for token; nothing had been drafted")
    times = f"{alone.decode_s:.1f} s; with drafts it took {drafted.decode_s:.1f} s"
    return Text(f"the target alone wrote the same text, token for token, in {times}")
