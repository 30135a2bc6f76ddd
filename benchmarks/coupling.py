"""What Gumbel coupling accepts against speculative sampling, place by place, as exact probabilities.

    python benchmarks/coupling.py [RECORDING] [--target T --draft D]

In each place of texts that the target sampled (a recording's, or of the bundled pair's suite) p and q are computed
from both models' rows. A draft token stands with probability sum(min(p, q)) under `rejection`. Under `coupled` both
draws are x with probability 1 / sum_y max(p_y / p_x, q_y / q_x): with exponential E_y, that is P(E_y >= E_x max(...)
for all y) (Daliri et al., arXiv 2408.07978). No dice are thrown but those of the texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import add_models, open_demo

from specdec_cli.decoding.accept import onto
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Step
from specdec_cli.engine.session import Session
from specdec_cli.llama.context import LlamaContext
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import suites
from specdec_cli.measure.simulator import Text

TEMPERATURE, TOKENS = 0.8, 96
DRAFT_LENGTH = 4
"""Of drafts whose accepted tokens are compared too: where one token fails, those after it do."""


def accepted(p: Categorical, q: Categorical) -> tuple[float, float]:
    """How likely a draft token stands under `rejection` and under `coupled`."""
    target = p.probs.astype(np.float64)
    draft = onto(p, q)
    both = draft > 0  # of other tokens neither is ever both draws
    if not both.any():
        return 0.0, 0.0
    ids = np.arange(target.size)[both]
    worst = np.maximum(target[None, :] / target[ids, None], draft[None, :] / draft[ids, None]).sum(axis=1)
    # The draft's tokens that the target cuts: their p is 0, their q counts.
    worst += max(1.0 - draft.sum(), 0.0) / draft[ids]
    return float(np.minimum(target, draft).sum()), float((1 / worst).sum())


def rows_of(context: LlamaContext, tokens: Sequence[int], start: int) -> np.ndarray:
    """The rows after each token from place `start` on, in passes as wide as the context allows."""
    context.rewind(0)
    context.decode(tokens[:start])
    found = []
    for at in range(start, len(tokens), context.max_rows):
        found.append(context.decode(tokens[at : at + context.max_rows], all_rows=True).copy())
    return np.concatenate(found)


def places(session: Session, text: Text, sampler: StandardSampler) -> list[tuple[float, float]]:
    """Both probabilities in each place of a text but the first, where nothing is drafted."""
    context = [*text.prompt, *text.tokens]
    rows = [rows_of(each, context[:-1], len(text.prompt)) for each in session.models.contexts]
    shared = session.pair.n_shared
    return [
        accepted(sampler.categorical(target), sampler.categorical(draft[:shared]))
        for target, draft in zip(*rows, strict=True)
    ]


def sampled_texts(session: Session) -> list[Text]:
    """Answers to the suite `python`."""
    found = []
    for number, prompt in enumerate(suites.load("python")):
        ids = session.tokenize(prompt.text, raw=True)
        events = session.events(ids, number, settings=session.settings.alone())
        tokens = [token.id for event in events if isinstance(event, Step) for token in event.tokens]
        found.append(Text(prompt.category, tuple(ids), tuple(tokens)))
    return [text for text in found if len(text.tokens) > 1]


def expected(probabilities: Sequence[float]) -> float:
    """Tokens to expect of drafts of DRAFT_LENGTH, begun in every place."""
    total = 0.0
    for start in range(len(probabilities)):
        total += float(np.cumprod(probabilities[start : start + DRAFT_LENGTH]).sum())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", nargs="?", type=Path, help="with texts, sampled by the target")
    add_models(parser)
    options = parser.parse_args()
    models = {"target": options.target, "draft": options.draft}
    with open_demo(temp=TEMPERATURE, max_tokens=TOKENS, draft_tokens="auto", threads=1, **models) as session:
        if options.recording:
            recording = recordings.read(options.recording)
            recording.require(session.pair.target_path, Path(options.draft))
            texts = list(recording.texts)
        else:
            texts = sampled_texts(session)
        sampler = StandardSampler(session.settings.sampling)
        found: dict[str, list[list[tuple[float, float]]]] = {}
        for text in texts:
            found.setdefault(text.category, []).append(places(session, text, sampler))
    found["all"] = [each for entries in found.values() for each in entries]
    print("| suite | places | rejection | coupled | coupled / rejection | of drafts of 4 |\n|---|---|---|---|---|---|")
    for category, entries in found.items():
        both = np.array([place for each in entries for place in each])
        rejection, coupled = both.mean(axis=0)
        long = [sum(expected([place[rule] for place in each]) for each in entries) for rule in (0, 1)]
        print(
            f"| {category} | {len(both):,} | {rejection:.3f} | {coupled:.3f} | {coupled / rejection:.3f} "
            f"| {long[1] / long[0]:.3f} |"
        )


if __name__ == "__main__":
    main()
