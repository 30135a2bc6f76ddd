"""The report of `specdec doctor`."""

from specdec_cli.display.tables import label_grid
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.doctor import Diagnosis
from specdec_cli.user_files import format_bytes


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print everything on stdout, and last how to enable a GPU that isn't used."""
    lines = [*diagnosis.versions.items(), *_processor(diagnosis)]
    if diagnosis.memory_available is not None:
        lines.append(("memory", f"{format_bytes(diagnosis.memory_available)} free"))
    for device in diagnosis.devices:
        if device.kind != "CPU":
            size = f"{format_bytes(device.free)} of {format_bytes(device.total)} free"
            lines.append((device.kind, f"{device.name}: {device.description}, {size}"))
    names = [device.name for device in diagnosis.devices if device.is_gpu]
    lines.append(("--device", ", ".join([*names, "none (the CPU)"])))
    lines.append(("GPU offload", "all layers by default" if diagnosis.gpu_offload else "not in this build"))
    lines.append(("--rpc", "can use other machines" if diagnosis.rpc else "not in this build"))
    lacking = ", ".join(diagnosis.missing_for_heads)
    kinds = f"medusa works; mtp and eagle3 need {lacking}" if lacking else "mtp, eagle3 and medusa work"
    lines.append(("heads", kinds))
    lines.append(("weights", diagnosis.weights_cache))
    if diagnosis.corpora.bytes:
        lines.append(("corpora", f"{diagnosis.corpora.folder}, {format_bytes(diagnosis.corpora.bytes)} of indexes"))
    lines.append(("settings", diagnosis.config))
    if diagnosis.config_problem:
        lines.append(("", f"error: {diagnosis.config_problem}"))
    lines.append(("profiles", f"{len(diagnosis.profiles)}; specdec ls lists them"))
    pair = diagnosis.bundled_pair
    lines.append(("bundled pair", "works" if pair.ok else pair.problem))
    if pair.ok:
        lines.append(("rounding", f"bundled target: {pair.rounding}"))
    console, grid = SafeConsole(), label_grid()
    for label, text in lines:
        grid.add_row(label, text)
    console.print(grid)
    if repair := diagnosis.kernels.repair:
        console.print("\nTo build llama.cpp for this processor:", style="bold")
        console.print(f"  {repair}", soft_wrap=True)
    if gpu := diagnosis.unused_gpu:
        console.print(f"\nThis build can't use {gpu.name}. To enable it:", style="bold")
        if gpu.missing:
            console.print(f"  first install {gpu.missing}, then")
        console.print(f"  make ACCEL={gpu.accel} setup     (in a checkout)")
        console.print(f"  {gpu.command}", soft_wrap=True)


def _processor(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What computes, on one line, and what is wrong with that."""
    kernels, cores = diagnosis.kernels, f"{diagnosis.threads} core{'s' * (diagnosis.threads != 1)}"
    cpu = next((device.description for device in diagnosis.devices if device.kind == "CPU"), "unknown")
    lines = [f"{cpu}, {cores}; uses {', '.join(kernels.used) or 'no kernels that specdec knows'}"]
    lines += [diagnosis.build] * (not kernels.used) + [kernels.problem] * bool(kernels.problem)
    lines += [f"it also has {', '.join(kernels.unused)}, which this build doesn't use"] * bool(kernels.unused)
    return [("" if i else "processor", line) for i, line in enumerate(lines)]
