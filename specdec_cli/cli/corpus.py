"""`--ngram-corpus`: other texts for the drafter `ngram`, indexed once in the target's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from specdec_cli.cli.working import working
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError

if TYPE_CHECKING:
    from specdec_cli.cli.session import Session
    from specdec_cli.cli.settings import Settings
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.models.corpora import Index, Source

_TOLD_EVERY_S = 0.1


def reads_corpus(drafter: str) -> bool:
    """Whether a drafter, or one of a chain, looks into a corpus."""
    return "ngram" in drafter.split("+")


def sources_of(context: typer.Context, settings: Settings, drafters: Iterable[str]) -> list[Source]:
    """The files of the corpus; none if no drafter looks into it.

    Raises UsageError if there is no such drafter though the command line names a corpus, or if it is unusable.
    """
    from specdec_cli.models import corpora

    if not settings.ngram_corpus:
        return []
    if not any(map(reads_corpus, drafters)):
        where = context.get_parameter_source("ngram_corpus")
        if where is not None and where.name == "COMMANDLINE":
            raise UsageError("--ngram-corpus is for the drafter ngram", "Add --drafter ngram, or ngram+model.")
        return []
    return corpora.find(settings.ngram_corpus)


def open_corpus(session: Session, sources: Sequence[Source], interrupt: Interrupt, silent: bool) -> None:
    """Give the session its corpus: from the cache, or else indexed now and kept.

    Raises UsageError if there is no text in it, Interrupted on Ctrl-C.
    """
    if not sources:
        return
    from specdec_cli.drafters.corpus import Corpus
    from specdec_cli.models import corpora

    started = perf_counter()
    path = corpora.path_of(session.pair.target, session.settings.ngram_corpus, sources)
    index = corpora.load(path)
    if index is None:
        index = _index(session, sources, interrupt, silent)
        try:
            corpora.save(path, index)
        except SpecdecError as error:
            session.notes += (f"the index of the corpus is not kept: {error}",)
    session.corpus = Corpus(*index)
    session.load_s += perf_counter() - started


def _index(session: Session, sources: Sequence[Source], interrupt: Interrupt, silent: bool) -> Index:
    from specdec_cli.drafters.corpus import join, sort
    from specdec_cli.models import corpora

    def heed() -> None:
        if interrupt.is_set():
            raise Interrupted

    texts: list[Sequence[int]] = []
    told = perf_counter()
    with working("reading the corpus", silent) as say:
        for number, source in enumerate(sources):
            heed()
            if perf_counter() - told > _TOLD_EVERY_S:
                told = perf_counter()
                say(f"reading the corpus, file {number:,} of {len(sources):,}")
            if text := corpora.read(source):
                texts.append(session.target.tokenize(text, add_bos=False, special=False))
        tokens = join(texts)
        say(f"sorting the corpus, {len(tokens):,} tokens")
        order = sort(tokens, heed)
    if not len(order):
        raise UsageError(
            f"there is no text in the corpus {', '.join(session.settings.ngram_corpus)}",
            "Name files or folders of text.",
        )
    return tokens.data, order.data
