"""What is read of the settings that a recording states."""

from specdec_cli.measure.recorded_settings import RecordedSettings


def test_a_value_of_another_type_is_left_out():
    stated = {"target": "t.gguf", "draft_tokens": "auto", "temp": "\ud83d", "top_k": "40", "seed": 2.5, "unknown": 1}
    assert RecordedSettings.of(stated) == RecordedSettings("t.gguf", draft_tokens="auto")
