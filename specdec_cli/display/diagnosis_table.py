"""What `doctor` says of an installation."""

from rich.console import Console

from specdec_cli.display.grids import label_grid
from specdec_cli.results import Diagnosis


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print everything on stdout, with what would enable a GPU last."""
    console = Console(highlight=False)
    grid = label_grid()
    for name, version in (*diagnosis.versions.items(), ("build", diagnosis.build)):
        grid.add_row(name, version)
    for device in diagnosis.devices:
        size = f"{device.free / 1e9:.1f} of {device.total / 1e9:.1f} GB free"
        grid.add_row(device.kind, f"{device.name}: {device.description}, {size}")
    grid.add_row("threads", str(diagnosis.threads))
    grid.add_row("GPU offload", "all layers by default" if diagnosis.gpu_offload else "not in this build")
    grid.add_row("weights", diagnosis.weights_cache)
    if diagnosis.corpora.bytes:
        grid.add_row("corpora", f"{diagnosis.corpora.folder}, {diagnosis.corpora.bytes / 1e6:,.1f} MB of indexes")
    grid.add_row("settings", diagnosis.config)
    if diagnosis.config_problem:
        grid.add_row("", f"with a mistake: {diagnosis.config_problem}")
    grid.add_row("profiles", f"{len(diagnosis.profiles)}; specdec ls lists them")
    pair = diagnosis.bundled_pair
    grid.add_row("bundled pair", "works: tokenizers fit, both models decode" if pair.ok else pair.problem)
    if pair.ok:
        grid.add_row("rounding", f"bundled target: {pair.rounding}")
    console.print(grid)
    if gpu := diagnosis.unused_gpu:
        console.print(f"\n{gpu.name} is there, but this build cannot use it. To enable it:", style="bold")
        if gpu.missing:
            console.print(f"  first install {gpu.missing}, then")
        console.print(f"  make ACCEL={gpu.accel} setup     (in a checkout)")
        console.print(f"  {gpu.command}", soft_wrap=True, markup=False)
