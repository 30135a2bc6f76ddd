"""A copy of a model whose layers can be switched off in the file, to try what leaving them out would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf import read_header
from specdec_cli.models.gguf_header import shown
from specdec_cli.models.layer_pruning import outlets


class SkippableCopy:
    """A model's file, which is written to: no model may be loaded from it meanwhile.

    A layer whose outlets are zeros adds nothing to the residual stream: the model computes what one without that layer
    does. Trying a layer costs writing its outlets, not a copy of everything else.
    """

    def __init__(self, path: Path, layers: int) -> None:
        self.path = path
        self._places: list[list[tuple[int, int]]] = []  # of each layer: where its outlets lie, and how long they are
        header = read_header(path)
        for layer in range(layers):
            tensors = outlets(header, layer)
            names = {tensor.name.split(".")[2].split("_")[0] for tensor in tensors}
            if names != {"attn", "ffn"} or any(tensor.size is None for tensor in tensors):
                raise SpecdecError(
                    f"layers of a {shown(header.architecture)} model cannot be tried one by one",
                    "Choose them yourself: --keep-layers.",
                )
            self._places.append([(header.data_offset + tensor.offset, tensor.size or 0) for tensor in tensors])

    def drop(self, layer: int) -> None:
        """Switch a layer off for good."""
        with self.path.open("r+b") as file:
            for at, size in self._places[layer]:
                file.seek(at)
                file.write(bytes(size))

    @contextmanager
    def without(self, layer: int) -> Iterator[None]:
        """Switch a layer off for a while."""
        places = self._places[layer]
        saved = []
        with self.path.open("rb") as file:
            for at, size in places:
                file.seek(at)
                saved.append(file.read(size))
        self.drop(layer)
        try:
            yield
        finally:
            with self.path.open("r+b") as file:
                for (at, _), data in zip(places, saved, strict=True):
                    file.seek(at)
                    file.write(data)
