"""`--ngram-corpus`: other texts for the drafter `ngram`, indexed once in the target's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.display.status_line import working

if TYPE_CHECKING:
    from specdec_cli.engine.session import Session
    from specdec_cli.engine.settings import Settings
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.models.corpus_files import Source
    from specdec_cli.store.corpora import Index

_TOLD_EVERY_S = 0.1
_PIECE = 1 << 18  # characters


def reads_corpus(drafter: str) -> bool:
    """Whether a drafter, or one of a chain, looks into a corpus."""
    return "ngram" in drafter.split("+")


def sources_of(settings: Settings, drafters: Iterable[str]) -> list[Source]:
    """The files of the corpus; none if no drafter looks into it. Raises UsageError if it is unusable."""
    from specdec_cli.models import corpus_files

    if not settings.ngram_corpus or not any(map(reads_corpus, drafters)):
        return []
    return corpus_files.find(settings.ngram_corpus)


def open_corpus(session: Session, sources: Sequence[Source], interrupt: Interrupt, silent: bool) -> None:
    """Give the session its corpus: from the cache, or else indexed now and kept.

    Raises UsageError if there is no text in it, Interrupted on Ctrl-C.
    """
    if not sources:
        return
    from specdec_cli.drafters.corpus_index import Corpus
    from specdec_cli.store import corpora

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
    from specdec_cli.drafters.corpus_index import join, sort
    from specdec_cli.models import corpus_files

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
            tokens: list[int] = []
            for piece in _pieces(corpus_files.read(source) or ""):
                heed()
                tokens += session.target.tokenize(piece, add_bos=False, special=False)
            texts += [tokens] if tokens else []
        joined = join(texts)
        say(f"sorting the corpus, {len(joined):,} tokens")
        order = sort(joined, heed)
    if not len(order):
        raise UsageError(
            f"there is no text in the corpus {', '.join(session.settings.ngram_corpus)}",
            "Name files or folders of text.",
        )
    return joined.data, order.data


def _pieces(text: str) -> Iterator[str]:
    """A text cut at ends of lines, where it is long: one call of llama.cpp cannot be interrupted."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1
        yield text[start : end or None]
        start = end or len(text)
