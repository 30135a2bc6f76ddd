"""The report of `specdec doctor`."""

from specdec_cli.decoding.wording import counted
from specdec_cli.display.tables import lines_table
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.doctor import Diagnosis
from specdec_cli.user_files import format_bytes


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print everything on stdout, and last how to enable a GPU that isn't used."""
    gpus: dict[str, list[str]] = {}
    for device in diagnosis.devices:
        if device.kind != "CPU":
            size = f"{format_bytes(device.free)} of {format_bytes(device.total)} free"
            gpus.setdefault(device.kind, []).append(f"{device.name}: {device.description}, {size}")
    memory, corpora, pair = diagnosis.memory_available, diagnosis.corpora, diagnosis.bundled_pair
    lacking = ", ".join(diagnosis.missing_for_heads)
    lines = {
        **diagnosis.versions,
        "processor": _processor(diagnosis),
        "memory": "" if memory is None else f"{format_bytes(memory)} free",
        **gpus,
        "--device": ", ".join([*(device.name for device in diagnosis.devices if device.is_gpu), "none (the CPU)"]),
        "GPU offload": "all layers by default" if diagnosis.gpu_offload else "not in this build",
        "--rpc": "can use other machines" if diagnosis.rpc else "not in this build",
        "heads": f"medusa works; mtp and eagle3 need {lacking}" if lacking else "mtp, eagle3 and medusa work",
        "weights": diagnosis.weights_cache,
        "corpora": f"{corpora.folder}, {format_bytes(corpora.bytes)} of indexes" if corpora.bytes else "",
        "settings": [diagnosis.config, *([f"error: {diagnosis.config_problem}"] if diagnosis.config_problem else [])],
        "profiles": f"{len(diagnosis.profiles)}; specdec ls lists them",
        "bundled pair": "works" if pair.ok else pair.problem,
        "rounding": f"bundled target: {pair.rounding}" if pair.ok else "",
    }
    console = SafeConsole()
    console.print(lines_table(lines))
    if repair := diagnosis.kernels.repair:
        console.print("\nTo build llama.cpp for this processor:", style="bold")
        console.print(f"  {repair}", soft_wrap=True)
    if gpu := diagnosis.unused_gpu:
        console.print(f"\nThis build can't use {gpu.name}. To enable it:", style="bold")
        if gpu.missing:
            console.print(f"  first install {gpu.missing}, then")
        console.print(f"  make ACCEL={gpu.accel} setup     (in a checkout)")
        console.print(f"  {gpu.command}", soft_wrap=True)


def _processor(diagnosis: Diagnosis) -> list[str]:
    """What computes, and what is wrong with that."""
    kernels, cores = diagnosis.kernels, counted(diagnosis.threads, "core")
    cpu = next((device.description for device in diagnosis.devices if device.kind == "CPU"), "unknown")
    lines = [f"{cpu}, {cores}; uses {', '.join(kernels.used) or 'no kernels that specdec knows'}"]
    lines += [diagnosis.build] * (not kernels.used) + [kernels.problem] * bool(kernels.problem)
    return lines + [f"it also has {', '.join(kernels.unused)}, which this build doesn't use"] * bool(kernels.unused)
