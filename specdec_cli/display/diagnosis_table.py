"""What `doctor` says of an installation."""

from specdec_cli.display.tables import label_grid
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.doctor import Diagnosis


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print everything on stdout, with what would enable a GPU last."""
    lines = [*diagnosis.versions.items(), ("build", diagnosis.build)]
    for device in diagnosis.devices:
        size = f"{device.free / 1e9:.1f} of {device.total / 1e9:.1f} GB free"
        lines.append((device.kind, f"{device.name}: {device.description}, {size}"))
    kernels = diagnosis.kernels
    lines.append(("kernels", ", ".join(kernels.used) or "none that are known"))
    if kernels.problem:
        lines.append(("", kernels.problem))
    if kernels.unused:
        lines.append(("", f"this processor has {', '.join(kernels.unused)}, which this build does not use"))
    names = [device.name for device in diagnosis.devices if device.is_gpu]
    lines.append(("--device", ", ".join([*names, "none (the CPU)"])))
    lines.append(("threads", str(diagnosis.threads)))
    lines.append(("GPU offload", "all layers by default" if diagnosis.gpu_offload else "not in this build"))
    lines.append(("--rpc", "other machines can compute" if diagnosis.rpc else "not in this build"))
    lacking = ", ".join(diagnosis.missing_for_heads)
    kinds = f"medusa drafts; the others need {lacking}" if lacking else "mtp, eagle3 and medusa draft"
    lines.append(("heads", kinds))
    lines.append(("weights", diagnosis.weights_cache))
    if diagnosis.corpora.bytes:
        lines.append(("corpora", f"{diagnosis.corpora.folder}, {diagnosis.corpora.bytes / 1e6:,.1f} MB of indexes"))
    lines.append(("settings", diagnosis.config))
    if diagnosis.config_problem:
        lines.append(("", f"with a mistake: {diagnosis.config_problem}"))
    lines.append(("profiles", f"{len(diagnosis.profiles)}; specdec ls lists them"))
    pair = diagnosis.bundled_pair
    lines.append(("bundled pair", "works: tokenizers fit, both models decode" if pair.ok else pair.problem))
    if pair.ok:
        lines.append(("rounding", f"bundled target: {pair.rounding}"))
    console, grid = SafeConsole(), label_grid()
    for label, text in lines:
        grid.add_row(label, text)
    console.print(grid)
    if kernels.repair:
        console.print("\nTo build llama.cpp for this processor:", style="bold")
        console.print(f"  {kernels.repair}", soft_wrap=True)
    if gpu := diagnosis.unused_gpu:
        console.print(f"\n{gpu.name} is there, but this build cannot use it. To enable it:", style="bold")
        if gpu.missing:
            console.print(f"  first install {gpu.missing}, then")
        console.print(f"  make ACCEL={gpu.accel} setup     (in a checkout)")
        console.print(f"  {gpu.command}", soft_wrap=True)
