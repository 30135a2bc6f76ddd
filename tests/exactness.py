"""The exact distribution of a scripted model's answers, and a statistic that compares counts with it."""

import itertools

from scipy.stats import chi2

from specdec_cli.decoding.sampling import StandardSampler

PROMPT = (0, 1)
V = 5


def exact(table, sampling, length):
    """The probability of every continuation of PROMPT, by the chain rule over the target's own distributions."""
    context = list(PROMPT)
    sampler = StandardSampler(sampling)
    sampler.watch(context)
    found = {}
    for tokens in itertools.product(range(table.n_vocab), repeat=length):
        prob = 1.0
        for i, token in enumerate(tokens):
            context[:] = [*PROMPT, *tokens[:i]]
            prob *= sampler.categorical(table.row(context)).prob(token)
        if prob > 0:
            found[tokens] = prob
    return found


def p_value(counts, expected, n):
    """Pearson's chi-square; cells expected fewer than 5 times are pooled; anything impossible is a failure."""
    if any(cell not in expected for cell in counts):
        return 0.0
    rare = [cell for cell, prob in expected.items() if prob * n < 5]
    cells = [(counts[cell], prob * n) for cell, prob in expected.items() if prob * n >= 5]
    if rare:
        cells.append((sum(counts[cell] for cell in rare), sum(expected[cell] for cell in rare) * n))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return float(chi2.sf(statistic, len(cells) - 1)) if len(cells) > 1 else 1.0
