"""benchmarks/gpu and peers: curves as a file for profiles/hardware, the report against its bars, a sweep that stops."""

import json

import best_static
import curves
import pytest
import report
from common import DEMO
from peers import Answer, Static, Task

from specdec_cli.measure import hardware
from specdec_cli.settings.config import Settings


def a_curve(model, context, ms):
    orders = [{"order": [4, 5], "ms": [1.5, 2.5]}]
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
    assert found.costs.draft.points == pytest.approx({1: 0.001, 2: 0.0011, 512: 0.01})
    assert "other_ms: 0.12\n" in text
    assert "other_ms" not in curves.hardware_yaml(MEASURED)


def test_every_size_is_timed_at_every_context(monkeypatch):
    filled = []

    class Context(curves.LlamaContext):
        def rewind(self, length):
            filled.append(length)
            super().rewind(length)

    monkeypatch.setattr(curves, "LlamaContext", Context)
    found = list(curves.measure({"draft": str(DEMO / "draft.gguf")}, (16, 32), threads=1, seconds=0.0, longest=3))
    assert [one["context"] for one in found] == [16, 32]
    assert all(set(one["least_ms"]) == {"1", "2", "3", "128", "512"} for one in found)
    assert all(one["laps"] == {"1": 1, "2": 1, "3": 1, "128": 1, "512": 1} for one in found)
    orders = [order for order in curves.ORDERS if max(order) <= 3]
    assert [[one["order"] for one in curve["planning"]] for curve in found] == [orders, []]
    assert all(len(one["ms"]) == len(one["order"]) and min(one["ms"]) > 0 for one in found[0]["planning"])
    assert set(filled) == {0, 16, 32, 64}


def summary(variant, category, mean):
    speedup = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1} if mean else None
    return {"variant": variant, "category": category, "tokens_per_s": 200.0, "speedup": speedup}


def comparison(suite, temp, **speedups):
    found = [summary("target alone", name, None) for name in speedups]
    found += [summary("k=auto", name, mean) for name, mean in speedups.items()]
    exactness = {"k=auto": {"identical": 5, "rounding": 1, "wrong": 0}}
    return {"suite": suite, "temp": temp, "summaries": found, "partial": False, "exactness": exactness}


def cell(temp, category, server, simple):
    def one(ratio):
        speeds = {"peer": 300.0, "specdec": 300.0 * ratio, "alone": 200.0}
        return {"prompts": 4, **speeds, "ratio": ratio, "gain": 1.5, "shown": [f"{ratio:.2f}", "1.50"]}

    peers = {"llama-server": one(server), "llama-speculative-simple": one(simple)}
    return {"temp": temp, "category": category, "best": "n_max 4, p_min 0.5", "against": peers}


def test_bars_are_met_or_missed_as_the_figures_say():
    step = {"setting": "k=8", "draft": 1.0, "verify": 1.0, "sample": 1.0, "rest": 1.0, "total": [4.0, 3.0, 5.0]}
    outside = {"steps": [{**step, "share": 0.06}, {**step, "setting": "k=8, temp 0.8", "share": 0.06}]}
    assert [bar.met for bar in report.outside_bars(outside)] == [False, True]
    peers = {"sweep": {}, "cells": {"0 a": cell(0.0, "a", 1.02, 1.3), "0.8 a": cell(0.8, "a", 1.3, 1.2)}}
    found = [(bar.value, bar.limit, bar.met) for bar in report.peers_bars(peers)]
    assert found == [(1.02, 1.0, True), (1.2, 1.25, False)]
    bars = report.compare_bars(comparison("code", 0.0, all=2.4, edits=0.97, files=2.6))
    assert [(bar.limit, bar.met) for bar in bars] == [(0.98, False), (0.98, True), (2.5, False)]
    assert [bar.limit for bar in report.compare_bars(comparison("code", 0.8, all=2.0))] == [0.98]


def test_the_report_holds_what_the_folder_holds(tmp_path):
    assert report.everything(tmp_path) == "there is nothing in this folder yet"
    files = {
        "curves.json": MEASURED,
        "compare-python-0.json": comparison("python", 0.0, all=1.5, classes=1.6),
        "peers.json": {"sweep": {"n_max 4, p_min 0.5": {}}, "cells": {"0 classes": cell(0.0, "classes", 1.1, 1.2)}},
    }
    files["compare-python-0.json"]["summaries"][-1]["speedup"].update(low=None, high=None)
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    text = report.everything(tmp_path)
    assert "| target | 256 | 5.00 | 5.50 |" in text and "| 4, 5 | draft | 1.500, 2.500 |" in text
    assert "| k=auto | 1.50x (1.40 to 1.60), 200/s | 1.60x, 200/s |" in text
    assert "k=auto: 5 answers identical, 1 rounding." in text
    assert "| 0 classes | n_max 4, p_min 0.5 | llama-server | 4 | 300 | 330 | 200 | 1.10 | 1.50 |" in text
    assert 'description: "a card; big with small as draft"' in text
    assert "Outside" not in text and "2 of 2 met." in text


def test_the_finals_get_the_fastest_settings_of_the_cell():
    swept = {
        str(Static(n, 0.0)): {"n_max": n, "p_min": 0.0, "tokens_per_s": {"0 a": speed}}
        for n, speed in ((1, 50.0), (2, 90.0), (4, 70.0), (8, 80.0))
    }
    assert [static.n_max for static in best_static.finalists(swept, "0 a")] == [2, 8, 4]
    assert len(set(best_static.GRID)) == len(best_static.GRID)


class Peer:
    """In the place of llama-server: a setting is as fast as its n_max says."""

    def __init__(self):
        self.asked = []

    def answer(self, task, static, settings, seed=0):
        self.asked.append(static.n_max)
        return Answer(32, 100.0 * static.n_max)


def test_a_sweep_goes_on_where_time_ran_out(tmp_path):
    tasks = {"a": [Task("a1", "a", "x", (1, 2))], "b": [Task("b1", "b", "y", (3,))]}
    grid = [Static(1), Static(2), Static(4)]
    peer, settings, time_left = Peer(), Settings(max_tokens=8), iter([True, False])

    def plan(temps, has_time):
        return best_static.Plan(tmp_path / "peers.json", temps, tasks, 1, has_time)

    assert not best_static.sweep(plan([0.0], lambda: next(time_left)), peer, settings, grid)
    assert peer.asked == [1, 1]
    assert best_static.sweep(plan([0.0], lambda: True), peer, settings, grid)
    assert peer.asked == [1, 1, 2, 2, 4, 4]
    assert best_static.sweep(plan([0.0, 0.8], lambda: True), peer, settings, grid)
    found = plan([0.0], lambda: True).load()
    assert len(peer.asked) == 12
    assert found["sweep"]["n_max 4, p_min 0"]["tokens_per_s"] == {"0 a": 400, "0 b": 400, "0.8 a": 400, "0.8 b": 400}
    assert best_static.finalists(found["sweep"], "0.8 b") == [Static(4), Static(2), Static(1)]


def test_the_best_setting_meets_specdec_and_its_target(tmp_path, monkeypatch):
    """Ratios are of answers in the same round; short answers do not count; nothing is measured twice."""
    speeds = {"none": 200.0, "model": 440.0}
    monkeypatch.setattr(
        best_static,
        "specdec",
        lambda engine, task, settings, seed=0: Answer(8 if task.id == "a2" else 32, speeds[settings.drafter]),
    )

    class Engine:
        settings = Settings(max_tokens=8, drafter="model")

    tasks = {"a": [Task("a1", "a", "x", (1, 2)), Task("a2", "a", "x", (1, 2))]}
    plan = best_static.Plan(tmp_path / "peers.json", [0.0], tasks, 2, lambda: True)
    peer = Peer()
    assert best_static.sweep(plan, peer, Engine.settings, [Static(1), Static(4)])
    assert best_static.matches(plan, peer, None, Engine)
    found = plan.load()["cells"]["0 a"]
    assert found["best"] == "n_max 4, p_min 0" and list(found["against"]) == ["llama-server"]
    its = found["against"]["llama-server"]
    assert (its["prompts"], its["ratio"], its["gain"]) == (1, 1.1, 2.2)
    assert "| 0 a | n_max 4, p_min 0 | llama-server | 1 | 400 | 440 | 200 | 1.10 | 2.20 |" in best_static.table(
        plan.load()
    )
    asked = len(peer.asked)
    assert best_static.matches(plan, peer, None, Engine) and len(peer.asked) == asked
    assert best_static.equal(peer, Engine, tasks, 2, 1) == "| 2 | 200 | 200 | 440 | 2.20 | 0.00 | 0.00 |"
