"""The causes and predictions of a comparison, on made-up measurements."""

import pytest
from test_statistics import trial

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.measure.advice import advise, expected_speedup, expected_tokens
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.simulate import half_priced
from specdec_cli.measure.trials import Variant, overall_verdict, summarise

FLAT = Costs(Curve({1: 0.010, 2: 0.010, 5: 0.011, 9: 0.012}), draft=Curve({1: 0.001}), other=0.0001)
STEEP = Costs(Curve({1: 0.010, 2: 0.020, 3: 0.030, 4: 0.040}), draft=Curve({1: 0.004}), other=0.0001)


def test_expected_tokens_follow_the_formula_for_a_constant_rate():
    rate, k = 0.7, 8
    positions = [rate ** (i + 1) for i in range(3)]
    assert expected_tokens(positions, k) == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


def test_the_best_length_is_long_where_checking_is_free_and_short_where_it_is_not():
    positions = [0.8, 0.64, 0.51]
    flat, steep = ({k: expected_speedup(costs, positions, k) for k in range(1, 17)} for costs in (FLAT, STEEP))
    assert max(flat, key=flat.get) > 4 and max(flat.values()) > 2
    assert max(steep, key=steep.get) == 1 and max(steep.values()) < 1
    assert expected_speedup(half_priced(STEEP), positions, 1) > expected_speedup(STEEP, positions, 1)


def measured(costs, *variants, prompts=6):
    """What trials show of the target alone, at about 100 tokens/s, and others: (name, draft length, speed, fields)."""
    trials = [trial("base", str(i), 100 + i, steps=100, row_costs={1: (99, costs.verify(1))}) for i in range(prompts)]
    infos = [Variant("base", "base", RecordedSettings(drafter="none"))]
    for name, k, speed, fields in variants:
        rows = 4 if k == "auto" else k + 1
        about = {
            "row_costs": {1: (5, costs.verify(1)), rows: (30, costs.verify(rows))},
            "draft_s": fields.get("drafted", 0) * costs.draft(1),
            **fields,
        }
        trials += [trial(name, str(i), speed + i, **about) for i in range(prompts)]
        infos.append(Variant(name, "base", RecordedSettings(drafter="model", draft_tokens=k)))
    overall = [summarise(trials, info.name, "base") for info in infos]
    return overall_verdict(overall, {info.name: "base" for info in infos}), infos, overall, trials


def words(costs, *variants, experts=0):
    return " ".join(advise(*measured(costs, *variants), experts))


def poor(k, **fields):
    """Drafts of k tokens, of which few are accepted."""
    kept = tuple(round(30 * 0.4 * 0.5**i) for i in range(k))
    return {"drafted": 30 * k, "accepted": sum(kept), "reached": (30,) * k, "kept": kept, **fields}


def good(k, **fields):
    kept = tuple(30 - 2 * (i + 1) for i in range(k))
    return {"drafted": 30 * k, "accepted": sum(kept), "reached": (30,) * k, "kept": kept, "steps": 30, **fields}


def test_advice_names_the_causes_once_for_all_variants():
    said = words(STEEP, ("k=3", 3, 31, poor(3, drafted=300, accepted=70, steps=80)), ("k=1", 1, 60, poor(1)))
    for part in (
        *("Drafting, without reading the prompt, takes 40% of the time of k=3", "one draft token costs 40%"),
        *(
            "of what was drafted, 23% with k=3 and 40% with k=1",
            "verifying 2 and 5 tokens takes 2.0 and 5.0 times as long",
        ),
        "No draft length pays with this pair",
    ):
        assert part in said
    assert "mixture" not in said and said.count("Acceptance") == 1
    assert "own reading of the prompt takes" in words(STEEP, ("k=3", 3, 31, poor(3, draft_s=0.9, draft_prefill_s=0.8)))
    assert "mixture of 64 experts" in words(STEEP, ("k=3", 3, 31, poor(3)), experts=64)
    assert "answers are short (4 tokens)" in words(STEEP, ("k=3", 3, 31, poor(3, tokens=4, steps=2)))


def test_a_pair_of_which_a_variant_pays_is_never_told_to_stop():
    assert "No draft length pays" in words(STEEP, ("k=3", 3, 31, poor(3)))
    assert "No draft length pays" not in words(STEEP, ("k=3", 3, 31, poor(3)), ("k=1", 1, 130, poor(1)))


def test_variants_that_cannot_be_told_from_the_winner_are_named():
    verdict, infos, overall, trials = measured(FLAT, ("k=3", 3, 250, good(3)), ("k=1", 1, 150, good(1)))
    trials += [trial("k=4", str(i), speed, **good(4)) for i, speed in enumerate((240, 260, 235, 262, 238, 255))]
    infos.append(Variant("k=4", "base", RecordedSettings(drafter="model", draft_tokens=4)))
    overall.append(summarise(trials, "k=4", "base"))
    verdict = overall_verdict(overall, {info.name: "base" for info in infos})
    assert advise(verdict, infos, overall, trials)[0] == "k=4 may be as fast as k=3: between them the interval holds 1."


def test_the_verdict_on_all_variants():
    def verdict(*variants, prompts=6, wrong=()):
        _, infos, overall, _ = measured(FLAT, *variants, prompts=prompts)
        return overall_verdict(overall, {info.name: info.baseline for info in infos}, wrong)

    fast, slow = ("k=3", 3, 250, good(3)), ("k=1", 1, 50, good(1))
    idle = ("k=auto", "auto", 300, {"steps": 100})
    yes = verdict(slow, fast, idle)
    assert (yes.pays, yes.variant, yes.winner) == ("yes", "k=3", "k=3")
    assert yes.ranking == ("k=3", "base", "k=auto", "k=1")
    assert str(yes).startswith("Yes: 2.4") and "fastest way measured" in yes.sentence
    no = verdict(slow, idle)
    assert (no.pays, no.variant, no.winner) == ("no", "k=1", "base") and str(no).endswith("at best")
    assert verdict(idle).pays == "nothing drafted" and str(verdict(idle)) == "No: nothing was drafted"
    assert verdict(fast, prompts=2).pays == "too few prompts" and "over 2 prompts" in str(verdict(fast, prompts=2))
    assert verdict(fast, wrong={"k=3"}).pays == "wrong"
    assert verdict(fast, slow, wrong={"k=3"}).pays == "no"
    lossy = verdict(("typical", 3, 400, good(3, distance=0.5)), fast)
    assert (lossy.variant, lossy.lossy, lossy.ranking[0]) == ("k=3", False, "typical")
    assert "LOSSY" in verdict(("typical", 3, 400, good(3, distance=0.5))).sentence
    assert verdict().pays == "not measured"


def test_too_wide_an_interval_is_inconclusive():
    trials = [trial("base", str(i), 100, steps=100) for i in range(4)]
    trials += [trial("k=3", str(i), speed, **good(3)) for i, speed in enumerate((60, 180, 90, 140))]
    overall = [summarise(trials, name, "base") for name in ("base", "k=3")]
    verdict = overall_verdict(overall, {"base": "base", "k=3": "base"})
    assert (verdict.pays, verdict.winner) == ("inconclusive", None) and str(verdict).startswith("Inconclusive: 1.08x (")
    infos = [Variant(name, "base", RecordedSettings()) for name in ("base", "k=3")]
    assert "make the interval narrower" in advise(verdict, infos, overall, trials)[-1]
