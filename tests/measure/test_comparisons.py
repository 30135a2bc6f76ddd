"""Results that were kept, and files that anybody made: what is no result is refused before anything is measured."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from driver import DRAFT, TARGET
from rich.console import Console
from test_statistics import trial

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.statistics import Interval
from specdec_cli.display.comparison_tables import against
from specdec_cli.measure import compare, saved_comparisons
from specdec_cli.measure.compare import ComparisonResult, ComparisonRun, DivergentAnswer, MachineInfo
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.trials import Variant, summarise
from specdec_cli.measure.variants import ALONE
from specdec_cli.pairs import speeds
from specdec_cli.settings.settings import Settings

TRIAL = trial("k=2", "p", 4.0, tokens=3, drafted=2, accepted=1, reached=(1, 1), kept=(1, 0), row_costs={3: (1, 0.5)})
RESULT = ComparisonResult(
    specdec="0.1.0", machine=MachineInfo((), 1, "here"), versions={"python": "3"}, models={}, context=9, max_tokens=3,
    prompts={"p": "asked"}, rounds=1, variants=(Variant("k=2", "k=2", RecordedSettings()),), trials=(TRIAL,),
)  # fmt: skip


def kept(tmp_path, change=lambda data: None):
    """The file of a result, with something changed in it."""
    data = RESULT.to_json()
    change(data)
    (tmp_path / "x.json").write_text(json.dumps(data))
    return str(tmp_path / "x.json")


def shown(before, now=RESULT):
    console = Console(width=100)
    with console.capture() as printed:
        console.print(against(now, before))
    return printed.get()


def test_what_is_kept_comes_back(tmp_path):
    saved_comparisons.require_writable_file("mine")
    saved_comparisons.store("mine", RESULT)
    assert saved_comparisons.load("mine") == saved_comparisons.load(kept(tmp_path)) == RESULT
    assert "4.0   4.0" in shown(saved_comparisons.load("mine")) and "1.00x" not in shown(RESULT)
    for name, mtime in (("mine", 1e9), ("theirs", 1e15)):
        saved_comparisons.store(name, RESULT)
        os.utime(saved_comparisons.path_of(name), (mtime, mtime))
    saved_comparisons.path_of("lost").symlink_to("nowhere")
    assert [name for name, _ in saved_comparisons.kept()][:1] == ["mine"]


def test_a_machine_that_has_changed_is_named_above_the_table():
    trials = [trial("k=2", str(i), 4.0 + i / 100, tokens=3) for i in range(3)]
    now = replace(RESULT, prompts={str(i): f"asked {i}" for i in range(3)}, trials=tuple(trials))
    then = replace(now, trials=tuple(replace(each, decode_s=each.decode_s / 2) for each in trials))
    assert "k=2 is slower now, so the machine differs" in shown(then, now).split("tokens/s against")[0]
    assert "the machine differs" not in shown(now, now)


def with_settings(**settings):
    return replace(RESULT, variants=(Variant("k=2", "k=2", RecordedSettings(**settings)),))


def test_options_have_their_present_names_and_prompts_keep_theirs(tmp_path):
    def older(data):
        data["prompts"], data["trials"][0]["prompt"] = {"temp": "asked"}, "temp"
        data["variants"][0]["settings"]["temp"] = 0.5

    trials = (replace(TRIAL, prompt="temp"),)
    expected = replace(with_settings(temperature=0.5), prompts={"temp": "asked"}, trials=trials)
    assert saved_comparisons.load(kept(tmp_path, older)) == expected


def test_a_second_draft_model_is_the_same_in_another_folder():
    before, other = with_settings(draft_small="a/x.gguf"), with_settings(draft_small="b/y.gguf")
    assert saved_comparisons.changes(before, with_settings(draft_small="b/x.gguf"))
    assert not saved_comparisons.changes(before, other)


def test_a_baseline_is_the_same_whatever_its_first_variant_drafts():
    others = {"draft_tokens": 2, "tree": 4, "draft_window": 64, "draft_small": "a/x.gguf", "accept": "match"}
    before, now = (with_settings(drafter="none", **more) for more in ({"draft_tokens": "auto"}, others))
    assert saved_comparisons.changes(before, now)
    coupled = (with_settings(drafter="none", accept=rule, temperature=0.8) for rule in ("coupled", "rejection"))
    assert not saved_comparisons.changes(*coupled)
    assert not saved_comparisons.changes(with_settings(draft_tokens=2), with_settings(draft_tokens=3))


@pytest.mark.parametrize(
    ("names", "default"),
    [
        (["k=auto,tree=4", "drafter=ngram", "k=8", "k=auto"], "k=auto"),
        (["drafter=ngram,k=auto", "drafter=mtp", "ngram+model, k=2", "ngram+model, k=auto"], "ngram+model, k=auto"),
        (["k=auto, draft-min-p=0.5", "k=2"], None),
        (["k=auto,tree=4", "drafter=none"], None),
    ],
)
def test_the_default_length_is_that_of_a_variant_without_more_options(monkeypatch, names, default):
    def settings(name):
        length, drafter = 8 if name == "k=8" or "k=2" in name else "auto", "none" if "none" in name else "model"
        more = {"tree": 4 if "tree" in name else 1, "draft_min_p": 0.5 if "min-p" in name else None}
        return RecordedSettings(draft_tokens=length, drafter=drafter, **more)

    monkeypatch.setattr(compare, "overall_verdict", lambda summaries, baselines, wrong, found: found)
    variants = (Variant(ALONE, ALONE, settings("none")), *(Variant(name, ALONE, settings(name)) for name in names))
    assert replace(RESULT, variants=variants).verdict == default


def test_the_speed_for_the_list_of_pairs_is_an_exact_variants_and_surely_faster():
    fast = Interval(2.0, 1.9, 2.1, 9)
    found = {"wrong": fast, "lossy": fast, "wide": Interval(1.3, 0.9, 1.8, 9), "best": Interval(1.25, 1.2, 1.3, 9)}
    found["ngram"] = Interval(1.2, 1.1, 1.3, 9)
    summary = replace(summarise([TRIAL], "k=2", "k=2"), tokens_per_step=2.0)
    summaries = [replace(summary, variant=name, speedup=speedup) for name, speedup in found.items()]
    summaries[1] = replace(summaries[1], distance_per_token=0.1)
    wrong = DivergentAnswer(variant="wrong", prompt="p", position=0, margin=None, kind="wrong")
    variants = tuple(Variant(name, ALONE, RecordedSettings()) for name in found)
    result = replace(RESULT, variants=variants, summaries=tuple(summaries), divergences=(wrong,))
    settings = Settings(drafter="model")
    own = {name: replace(settings, drafter="ngram" if name == "ngram" else "model") for name in found}
    run = ComparisonRun(settings, [Variant(name, ALONE, own[name]) for name in found])
    pair = SimpleNamespace(target_path=TARGET, draft_path=DRAFT, adapters=(), draft_adapters=())
    run._remember_speed(pair, result)
    saved_speed = speeds.last_speed(TARGET, DRAFT)
    assert saved_speed.settings == "best" and saved_speed.low == found["best"].best_of(3).low, "of all exact ones"


def in_trial(name, value):
    return lambda data: data["trials"][0].update({name: value})


def at_top(name, value):
    return lambda data: data.update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        at_top("machine", {"devices": None, "threads": 1, "platform": ""}),
        *(at_top("versions", value) for value in ({"x": "x" * 1001}, dict.fromkeys(map(str, range(101)), ""))),
        at_top("prompts", {"p": "\ud800"}),
        *(in_trial("decode_s", value) for value in (-1, 1e300, float("nan"))),
        in_trial("tokens", [1.5]),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, change):
    with pytest.raises(SpecdecError, match=r"x\.json"):
        saved_comparisons.load(kept(tmp_path, change))


def test_what_is_no_json_is_refused_and_what_is_no_file_is_not_waited_for(tmp_path):
    path = tmp_path / "x.json"
    for content in (b"[" * 10**5, b"\xff\xfe", b"null"):
        path.write_bytes(content)
        with pytest.raises(SpecdecError, match=r"x\.json"):
            saved_comparisons.load(str(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SpecdecError, match="it is not a file"):
        saved_comparisons.load(str(path))
