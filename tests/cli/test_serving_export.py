"""`specdec export`: a pair in the words of other engines."""

import json
import shlex
import shutil

import loras
import pytest
from driver import DRAFT, TARGET, assert_refused, call, complaint, configure, succeeded, told
from hub_pairs import own_profile
from recorded import recording

from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.llama import library
from specdec_cli.measure import acceptance_traces, export, hardware
from specdec_cli.measure.export import ENGINES
from specdec_cli.pairs import speeds
from specdec_cli.weights import tuning


@pytest.fixture(autouse=True)
def usual(monkeypatch):
    """Usual settings; lengths are chosen by the first answers of a recording, as their choice is proved elsewhere."""
    monkeypatch.delenv("SPECDEC_DRAFTER")
    monkeypatch.delenv("SPECDEC_THREADS")
    chosen = export.best_static
    monkeypatch.setattr(export, "best_static", lambda answers, *rest: chosen(answers[:10], *rest))


def options(command):
    """What a command line says, by option."""
    words = shlex.split(command)
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def exported(engine, *arguments):
    return told("export", engine, *arguments)


def test_llama_server_gets_the_best_fixed_length_of_the_recording():
    found = exported("llama-server", "-p", "demo", "--what-if", "rtx-4090")
    said = options(found["command"])
    assert said["--model"] == str(TARGET) and said["--spec-draft-model"] == str(DRAFT)
    assert said["--spec-type"] == "draft-simple" and int(said["--spec-draft-n-max"]) == found["setting"]["tokens"] > 0
    setting = found["setting"]
    assert setting["auto_speedup"] > setting["tokens_per_s"] / setting["alone_tokens_per_s"] > 1
    assert "rtx-4090" in found["expected"][0]


def test_where_no_length_pays_or_without_a_drafter_the_target_runs_alone():
    found = exported("llama-server", "-p", "demo", "--what-if", "epyc-2core")
    assert found["setting"]["tokens"] == 0 and "--spec-type" not in options(found["command"])
    assert "no fixed draft length pays" in found["expected"][0]
    found = exported("llama-server", "-p", "demo", "--drafter", "none")
    assert "--spec-type" not in options(found["command"]) and found["lost"][0].startswith("It doesn't draft")
    assert found["expected"] == []


def tuned(machine):
    """Leave what `tune` would on a machine."""
    costs = hardware.load("rtx-4090").costs
    tuning.save(TARGET, DRAFT, tuning.Tuning(machine, 1, 1, -1, -1, costs, {"greedy": Calibration.prior(True)}))
    acceptance_traces.write(tuning.path_of(TARGET, DRAFT).with_suffix(".greedy.json.gz"), recording())


def test_costs_of_another_machine_are_not_this_machines():
    for machine in ("another", library.machine()):
        tuned(machine)
        expected = exported("llama-server", "-m", TARGET, "-md", DRAFT)["expected"][0]
        assert ("this machine" in expected) == (machine != "another")


@pytest.mark.parametrize(
    ("kernels", "types", "what_if"),
    [(True, {"Q8_0"}, ()), (False, {"Q8_0"}, ()), (True, {"Q4_K"}, ()), (True, {"Q8_0"}, ("--what-if", "rtx-4090"))],
)
def test_costs_by_kernels_of_our_own_are_not_those_of_other_builds(monkeypatch, kernels, types, what_if):
    """The bundled pair is Q8_0."""
    monkeypatch.setattr(library, "has_own_kernels", lambda: kernels)
    monkeypatch.setattr(export, "_OWN", types)
    tuned(library.machine())
    expected = exported("llama-server", "-m", TARGET, "-md", DRAFT, *what_if)["expected"]
    said = any("Other builds of llama.cpp take longer" in each for each in expected)
    assert said == (kernels and types == {"Q8_0"} and not what_if)


@pytest.mark.parametrize(("low", "setup", "shown"), [(1.4, "a GPU", True), (0.9, "a GPU", False), (1.4, "", False)])
def test_a_measured_speedup_is_shown_if_it_may_be_claimed_and_is_from_the_same_devices(monkeypatch, low, setup, shown):
    monkeypatch.setattr(export, "setup_of_pair", lambda *_: "a GPU")
    file = tuning.path_of(TARGET, DRAFT, "a GPU").with_suffix(".greedy.json.gz")
    acceptance_traces.write(file, recording())
    speeds.keep_speed(TARGET, DRAFT, speeds.Speed(1.5, low, 1.6, "k=2", "2026-01-01"), setup)
    found = exported("llama-server", "-p", "demo", "--what-if", "rtx-4090")
    assert ["compare measured 1.50x" in said for said in found["expected"]] == [False, True][: 1 + shown]


def test_the_preset_says_what_the_command_says(tmp_path):
    file = tmp_path / "preset.ini"
    command = succeeded("export", "llama-server", "-p", "demo", "--what-if", "rtx-4090", "-c", "512", "-o", file).stdout
    head, section = file.read_text().split("\n\n")
    assert head == "version = 1" and section.startswith("[target]\n")
    preset = dict(line.split(" = ") for line in section.strip().split("\n")[1:])
    assert {f"--{name}": value for name, value in preset.items()} == options(command)
    assert preset["ctx-size"] == "512"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pair_that_is_not_here_is_named_by_its_repositories(engine):
    models = "target: Qwen/Qwen3-8B-GGUF:Q4_K_M\ndraft: Qwen/Qwen3-0.6B-GGUF:Q8_0\n"
    own_profile("my pair", models + "settings: {temp: 0.6}\n")
    found = exported(engine, "-p", "my pair")
    text = found["command"]
    own = {"vllm", "sglang"} & {engine}
    assert ("Qwen/Qwen3-0.6B" if own else "Qwen/Qwen3-0.6B-GGUF") in text
    tune = f"specdec tune -p 'my pair' --temp 0.6 --accept {ENGINES[engine].policy.rule}"
    assert ("GGUF" in text) != bool(own) and found["measure"] == f"specdec pull 'my pair' && {tune}"
    assert found["lost"] and ("not run" in found["checked"]) == (engine != "llama-server")


def test_adapters_and_penalties_are_exported_and_what_is_not_is_said(tmp_path):
    adapters = [loras.write(tmp_path / f"{name}.gguf", TARGET) for name in ("style", "tone")]
    more = f"lora: ['{adapters[0]}:0.5', '{adapters[1]}'], repeat-penalty: 1.1, device-draft: none"
    more += ", presence-penalty: -1, chat-template-kwargs: {enable_thinking: false}, draft-window: 64"
    own_profile("styled", f"target: {TARGET}\ndraft: {DRAFT}\nsettings: {{{more}}}\n")
    found = exported("llama-server", "-p", "styled", "-ngl", 20)
    said = options(found["command"])
    assert said["--lora-scaled"] == f"{adapters[0]}:0.5,{adapters[1]}:1"
    assert (said["--repeat-penalty"], said["--repeat-last-n"], said["--presence-penalty"]) == ("1.1", "64", "-1.0")
    assert json.loads(said["--chat-template-kwargs"]) == {"enable_thinking": False}
    assert found["measure"] == "specdec tune -p styled --temp 0.0 -ngl 20"
    assert found["lost"][-1] == "These settings aren't exported: --device-draft, --draft-window."
    own_profile("far", "target: Qwen/Qwen3-8B-GGUF:Q4_K_M\nsettings: {lora: [x.gguf], device-draft: none}\n")
    assert exported("vllm", "-p", "far", "-t", 2)["lost"][-1] == "These settings aren't exported: --threads, --lora."
    shutil.copy(adapters[0], tmp_path / "a,b.gguf")
    own_profile("styled", f"target: {TARGET}\nsettings: {{lora: ['{tmp_path}/a,b.gguf']}}\n")
    assert_refused(call("export", "llama-server", "-p", "styled"), 2, "would cut the adapter's path")


def test_vllm_and_sglang_count_as_they_do():
    config = json.loads(options(exported("vllm", "-p", "qwen3-8b")["command"])["--speculative-config"])
    assert config == {
        "method": "draft_model",
        "model": "Qwen/Qwen3-0.6B",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }
    said = options(exported("sglang", "-p", "qwen3-8b")["command"])
    assert said["--speculative-num-steps"] == "4" and said["--speculative-num-draft-tokens"] == "5"
    ngram = ("-p", "qwen3-8b", "--drafter", "ngram")
    looked_up = json.loads(options(exported("vllm", *ngram)["command"])["--speculative-config"])
    assert looked_up["method"] == "ngram" and looked_up["prompt_lookup_max"] > looked_up["prompt_lookup_min"]
    assert options(exported("sglang", *ngram)["command"])["--speculative-algorithm"] == "NGRAM"


def test_vllm_takes_only_vocabularies_of_the_same_size(monkeypatch):
    """Qwen2.5-Coder 7B and 0.5B differ by padding."""
    monkeypatch.setattr(export, "original_of", lambda _: "org/model")
    sizes = {TARGET.name: 152_064, DRAFT.name: 151_936}
    monkeypatch.setattr(export, "Vocabulary", lambda header: range(sizes[header.name]))
    pair = ("-m", TARGET, "-md", DRAFT)
    assert "the target has 152,064 tokens, the draft 151,936" in exported("vllm", *pair)["lost"][0]
    sizes[DRAFT.name] = sizes[TARGET.name]
    for found in (exported("vllm", *pair), exported("vllm", *pair, "--drafter", "ngram"), exported("sglang", *pair)):
        assert "It refuses" not in "".join(found["lost"])
    assert exported("vllm", "-p", "qwen3-8b")["lost"][0].startswith("It refuses a draft model with another vocabulary")


def test_models_that_the_configuration_names_count():
    configure("target: qwen3-8b\n")
    said = options(exported("llama-server", "-ngl", "20")["command"])
    assert said["--spec-draft-hf"] == "Qwen/Qwen3-0.6B-GGUF:Q8_0" and said["--gpu-layers"] == "20"


def test_models_that_are_not_here_are_named_by_repository_and_file():
    """For the draft's file there is no other option: llama-server looks for it in --spec-draft-hf."""
    said = exported("llama-server", "-m", "org/t/t.gguf", "-md", "org/d/q/d-Q8_0.gguf")
    named = {"--hf-repo": "org/t", "--hf-file": "t.gguf"}
    named |= {"--spec-draft-hf": "org/d", "--spec-draft-model": "q/d-Q8_0.gguf"}
    assert named.items() <= options(said["command"]).items()
    alone = options(exported("llama-server", "-m", "org/t:Q8_0", "--drafter", "none")["command"])
    assert alone["--hf-repo"] == "org/t:Q8_0" and "--hf-file" not in alone


def test_at_a_temperature_the_rule_of_the_engine_counts():
    """What is recorded with `rejection` tells nothing of llama.cpp's rule."""
    said = exported("llama-server", "-p", "demo", "--temp", "0.8", "--what-if", "rtx-4090")["measure"]
    assert "--accept match" in said and "--temp 0.8" in said


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("nothing",), "no engine"),
        (("vllm",), "can't load GGUF"),
        (("llama-server", "-p", "demo", "--what-if", "abacus"), "abacus"),
        (("llama-server", "-p", "demo", "--drafter", "none", "--what-if", "abacus"), "abacus"),
        (("vllm", "-p", "qwen3-8b", "--what-if", "abacus"), "abacus"),
        (("llama-server", "-p", "demo", "--drafter", "lookahead"), "no other engine"),
        (("llama-server", "-m", "missing.gguf"), "missing.gguf"),
    ],
)
def test_what_cannot_be_is_two_lines(arguments, what):
    done = call("export", *arguments)
    assert what in "".join(complaint(done.stderr)) and done.exit_code in (1, 2) and not done.stdout


def test_a_path_with_spaces_stays_one_word_and_one_that_a_preset_would_cut_is_refused(tmp_path):
    spaced, cut = (shutil.copy(TARGET, tmp_path / name) for name in ("my target.gguf", "a;b.gguf"))
    said = options(exported("llama-server", "-m", spaced)["command"])
    assert said["--model"] == str(spaced) and said["--spec-type"] == "ngram-simple"
    assert_refused(call("export", "llama-server", "-m", cut), 2, "cut at ; and #")


def test_commands_are_printed_on_one_line_at_any_width():
    done = succeeded("export", "llama-server", "-m", TARGET, "-md", DRAFT, COLUMNS="20")
    found = exported("llama-server", "-m", TARGET, "-md", DRAFT)
    assert done.stdout == found["command"] + "\n"
    assert found["measure"] in done.stderr.splitlines() and "specdec tune" in found["measure"]
