"""The causes and predictions of a comparison, on made-up measurements."""

import pytest
from test_statistics import trial

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.measure.advice import advise, expected_speedup, expected_tokens
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.simulate import half_priced
from specdec_cli.measure.trials import Variant, summarise
from specdec_cli.measure.verdict import overall_verdict

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
        "Drafting takes 40% of the time with k=3, without reading the prompt: one draft token costs 40%",
        "Few draft tokens are accepted: 23% with k=3 and 40% with k=1",
        "verifying 2 and 5 tokens takes 2.0 and 5.0 times as long",
        "No draft length pays with this pair",
    ):
        assert part in said
    assert "mixture" not in said and said.count("Few draft tokens") == 1
    reading = ("k=3", 3, 31, poor(3, draft_s=0.9, draft_prefill_s=0.8))
    assert "of the decoding time to read the prompt" in words(STEEP, reading)
    assert "mixture of 64 experts" in words(STEEP, ("k=3", 3, 31, poor(3)), experts=64)
    assert "answers are short (4 tokens)" in words(STEEP, ("k=3", 3, 31, poor(3, tokens=4, steps=2)))
    assert "No draft length pays" not in words(STEEP, ("k=3", 3, 31, poor(3)), ("k=1", 1, 130, poor(1)))


def test_variants_that_cannot_be_told_from_the_winner_are_named():
    verdict, infos, overall, trials = measured(FLAT, ("k=3", 3, 250, good(3)), ("k=1", 1, 150, good(1)))
    trials += [trial("k=4", str(i), speed, **good(4)) for i, speed in enumerate((240, 260, 235, 262, 238, 255))]
    infos.append(Variant("k=4", "base", RecordedSettings(drafter="model", draft_tokens=4)))
    overall.append(summarise(trials, "k=4", "base"))
    verdict = overall_verdict(overall, {info.name: "base" for info in infos})
    equal = "k=4 may be as fast as k=3: the interval of the ratio between them holds 1."
    assert advise(verdict, infos, overall, trials)[0] == equal


def verdict_on(*variants, prompts=6, wrong=(), default=None):
    _, infos, overall, _ = measured(FLAT, *variants, prompts=prompts)
    return overall_verdict(overall, {info.name: info.baseline for info in infos}, wrong, default)


FAST, SLOW, EQUAL = ("k=3", 3, 250, good(3)), ("k=1", 1, 50, good(1)), ("k=2", 2, 100, good(2))
IDLE = ("k=auto", "auto", 300, {"steps": 100})
LATE = ("k=auto", "auto", 80, {"steps": 100, "draft_s": 0.5})
WASTED = ("k=auto", "auto", 110, {"steps": 100, "drafted": 9, "accepted": 1})
LOSSY = ("typical", 3, 400, good(3, distance=0.5))


@pytest.mark.parametrize(
    ("variants", "options", "pays", "variant", "winner", "says"),
    [
        ([SLOW, FAST, IDLE], {"default": "k=auto"}, "yes", "k=3", "k=3", "k=auto, drafted nothing. Use k=3."),
        ([FAST], {"default": "k=3"}, "yes", "k=3", "k=3", "Keep the default draft length, k=3."),
        ([SLOW, FAST], {"default": "k=1"}, "yes", "k=3", "k=3", "k=1, is slower than the target alone: 0.5"),
        ([SLOW], {}, "no", "k=1", "base", "No: 0.5"),
        ([SLOW, EQUAL], {}, "no", "k=2", "base", "target alone k=2 comes closest (1.00 to 1.00). Run the target alone"),
        ([EQUAL], {}, "no", "k=2", "base", "No: k=2 is as fast as the target alone"),
        ([IDLE], {}, "nothing drafted", "k=auto", "base", "No: nothing was drafted"),
        ([WASTED], {}, "few accepted", "k=auto", "base", "No: hardly any tokens came from drafts"),
        ([SLOW, IDLE], {}, "no", "k=1", "base", "No: no setting measured is faster"),
        ([LATE], {}, "no", "k=auto", "base", "No: 0.8"),
        ([FAST], {"prompts": 2}, "too few prompts", "k=3", None, "2 were measured"),
        ([FAST], {"wrong": {"k=3"}}, "wrong", None, None, "report it"),
        ([FAST, SLOW], {"wrong": {"k=3"}}, "no", "k=1", "base", "no exact setting measured is faster"),
        ([LOSSY, FAST], {}, "yes", "k=3", "k=3", "k=3 is the fastest exact setting measured."),
        ([LOSSY, SLOW], {}, "no", "k=1", "base", "no exact setting measured is faster"),
        ([LOSSY], {}, "yes", "typical", "typical", "LOSSY"),
        ([], {}, "not measured", None, None, "Not measured"),
    ],
)
def test_the_verdict_is_about_the_fastest_exact_variant_that_drafts(variants, options, pays, variant, winner, says):
    found = verdict_on(*variants, **options)
    assert (found.pays, found.variant, found.winner) == (pays, variant, winner)
    assert says in f"{found.headline} {found.sentence} {found.recommendation}"
    assert bool(found.speedup) == ("x (" in f"{found.headline} {found.sentence}")
    assert found.lossy == (variant == "typical")


def test_a_ranking_and_what_is_said_of_variants_without_drafts():
    assert verdict_on(SLOW, FAST, IDLE).ranking == ("k=3", "base", "k=auto", "k=1")
    assert verdict_on(LOSSY, FAST).ranking == ("typical", "k=3", "base")
    assert "Hardly any tokens came from drafts with k=auto, so" in words(FLAT, SLOW, WASTED)
    assert "Nothing was drafted with k=auto, so" in words(FLAT, SLOW, IDLE)
    assert words(FLAT, LATE).startswith("Nothing was drafted") and "Drafting takes" not in words(FLAT, LATE)


def verdict_of_speeds(default=None, **speeds):
    trials = [trial("base", str(i), 100, steps=100) for i in range(4)]
    trials += [trial(name, str(i), speed, **good(3)) for name, each in speeds.items() for i, speed in enumerate(each)]
    overall = [summarise(trials, name, "base") for name in ("base", *speeds)]
    return overall_verdict(overall, dict.fromkeys(("base", *speeds), "base"), (), default)


def test_a_slower_variant_that_is_undecided_does_not_decide():
    verdict = verdict_of_speeds("auto", auto=(102, 104, 103, 101), k4=(60, 120, 70, 90))
    assert (verdict.pays, verdict.variant, verdict.winner) == ("no", "auto", "base")
    verdict = verdict_of_speeds("auto", auto=(96, 97, 98, 97), k4=(60, 180, 90, 140))
    assert (verdict.pays, verdict.variant, verdict.winner, verdict.speedup) == ("inconclusive", "k4", None, None)
    assert "The default draft length, auto, is slower than the target alone: 0.97x" in verdict.sentence


def test_the_best_of_several_variants_may_be_so_by_chance():
    one = verdict_of_speeds(k1=(103, 105, 104, 102))
    assert (one.pays, one.winner) == ("yes", "k1")
    four = verdict_of_speeds(k1=(103, 105, 104, 102), **{f"k{i}": (99, 102, 98, 101) for i in (2, 3, 4)})
    assert (four.pays, four.variant, four.winner, four.speedup) == ("inconclusive", "k1", None, None)
    assert "slower" not in four.headline
    assert "1.03x (1.01 to 1.06), but the best of several settings" in four.sentence
    assert verdict_of_speeds(k1=(103, 105, 104, 102), k2=(120, 121, 119, 122)).winner == "k2"
