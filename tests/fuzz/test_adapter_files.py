"""Adapters with damaged headers: each is refused, or it loads; none ends the process."""

from contextlib import closing

import loras
import pytest
import tiny
from fuzzing import Failures, cases

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.settings.config import Settings
from specdec_cli.weights.model_loading import load_model
from specdec_cli.weights.model_pair import check_pair

pytestmark = pytest.mark.fuzz


def test_damaged_headers(tmp_path):
    model = tiny.write(tmp_path / "m.gguf", "llama")
    whole = loras.write(tmp_path / "a.gguf", model)
    end, loaded, failures = read_header(whole).data_offset, [], Failures()
    for number, chance in enumerate(cases(400, "adapters")):
        raw = bytearray(whole.read_bytes())
        for _ in range(chance.choice([1, 1, 2, 8])):
            raw[chance.randrange(end)] = chance.choice([0, 1, 2, 4, 8, 12, 255, chance.randrange(256)])
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(raw)
        with failures:
            loaded.append(loads(model, path))
    failures.assert_none()
    assert loads(model, whole) and not all(loaded)


def loads(model, path):
    try:
        pair = check_pair(Settings(str(model), drafter="none", lora=(str(path),)))
        with (
            closing(load_model(model, Placement(0), Interrupt(), pair.adapters)) as adapted,
            closing(LlamaContext.open(adapted, 256, 1, 1, Interrupt())) as context,
        ):
            assert context.decode([1, 2, 3]).shape == (1, adapted.n_vocab)
        return True
    except SpecdecError as error:
        assert len(str(error)) > 10 and len(error.hint) > 10, f"{path.name}: {error}"
        return False
