"""benchmarks/bench: cells are paired and repeated when the machine is noisy, a run continues, the page is current."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import measure
import page
import pytest
import results
from cells import AGAIN, ALONE, DEFAULT, MODELS, QUICK, Cell, Method, Size
from driver import DRAFT, TARGET
from measure import measure_cell
from tools import Answer, Task

from specdec_cli.llama.kernels import TriedKernels
from specdec_cli.llama.placement import Device

BENCH = Path(page.__file__).parent
TASKS = [Task(f"t{number}", (1, 2, number), "") for number in range(3)]
CELL = Cell(MODELS[0], "chat", 0.0)
METHODS = [Method(ALONE), Method(DEFAULT), Method("llama-server, x", "llama-server"), Method(AGAIN)]


class Tools:
    """In the place of specdec and llama-server. speeds: by the method's last word; drift: a factor for each."""

    def __init__(self, drift=lambda count: 1.0, **speeds):
        self.speeds, self.drift, self.asked, self.forgot = speeds, drift, [], 0

    def answer(self, method, task, sampling):
        self.asked.append((method.name, task.id))
        speed = self.speeds.get(method.name.rpartition(" ")[2], 100.0) * self.drift(len(self.asked))
        return Answer((7,) * 32, speed, 5.0, 31, 10, 6)

    def forget(self):
        self.forgot += 1


@pytest.fixture
def measured(monkeypatch):
    def run(tools, tasks=TASKS, quick=False):
        monkeypatch.setattr(measure, "specdec", lambda session, *asked: tools.answer(*asked))
        run.attempts = [*measure_cell(CELL, METHODS, tasks, Size(3, 32, quick), SimpleNamespace(), tools)]
        return run.attempts[-1] if run.attempts else None

    return run


def test_figures_are_ratios_within_a_turn(measured):
    """A machine that gets slower with every answer changes no ratio by much, because the order is reversed."""
    tools = Tools(lambda count: 0.999**count, default=150.0, x=120.0)
    found = measured(tools, [*TASKS, Task("t3", (1,), "")]).methods
    assert found[DEFAULT].speed.mean == pytest.approx(1.5, rel=0.005)
    peer = found["llama-server, x"]
    assert (peer.speed.mean, peer.default.mean) == (pytest.approx(1.2, rel=0.005), pytest.approx(1.25, rel=0.005))
    assert found[DEFAULT].default is None and found[DEFAULT].acceptance == 0.6
    assert (found[DEFAULT].same, found[ALONE].same) == (4, 0)
    names = [name for name, _ in tools.asked[len(METHODS) - 1 :]]  # after the warm-up
    assert names[: len(METHODS)] == [method.name for method in METHODS] == names[len(METHODS) : 2 * len(METHODS)][::-1]


def test_a_noisy_cell_is_measured_again_at_most_three_times(measured):
    def jumping(period):
        return lambda count: 1.2 if count % period == 0 else 1.0

    quiet = measured(Tools())
    assert (quiet.attempts, quiet.noise) == (1, 0.0)
    assert measured(Tools(jumping(2)), quick=True).attempts == 1
    assert [each.attempts for each in measured.attempts] == [1], "each is given as soon as it is measured"
    noisy = measured(tools := Tools(jumping(2)))
    assert [each.attempts for each in measured.attempts] == [1, 2, 3]
    assert noisy.attempts == 3 and noisy.noise > measure.MAX_NOISE and tools.forgot == 3
    assert page.marked(noisy, "1.00x") == "1.00x\\*" and page.marked(quiet, "1.00x") == "1.00x"


def test_answers_that_are_too_short_give_no_cell(measured):
    class Short(Tools):
        def answer(self, *about):
            return Answer((7,) * 4, 100.0)

    assert measured(Short()) is None


SERVER = """#!/usr/bin/env python3
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.reply({})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n = body["n_predict"]
        timings = {"prompt_n": len(body["prompt"]), "prompt_ms": 5.0, "predicted_per_second": 500.0}
        self.reply({"tokens": [1] * n, "timings": timings})
    def reply(self, data):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(data).encode())
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.mark.slow
def test_a_run_measures_and_continues_where_it_ended(tmp_path):
    """With real models of specdec, and a server that answers as llama-server does."""
    server = tmp_path / "llama-server"
    server.write_text(SERVER)
    server.chmod(0o755)
    out = tmp_path / "results.json"
    command = [sys.executable, BENCH, "--quick", "--target", TARGET, "--draft", DRAFT, "--suite", "code"]
    command += ["--peers", tmp_path, "--out", out, "--threads", "1"]
    first = subprocess.run([*command, "--minutes", "0"], capture_output=True, text=True, check=True)
    assert "run it again" in first.stdout and not out.exists()
    subprocess.run(command, capture_output=True, text=True, check=True)
    found = results.load(out)
    (cell,) = found.cells.values()
    assert cell.quick and cell.prompts == QUICK.prompts and {ALONE, AGAIN, DEFAULT} < {*cell.methods}
    assert cell.methods[DEFAULT].same == QUICK.prompts and cell.methods[DEFAULT].wrong == 0
    assert cell.methods["llama-server, ngram-simple"].tokens_per_s == 500.0
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Everything is measured" in again.stdout and results.load(out) == found


@pytest.mark.slow
def test_the_http_layer_can_be_measured_alone(tmp_path):
    (tmp_path / "llama-server").touch()
    out = tmp_path / "results.json"
    command = [sys.executable, BENCH, "--only", "http", "--peers", tmp_path, "--out", out]
    environment = {**os.environ, "SPECDEC_REAL_MODELS": str(tmp_path)}
    late = subprocess.run([*command, "--minutes", "0"], capture_output=True, text=True, check=True, env=environment)
    assert "run it again" in late.stdout and not out.exists()
    subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = results.load(out)
    assert not found.cells and len(found.http) == 4 and min(found.http.values()) > 0


@pytest.mark.slow
def test_a_run_needs_no_packages_of_the_server():
    """Such as on a GPU machine without a network."""
    blocked = "import runpy, sys; sys.modules |= dict.fromkeys(['h11', 'prometheus_client', 'starlette', 'uvicorn'])"
    run = f"{blocked}; sys.argv[1:] = ['--help']; runpy.run_path({str(BENCH)!r}, run_name='__main__')"
    assert "usage" in subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout


def test_results_are_named_by_the_gpu_and_the_kernels_in_use(monkeypatch):
    cpu, gpu = (Device(name, f"a {kind}", kind, 0, 0) for name, kind in (("CPU", "CPU"), ("CUDA0", "GPU")))
    flags = "CUDA : ARCHS = 900 | USE_GRAPHS = 1 | CPU : AVX2 = 1 | AMX_INT8 = 1 | AVX512 = 1 | REPACK = 1 | "
    monkeypatch.setattr(results.library, "build_flags", lambda: flags)
    monkeypatch.setattr(results.library, "devices", lambda: [gpu, replace(gpu, name="CUDA1"), cpu])
    monkeypatch.setattr(results.kernels, "verdict", lambda: TriedKernels(True))
    assert results.this_machine().kernels == "CUDA, AMX_INT8, AVX512, AVX2, REPACK"
    assert results.this_machine().title == "a GPU, a GPU, a CPU, CUDA"
    xeon = replace(cpu, description="Intel(R) Xeon(R) Processor")
    monkeypatch.setattr(results.library, "devices", lambda: [xeon])
    assert results.this_machine().title == "Intel Xeon, AMX"
    monkeypatch.setattr(results.kernels, "verdict", lambda: TriedKernels(False, "crashed"))
    assert results.this_machine().kernels == "AVX512, AVX2"


@pytest.mark.slow
def test_the_page_is_current():
    """If this fails: .venv/bin/python benchmarks/bench/page.py"""
    for path, text in page.pages().items():
        assert path.read_text("utf-8") == text, path.name


def test_what_lost_is_named(tmp_path):
    def cell(default, own, noise=0.01):
        methods = {ALONE: (1.0, None), DEFAULT: (default, None), "ngram": (own, None), "llama-server, x": (2.0, 0.5)}
        figures = {
            name: results.Figures(100.0, results.Ratio(speed), default=peer and results.Ratio(peer))
            for name, (speed, peer) in methods.items()
        }
        return results.CellFigures("m", "chat", 0.0, 6, 96, False, noise, 1, "", "", figures)

    def lost(*about):
        machine = results.Machine("a machine", 2, 24, "AVX2", {})
        (text,) = page.lost(results.Results(machine, {"m | chat | 0": cell(*about)}))
        return text

    assert lost(1.0, 1.0) == lost(0.98, 1.02) == "None."
    assert "| m | chat | 0 | 0.95x | target alone |" in lost(0.95, 0.96)
    assert "| m | chat | 0 | 1.20x | ngram, 1.30x |" in lost(1.2, 1.3)
    assert lost(1.2, 1.25) == "None."


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ((1.15, 0.93, 1.43), "0.93 to 1.43"),
        ((0.97, 0.956, 0.997), "0.96 to 1.00"),
        ((1.25, 1.13, 1.39), "**1.25x (1.13 to 1.39)**"),
        ((0.9, 0.8, 0.95), "0.90x (0.80 to 0.95)"),
        ((1.2,), "1.20x"),
    ],
)
def test_a_ratio_is_shown_only_if_its_interval_excludes_1(figures, text):
    assert page.shown(results.Ratio(*figures)) == text
