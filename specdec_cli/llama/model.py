"""A loaded GGUF model: its weights, its vocabulary, its tokenizer."""

from __future__ import annotations

import ctypes
import glob
import os
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from threading import Condition
from typing import Any

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.llama import computing, library, placing, rpc
from specdec_cli.llama.adapter import Adapter
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.computing import Call
from specdec_cli.llama.huge_pages import NewMemory
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.remote_calls import PATIENCE_S, RemoteCalls

_SLOWEST_LOAD = 200e6
"""Bytes per second, for the deadline of a load onto servers. It restarts with each tensor, so the largest one, perhaps
a tenth of the file, may go at a tenth of this speed."""

_SHOWN = (b"[THINK]", b"[/THINK]")
"""Control tokens that have a text here: Mistral's models mark their thoughts with them."""

_ADAPTER_S = 60.0
"""How long loading an adapter over the network may take."""


def _size(path: Path) -> int:
    """Bytes of a model's file, or of all its parts."""
    parts = re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"-?????\1", glob.escape(path.name))
    return sum(part.stat().st_size for part in path.parent.glob(parts))


class Model:
    """Weights in memory. Contexts made from it must not outlive it.

    path: a GGUF file whose header has been validated: llama.cpp aborts the process on some bad input. placement: a
    possible one, with its servers connected; a build without a GPU ignores its layers. adapters: checked ones, which
    apply in every context. heads: load its next-token layers, too. repacks: keep weights in another order if this build
    has faster kernels for that.
    Raises SpecdecError if llama.cpp refuses the file or memory runs out, Interrupted on Ctrl-C.
    """

    def __init__(
        self,
        path: Path,
        placement: Placement,
        interrupt: Interrupt,
        adapters: Sequence[Adapter] = (),
        heads: bool = False,
        repacks: bool = True,
    ) -> None:
        params = lib.llama_model_default_params()
        params.use_extra_bufts = repacks
        if heads:
            params.load_mtp = True
        self._arrays = placing.fill(params, placement)
        self.remote: RemoteCalls | None = rpc.calls() if placement.is_remote else None
        """Runs the calls that involve servers, if there are any."""
        self.call: Call = partial(self.remote.call, interrupt=interrupt) if self.remote else computing.call
        """Calls the functions of llama.cpp that compute with this model, or move its data."""

        handle = self._loaded(path, params, interrupt)
        encodes = lib.llama_model_has_encoder(handle) and not heads  # EAGLE-3 encodes hidden rows
        if encodes or lib.llama_model_is_diffusion(handle):
            self.free(lib.llama_model_free, handle)
            raise SpecdecError(f"{path.name} does not generate text token by token", "Choose a causal language model.")
        self.path, self.handle = path, handle
        self._vocab_users, self._changed = 0, Condition()
        """How many calls use the vocabulary now. Closing waits for them."""
        self.on_gpu = placement.on_devices and not self.remote and library.supports_gpu()
        n_layers = lib.llama_model_n_layer(handle) + lib.llama_model_n_layer_nextn(handle)
        all_layers = not 0 <= placement.layers <= n_layers  # one more: the output
        self.offloaded = bool(self.remote) or (self.on_gpu and all_layers)
        """Whether passes run wholly on GPUs, or partly on other machines."""
        self._adapters = [(self._adapter(adapter.path), adapter.scale) for adapter in adapters]
        self.n_vocab: int = self._with_vocab(lib.llama_vocab_n_tokens)
        self._bos = [self._with_vocab(lib.llama_vocab_bos)] if self._with_vocab(lib.llama_vocab_get_add_bos) else []
        """What texts begin with; llama.cpp's own `add_special` may add EOS, too."""
        count = ctypes.c_int32()
        found: Any = self._with_vocab(lib.llama_vocab_get_suppress_tokens, ctypes.byref(count))
        self.suppressed: list[int] = found[: count.value] if found else []
        """Tokens that the file says are never to be written. llama.cpp leaves that to its samplers."""
        self.n_embd: int = lib.llama_model_n_embd(handle)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(handle)
        self.rewinds: bool = not (lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle))
        """Whether a cache of this model can drop its last tokens; recurrent states can't."""
        self.piece: Callable[[int], bytes] = cache(self._piece)
        """The bytes of one token; control tokens have none, but for those that mark thoughts."""
        self.is_end: Callable[[int], bool] = cache(lambda token: bool(self._with_vocab(lib.llama_vocab_is_eog, token)))
        """Whether a token ends the answer (EOS, EOT and their like)."""

    def _loaded(self, path: Path, params: Any, interrupt: Interrupt) -> Any:
        """llama.cpp's own model."""
        memory = NewMemory()

        def progress(_done: float, _user: object) -> bool:
            memory.use_huge_pages()  # at the first call, it's allocated and still empty
            if self.remote:
                self.remote.alive()
            return not interrupt.is_set()

        self._progress = lib.llama_progress_callback(progress)
        params.progress_callback = self._progress
        library.recent_errors.clear()
        self.n_bytes = _size(Path(path))
        patience = PATIENCE_S + self.n_bytes / _SLOWEST_LOAD
        handles = list[Any]()

        def load() -> None:
            handles.append(lib.llama_model_load_from_file(os.fsencode(path), params))

        try:
            self.call(load, allowed_s=patience, interrupt=interrupt)
            if interrupt.is_set():
                raise Interrupted
        except BaseException:  # Ctrl-C
            for handle in filter(None, handles):
                self.free(lib.llama_model_free, handle)
            raise
        if not handles[0]:
            reason = library.last_error() or "no reason given"
            raise SpecdecError(
                f"llama.cpp cannot load {path.name}: {reason}",
                "If memory ran out, use a smaller quantisation or fewer GPU layers (-ngl); "
                "if the architecture is unknown, update llama-cpp-python.",
            )
        return handles[0]

    def _adapter(self, path: Path) -> Any:
        """llama.cpp's own adapter, which is freed with the model."""
        library.recent_errors.clear()
        adapter = self.call(lib.llama_adapter_lora_init, self.handle, os.fsencode(path), allowed_s=_ADAPTER_S)
        if not adapter:
            self.close()
            reason = library.last_error() or "no reason given"
            raise SpecdecError(
                f"llama.cpp cannot load {path.name}: {reason}", "Use an adapter that was made for this model."
            )
        return adapter

    def adapt(self, context: Any) -> None:
        """Apply the model's adapters in a context of llama.cpp."""
        if count := len(self._adapters):
            handles = (lib.llama_adapter_lora_p_ctypes * count)(*(handle for handle, _ in self._adapters))
            scales = (ctypes.c_float * count)(*(scale for _, scale in self._adapters))
            lib.llama_set_adapters_lora(context, handles, count, scales)

    def _with_vocab(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of llama.cpp with the vocabulary. Raises SpecdecError once the weights were freed."""
        with self._changed:
            if self.handle is None:
                raise SpecdecError(f"{self.path.name} was closed", "Load it again.")
            vocab = lib.llama_model_get_vocab(self.handle)
            self._vocab_users += 1
        try:
            return function(vocab, *arguments)
        finally:
            with self._changed:
                self._vocab_users -= 1
                self._changed.notify_all()

    def tokenize(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of `text`. add_bos: whether to begin with the BOS token if this vocabulary asks for one. special:
        whether the names of special tokens are recognised; otherwise they're ordinary text.
        """
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 16
        while True:
            tokens = (lib.llama_token * room)()
            count = self._with_vocab(lib.llama_tokenize, data, len(data), tokens, room, False, special)
            if count >= 0:
                return [*(self._bos if add_bos else ()), *tokens[:count]]
            room = -count

    def _piece(self, token: int, special: bool = False, room: int = 256) -> bytes:
        buffer = ctypes.create_string_buffer(room)  # its own, because several threads may ask at once
        size = self._with_vocab(lib.llama_token_to_piece, token, buffer, room, 0, special)
        if size == 0 and not special and (name := self._piece(token, special=True)) in _SHOWN:
            return name
        return buffer.raw[:size] if size >= 0 else self._piece(token, special, -size)

    def close(self) -> None:
        """Free the weights, once no thread tokenizes. Its contexts must be closed already."""
        with self._changed:
            handle, self.handle = self.handle, None
            self._changed.wait_for(lambda: not self._vocab_users)
        if handle:
            self.free(lib.llama_model_free, handle)

    def free(self, function: Callable[[Any], object], handle: Any) -> None:
        """Free something on the machines that hold this model."""
        if self.remote:
            self.remote.free(function, handle)
        else:
            self.call(function, handle)
