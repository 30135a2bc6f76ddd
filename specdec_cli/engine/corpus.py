"""`--ngram-corpus`: other texts for the drafter `ngram`, indexed once in the target's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.drafters.corpus_index import Corpus, join, sort
from specdec_cli.engine.config import Settings
from specdec_cli.engine.loaded_models import LoadedModels
from specdec_cli.llama.model import Model
from specdec_cli.models import corpus_files
from specdec_cli.models.corpus_files import Source
from specdec_cli.store import corpora

_REPORT_EVERY_S = 0.1
_PIECE = 1 << 18  # characters

Progress = Callable[[str], None]


def files_of(settings: Settings, ways: Iterable[Settings]) -> list[Source]:
    """The files of the corpus; none if no drafter of `ways` reads it. Raises UsageError if it cannot be used."""
    read = settings.ngram_corpus and any(way.chain.reads_corpus for way in ways)
    return corpus_files.find(settings.ngram_corpus) if read else []


def read(
    settings: Settings, files: Sequence[Source], models: LoadedModels, stopped: Callable[[], bool], progress: Progress
) -> Corpus:
    """The index of these texts: the one kept, or else made now and kept.

    Raises UsageError if there is no text in them, Interrupted once `stopped` says so.
    """
    names, target = settings.ngram_corpus, models.target
    path = corpora.path_of(target.header, names, files)
    if (kept := corpora.load(path)) is not None:
        return Corpus(*kept)
    index = _index(names, files, target.model, stopped, progress)
    try:
        corpora.save(path, index)
    except SpecdecError as error:
        models.note(f"the index of the corpus is not kept: {error}")
    return Corpus(*index)


def _index(
    names: Sequence[str], files: Sequence[Source], model: Model, stopped: Callable[[], bool], progress: Progress
) -> corpora.Index:
    def check() -> None:
        if stopped():
            raise Interrupted

    texts: list[Sequence[int]] = []
    reported = perf_counter()
    for number, file in enumerate(files):
        check()
        if perf_counter() - reported > _REPORT_EVERY_S:
            reported = perf_counter()
            progress(f"reading the corpus, file {number:,} of {len(files):,}")
        tokens: list[int] = []
        for piece in _pieces(corpus_files.read(file) or ""):
            check()
            tokens += model.tokenize(piece, add_bos=False, special=False)
        texts += [tokens] if tokens else []
    joined = join(texts)
    progress(f"sorting the corpus, {len(joined):,} tokens")
    order = sort(joined, check)
    if not len(order):
        raise UsageError(f"there is no text in the corpus {', '.join(names)}", "Name files or folders of text.")
    return joined.data, order.data


def _pieces(text: str) -> Iterator[str]:
    """A text cut at ends of lines, where it is long: one call of llama.cpp cannot be interrupted."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1
        yield text[start : end or None]
        start = end or len(text)
