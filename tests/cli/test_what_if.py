"""`specdec tune --what-if`: what other machines would do with a pair's recording."""

from dataclasses import replace

from driver import DRAFT, TARGET, assert_refused, call, told
from recorded import recording

from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure.acceptance_traces import recording_of
from specdec_cli.pairs import profiles
from specdec_cli.weights import tuning


def predict(name, *args):
    return call("tune", "--what-if", name, *args)


def what_if(name, *args):
    return told("tune", "--what-if", name, *args)


def keep_recording(target=TARGET, draft=DRAFT):
    recordings.write(tuning.path_of(target, draft).with_suffix(".greedy.json.gz"), recording())


def test_what_if():
    """Of machines that come with specdec, and of the user's own."""
    keep_recording()
    folder = profiles.config_dir() / "hardware"
    folder.mkdir()
    for name, draft in (("quick", 1), ("slow", 500)):
        (folder / f"{name}.yaml").write_text(
            f"basis: measured\nverify_ms: {{1: 20, 17: 22}}\ndraft_ms: {{1: {draft}}}\n"
        )
    result = {name: what_if(name) for name in ("h200", "quick", "slow")}
    for name, found in result.items():
        assert found["hardware"]["name"] == name and f" on {name}" in found["verdict"][0]
        (part,) = found["predictions"]
        assert part["category"] == "code" and part["acceptance"] == 0.75 and part["auto"] > 0.9
        assert not {"kept", "machine", "threads"} & set(found)
    assert result["h200"]["hardware"]["source"] and not tuning.path_of(TARGET, DRAFT).exists()
    quick, slow = (result[name]["predictions"][0] for name in ("quick", "slow"))
    assert quick["alone_tokens_per_s"] == slow["alone_tokens_per_s"] == 50.0
    assert quick["auto"] > 1.5 and quick["best_k"] > 0 and slow["best_k"] == 0


def test_a_recording_of_other_models_or_a_damaged_one_is_refused():
    keep_recording()
    path = recording_of(TARGET, DRAFT, "greedy")
    recordings.write(path, replace(recording(), about=recordings.identity(TARGET, DRAFT) | {"draft_bytes": 5}))
    assert_refused(predict("h200"), 1, "another draft", "5 bytes", "Run specdec tune")
    path.write_bytes(b"PK")
    assert_refused(predict("h200"), 1, "greedy.json.gz", "ecord")


def test_hardware_that_is_not_known():
    """No name as well, as from an unset variable in a script: not a minute of measuring instead."""
    for name, hint in (("rtx-490", "'rtx-4090'"), ("../hardware/h200", "h200"), ("", "h200")):
        assert_refused(predict(name), 2, "no hardware", name, hint)


def test_a_pair_without_a_recording(tmp_path):
    """The bundled pair under other names, elsewhere."""
    pair = ("-m", tmp_path / "big.gguf", "-md", tmp_path / "small.gguf")
    for path, model in zip(pair[1::2], (TARGET, DRAFT), strict=True):
        path.symlink_to(model)
    assert_refused(predict("h200", *pair), 1, "has no recording", "temperature 0", "specdec tune")
    keep_recording(*pair[1::2])
    assert what_if("h200", *pair)["recorded_tokens"] == 120
    assert_refused(predict("h200", *pair, "--temp", 0.5), 1, "--accept rejection", "--temp")
