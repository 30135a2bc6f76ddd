"""A kept conversation whose files are damaged: what is damaged, and how."""

import os
import random
from pathlib import Path

from devices import NUMBERS, device

BYTE_DAMAGES = ("flipped", "changed", "zeroed", "cut", "short by one", "longer", "another's", "of an older format")
PLACES = ("empty", "missing", "a folder", "a FIFO", "a loop", "a device")
DAMAGES = (*BYTE_DAMAGES, *PLACES)
_HEAD = 64
"""Bytes with llama.cpp's magic number, version and counts: damaged as often as all that follow."""


def damage(path: Path, how: str, chance: random.Random) -> None:
    """Damage a state."""
    if how in BYTE_DAMAGES:
        whole = path.read_bytes()
        others = [state for state in map(Path.read_bytes, sorted(path.parent.glob("*.state"))) if state != whole]
        path.write_bytes(damaged(whole, how, chance, others))
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
            path.symlink_to(device(path.parent, chance.choice([*NUMBERS])))


def damaged(content: bytes, how: str, chance: random.Random, others: list[bytes]) -> bytes:
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
            return chance.choice(others)
    return b"specdec-state-1\n" + content
