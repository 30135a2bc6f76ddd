"""Made-up results of comparisons."""

from __future__ import annotations

from dataclasses import replace

from specdec_cli.llama.placement import Device
from specdec_cli.measure.compare import ComparisonResult, MachineInfo, ModelInfo
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.trials import Trial, Variant, summarise

ORIGINS = ("accepted", "correction", "bonus", "plain")
SPEEDS = {"target alone": 50.0, "k=2": 80.0, "k=8": 40.0}
SETTINGS = RecordedSettings(target="someone/private/t.gguf", temperature=0.0)


def trial(variant, prompt, category, number=0, speed=50.0, words=("one ", "two ", "three ", "four ")):
    drafted = 0 if variant == "target alone" else int(variant[2:])
    seconds = (len(words) - 1) / speed
    origins = ["plain"] * len(words) if not drafted else [ORIGINS[i % 4] for i in range(len(words))]
    return Trial(
        variant=variant, prompt=prompt, category=category, round=number, prompt_tokens=7,
        tokens=tuple(range(len(words))),
        reason="length", prefill_s=0.1, ttft_s=0.1, decode_s=seconds, draft_s=0.2 * seconds * bool(drafted),
        draft_prefill_s=0.01 * bool(drafted), verify_s=0.7 * seconds, sample_s=0.05 * seconds,
        overhead_s=0.05 * seconds, steps=max((len(words) - 1) // (3 if drafted else 1), 1),
        drafted=4 * drafted, accepted=2 * drafted,
        reached=(4,) * drafted, kept=tuple(max(4 - i, 0) for i in range(drafted)),
        texts=tuple(zip(words, origins, strict=True)),
    )  # fmt: skip


def result_of(trials, variants=tuple(SPEEDS), **changes):
    names = ["all", *sorted({trial.category for trial in trials})]
    summaries = [summarise(trials, variant, "target alone", name) for name in names for variant in variants]
    result = ComparisonResult(
        specdec="0.1.0",
        machine=MachineInfo((Device("CPU", "A processor", "CPU", 1, 1),), 2, "Linux-6.1"),
        versions={"python": "3.11.7", "llama-cpp-python": "0.3.36"},
        build="CPU : AVX2 = 1",
        models={"target": ModelInfo("big.gguf", 9_000_000, 9_600_000, 1)},
        context=256,
        load_s=0.5,
        max_tokens=4,
        prompts={trial.prompt: f"asked {trial.prompt}" for trial in trials},
        rounds=2,
        variants=tuple(
            Variant(variant, "target alone", replace(SETTINGS, draft_tokens=i)) for i, variant in enumerate(variants)
        ),
        noise={"target alone": 0.02},
        summaries=tuple(filter(None, summaries)),
        exactness={variant: {"identical": 4, "rounding": 0, "wrong": 0} for variant in variants[1:]},
        verdicts={variant: (f"{variant}: a finding.", "What its speed consists of.") for variant in variants[1:]},
        advice=("A cause.", "What would help."),
        when="2026-11-22T09:05+00:00",
        command="specdec compare -m big.gguf --sweep k=2,8",
        trials=tuple(trials),
    )
    return replace(result, **changes)
