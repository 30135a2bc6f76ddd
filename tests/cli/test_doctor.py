"""`specdec doctor`: what is installed, mistakes in the settings, and GPUs that the build cannot use."""

import json

import pytest
from driver import call, configure
from hub_pairs import own_profile

from specdec_cli import user_files
from specdec_cli.llama import building, kernels
from specdec_cli.measure import doctor as diagnosis


def doctor(*args, **environment):
    return call("doctor", *args, **environment)


@pytest.fixture
def no_pair(monkeypatch):
    """For what needs no model to run, no kernels to be tried again, and no library that may die."""
    monkeypatch.setattr(diagnosis, "_bundled_pair", lambda: diagnosis.BundledPair(True, "", "t", "d", "none"))
    monkeypatch.setattr(kernels, "try_again", kernels.verdict)
    monkeypatch.setattr(diagnosis, "_library", diagnosis._examine_library)


def test_what_it_finds_here(monkeypatch):
    monkeypatch.setattr(kernels, "try_again", kernels.verdict)
    result = json.loads(doctor("--json").stdout)
    assert result["bundled_pair"]["ok"] and result["rpc"] is True
    assert {"specdec", "llama-cpp-python", "llama.cpp", "platform"} <= set(result["versions"])
    assert result["threads"] >= 1 and result["devices"][0]["kind"] and result["kernels"]["used"]


def test_a_mistake_in_the_settings(no_pair):
    """Every command fails on it, so this one says it. A pair that is still to be pulled is none."""
    own_profile("mine", "target: org/absent:Q8_0\n")
    for text, says in (("draft_tokns: 4\n", "draft_tokns"), ("profile: nobody\n", "nobody"), ("profile: mine\n", "")):
        configure(text)
        done = doctor()
        assert (done.exit_code, "error: " in done.stdout) == ((1, True) if says else (0, False))
        assert says in done.stdout and "bundled pair" in done.stdout and "works" in done.stdout


def test_a_bundled_pair_that_does_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(user_files, "bundled_dir", lambda: tmp_path)
    monkeypatch.setattr(kernels, "try_again", kernels.verdict)
    monkeypatch.setattr(diagnosis, "_library", diagnosis._examine_library)
    done = doctor()
    assert done.exit_code == 1 and "there is no file" in " ".join(done.stdout.split())


def test_the_command_for_a_gpu_is_printed(no_pair, monkeypatch):
    monkeypatch.setattr(building, "output", lambda *_: "H100\n")
    for nvcc in ("", "/usr/local/cuda/bin/nvcc"):
        monkeypatch.setattr(building, "nvcc", lambda nvcc=nvcc: nvcc)
        said = doctor().stdout
        assert "can't use H100" in said and ("first install the CUDA toolkit" in said) == (not nvcc)
        assert "make ACCEL=cuda setup" in said and said.endswith(f"{building.command()} --accel cuda\n")
    assert json.loads(doctor("--json").stdout)["unused_gpu"]["accel"] == "cuda"


def test_kernels_that_the_build_does_not_use_are_named_with_the_command_that_changes_it(no_pair, monkeypatch):
    facts = diagnosis.Library(flags="CPU : AVX2 = 1 | REPACK = 1 | ")
    monkeypatch.setattr(diagnosis, "_library", lambda: facts)
    monkeypatch.setattr(building, "processor", lambda: "x86_64 some model fma avx2 avx512f amx_tile amx_int8")
    said = " ".join(doctor(COLUMNS="80").stdout.split())
    assert "; uses AVX2, repacking" in said and "has AMX, AVX-512, which this build doesn't use" in said
    assert said.endswith(building.command())
    monkeypatch.setattr(building, "processor", lambda: "x86_64 some model fma avx2")
    assert "building install" not in doctor().stdout
