"""Make the benchmarks importable."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "gpu"), str(BENCHMARKS / "bench"), str(BENCHMARKS)]
