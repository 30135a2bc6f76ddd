"""A kept conversation whose files are damaged: what is damaged, and how."""

import os
import random
from pathlib import Path

BYTE_DAMAGES = ("flipped", "changed", "zeroed", "cut", "short by one", "longer", "another's", "of an older format")
PLACES = ("empty", "missing", "a folder", "a FIFO", "a loop", "a device")
DAMAGES = (*BYTE_DAMAGES, *PLACES)
_HEAD = 64
"""Bytes with llama.cpp's magic number, version and counts: damaged as often as all that follow."""


def damage(path: Path, how: str, chance: random.Random) -> None:
    """Damage a state."""
    if how in BYTE_DAMAGES:
        path.write_bytes(damaged(path.read_bytes(), how, chance, others(path)))
        return
    path.unlink()
    match how:
        case "empty":
            path.touch()
        case "a folder":
            path.mkdir()
        case "a FIFO":
            os.mkfifo(path)
        case "a loop":
            path.symlink_to(path)
        case "a device":
            path.symlink_to(chance.choice(("/dev/zero", "/dev/urandom", "/dev/null")))


def damaged(content: bytes, how: str, chance: random.Random, others: list[Path]) -> bytes:
    size = len(content)
    at = chance.randrange(chance.choice((_HEAD, size)))
    end = min(size, at + chance.choice((1, 4, 100, size)))
    before, old, after = content[:at], content[at:end], content[end:]
    match how:
        case "flipped":
            return before + bytes([old[0] ^ 1 << chance.randrange(8)]) + old[1:] + after
        case "changed":
            return before + bytes([old[0] ^ chance.randrange(1, 256)]) + chance.randbytes(len(old) - 1) + after
        case "zeroed":
            return before + bytes([0 if old[0] else 255]) + bytes(len(old) - 1) + after
        case "cut":
            return before
        case "short by one":
            return content[:-1]
        case "longer":
            return content + chance.randbytes(chance.choice((1, 4, size)))
        case "another's":
            return chance.choice(others).read_bytes()
    return b"specdec-state-1\n" + content


def others(path: Path) -> list[Path]:
    """Sound states of other models or conversations."""
    return [other for other in sorted(path.parent.glob("*.state")) if other != path]
