"""benchmarks/gpu: what's packed for another machine; its curves as a file for profiles/hardware; the report's bars."""

import io
import json
import tarfile

import curves
import pack
import pytest
import report
from results import CellFigures, Figures, Machine, Ratio, Results, save

from specdec_cli.measure import hardware

LLAMA = "vendor/llama.cpp/"
LONG = LLAMA + "ggml/src/ggml-cuda/template-instances/fattn-mma-f16-instance-ncols1_16-ncols2_1-and-longer-yet.cu"
ADDED = "add_subdirectory(server)\n  add_subdirectory(${backend})\n"
KEPT = {"llama_cpp/llama_cpp.py": "bindings", LLAMA + "tools/server/main.cpp": "int main() {}", LONG: "kernel"}
LEFT_OUT = {
    LLAMA + "media/matmul.png": "a picture",
    LLAMA + "tools/quantize/main.cpp": "int main() {}",
    "docs/index.md": "text",
}


@pytest.mark.slow
def test_the_slim_package_builds_only_what_it_holds(tmp_path):
    """Folders that were left out are added by no CMakeLists.txt, and names over 100 characters stay whole."""
    tools = f"if (A)\n    add_subdirectory(quantize)\nendif()\n{ADDED}"
    with tarfile.open(tmp_path / "sdist.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as package:
        for name, text in {**KEPT, **LEFT_OUT, LLAMA + "tools/CMakeLists.txt": tools}.items():
            entry = tarfile.TarInfo(f"llama_cpp_python-9.9/{name}")
            entry.size, entry.mode = len(text), 0o644
            package.addfile(entry, io.BytesIO(text.encode()))
    pack.slim(tmp_path / "sdist.tar.gz", tmp_path / "slim.tar.xz")
    with tarfile.open(tmp_path / "slim.tar.xz") as slim:
        found = {member.name: slim.extractfile(member).read().decode() for member in slim}
    assert found == {**KEPT, LLAMA + "tools/CMakeLists.txt": f"if (A)\nendif()\n{ADDED}"}


@pytest.mark.slow
def test_what_the_other_machine_has_is_not_needed():
    everything = pack.needed(set())
    assert any(text.startswith("numpy") for text in everything)
    assert not any(text.startswith("llama") for text in everything)
    assert not any(text.startswith("numpy") for text in pack.needed({"numpy"}))


def a_curve(model, context, ms):
    orders = [{"order": order, "ms": ms} for order, ms in (([4, 5], [1.5, 2.5]), ([1], [4.5]), ([5], [6.0]))]
    return {"model": model, "context": context, **curves.summary(ms), "planning": orders}


CURVES = [
    a_curve("target", 16384, {1: [0.009], 2: [0.009]}),
    a_curve("target", 256, {1: [0.006, 0.005], 2: [0.0055], 8: [0.0081], 9: [0.0079, 0.02], 11: [0.009]}),
    a_curve("draft", 256, {1: [0.001, 0.0012], 2: [0.0011], 512: [0.01]}),
]


MODELS = {"target": "x/big.gguf", "draft": "x/small.gguf"}
MEASURED = {"machine": "a card; a CPU, 16 cores", "models": MODELS, "curves": CURVES}


def test_the_curves_become_a_file_for_profiles(tmp_path, monkeypatch):
    """The shortest laps at the shortest context; none longer than a larger pass's."""
    text = curves.hardware_yaml(MEASURED, 0.123)
    folder = tmp_path / "hardware"
    folder.mkdir()
    (folder / "card.yaml").write_text(text)
    monkeypatch.setattr(hardware, "config_dir", lambda: tmp_path)
    found = hardware.load("card")
    assert (found.basis, found.description) == ("measured", "a card; big with small as draft")
    assert "256 tokens in the cache" in found.source and "1 to 2 laps" in found.source
    assert found.costs.verify.points == pytest.approx({1: 0.005, 2: 0.0055, 8: 0.0079, 9: 0.0079})
    assert found.costs.repeated.points == pytest.approx({1: 0.0045, 5: 0.006})
    assert found.costs.draft.points == pytest.approx({1: 0.001, 2: 0.0011, 512: 0.01})
    assert "other_ms: 0.12\n" in text
    assert "other_ms" not in curves.hardware_yaml(MEASURED)


def summary(variant, category, mean):
    speedup = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1} if mean else None
    return {"variant": variant, "category": category, "tokens_per_s": 200.0, "speedup": speedup}


def comparison(suite, temp, **speedups):
    found = [summary("target alone", name, None) for name in speedups]
    found += [summary("ngram+model, k=auto", name, mean) for name, mean in speedups.items()]
    exactness = {"ngram+model, k=auto": {"identical": 5, "rounding": 1, "wrong": 0}}
    return {"suite": suite, "temp": temp, "summaries": found, "partial": False, "exactness": exactness}


def peers(**ratios):
    """A suite's default, over llama-server's better setting, greedily and sampled."""
    figures = {
        "default": Figures(330.0, Ratio(1.5)),
        "llama-server, a": Figures(300.0, Ratio(1.4)),
        "llama-server, b": Figures(200.0, Ratio(1.0), default=Ratio(1.65)),
    }
    cells = {}
    for name, (temperature, ratio) in ratios.items():
        own = {**figures, "llama-server, a": Figures(300.0, Ratio(1.4), default=Ratio(ratio))}
        cells[name] = CellFigures("big", name, temperature, 6, 96, False, 0.01, 1, "", "", own)
    return Results(Machine("a card", 16, 64, "CUDA", {}), cells)


def test_bars_are_met_or_missed_as_the_figures_say():
    step = {"setting": "k=8", "draft": 1.0, "verify": 1.0, "sample": 1.0, "rest": 1.0, "total": [4.0, 3.0, 5.0]}
    outside = {"steps": [{**step, "share": 0.06}, {**step, "setting": "k=8, temp 0.8", "share": 0.06}]}
    assert [bar.met for bar in report.outside_bars(outside)] == [False, True]
    found = [(bar.value, bar.limit, bar.met) for bar in report.peers_bars(peers(a=(0.0, 1.02), b=(0.8, 1.2)))]
    assert found == [(1.02, 1.0, True), (1.2, 1.25, False)]
    bars = report.compare_bars(comparison("code", 0.0, all=2.4, edits=0.97, files=2.6))
    assert [(bar.limit, bar.met) for bar in bars] == [(0.98, False), (0.98, True), (2.5, False)]
    assert [bar.limit for bar in report.compare_bars(comparison("code", 0.8, all=2.0))] == [0.98]


def test_the_report_holds_what_the_folder_holds(tmp_path):
    assert report.everything(tmp_path) == "there is nothing in this folder yet"
    files = {
        "curves.json": MEASURED,
        "compare-python-0.json": comparison("python", 0.0, all=1.5, classes=1.6),
    }
    files["compare-python-0.json"]["summaries"][-1]["speedup"].update(low=None, high=None)
    files["compare-python-0.json"]["summaries"][0]["tokens_per_s"] = None  # all answers are too short
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    save(tmp_path / "peers.json", peers(classes=(0.0, 1.1)))
    text = report.everything(tmp_path)
    assert "| target | 256 | 5.00 | 5.50 |" in text and "| 4, 5 | draft | 1.500, 2.500 |" in text
    assert "| ngram+model, k=auto | 1.50x (1.40 to 1.60), 200/s | 1.60x, 200/s |" in text
    assert "ngram+model, k=auto: 5 answers identical, 1 rounding." in text
    assert "| big | classes | 0 | a | 1.10x |" in text
    assert 'description: "a card; big with small as draft"' in text
    assert "Outside" not in text and "2 of 2 met." in text
