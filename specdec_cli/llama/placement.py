"""Where a model's layers go: how many on devices, on which, and in which shares."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.decoding.errors import UsageError

_CPU = ("none", "cpu")
_MAX = 3.4e38
"""The largest share: it is a 32-bit float."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that this build of llama.cpp can compute on. Memory in bytes."""

    name: str
    description: str
    kind: str
    free: int
    total: int

    @property
    def is_gpu(self) -> bool:
        """Whether a placement can name it."""
        return "GPU" in self.kind


@dataclass(frozen=True, slots=True)
class Placement:
    """layers: how many on devices; -1 for all. devices: their names; empty for the CPU alone, None for llama.cpp's
    choice. split: the share of each device; empty: by free memory. servers: addresses of machines whose devices come
    before the local ones. insecure: whether servers may be outside private networks.
    """

    layers: int = -1
    devices: tuple[str, ...] | None = None
    split: tuple[float, ...] = ()
    servers: tuple[str, ...] = ()
    insecure: bool = False

    @classmethod
    def parse(
        cls,
        layers: int,
        devices: str | None = None,
        split: str | None = None,
        servers: str | None = None,
        insecure: bool = False,
    ) -> Placement:
        """devices: names such as `CUDA0,CUDA1`, or `none`. split: such as `3,1`. servers: `HOST:PORT,HOST:PORT`. Raises
        UsageError for anything else.
        """
        names = None if devices is None else _names(devices)
        shares = () if split is None else _shares(split)
        return cls(layers, names, shares, () if servers is None else _addresses(servers), insecure)

    @property
    def on_devices(self) -> bool:
        """Whether layers go to a device at all, if there is one."""
        return self.layers != 0 and (self.devices != () or self.is_remote)

    @property
    def is_remote(self) -> bool:
        """Whether layers go to other machines."""
        return bool(self.servers) and self.layers != 0

    @property
    def key(self) -> str:
        """Identifies the placement, except for the number of layers; empty for the default."""
        devices = "" if self.devices is None else f"devices {','.join(self.devices).lower() or 'none'}"
        split = f"split {','.join(map(repr, self.split))}" if self.split else ""
        servers = f"servers {','.join(self.servers)}" if self.servers else ""
        return " ".join(filter(None, (devices, split, servers)))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    lower = [name.lower() for name in names]
    if "" in lower or len(set(lower)) < len(lower):
        raise UsageError(f"device cannot be {text!r}", "Name each once, as in CUDA0,CUDA1; or `none` for the CPU.")
    if not set(lower) & set(_CPU):
        return names
    if len(names) > 1:
        raise UsageError(f"device cannot be {text!r}", "Name only GPUs: llama.cpp adds the CPU itself. Or only `none`.")
    return ()


def _addresses(text: str) -> tuple[str, ...]:
    servers = tuple(part.strip() for part in text.split(","))
    for server in servers:
        host, _, port = server.rpartition(":")
        valid = host and ":" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16
        if not valid or servers.count(server) > 1:
            fix = "Give each server once, as HOST:PORT, separated by commas, as in 192.168.1.20:50052."
            raise UsageError(f"rpc cannot be {text!r}", fix)
    return servers


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(map(float, text.split(",")))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= share <= _MAX for share in shares) or not any(shares):
        raise UsageError(f"tensor split cannot be {text!r}", "Give one number, 0 or more, per device, as in 3,1.")
    return shares
