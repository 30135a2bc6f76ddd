"""The child of trial_load: loads a model file and decodes some tokens with it. It runs as a script, apart from specdec.

A file that llama.cpp refuses with an error is the parent's to tell: this process then ends like one that went well.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from types import ModuleType

EVERY_BYTE = bytes(range(1, 256)).decode("latin-1").encode() + bytes(range(0x80, 0x100))
"""Characters of one and two bytes, and bytes that are no UTF-8: all that a tokenizer may have to fall back to."""

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_N_CTX, _SEVERAL = 256, 17
_MOST_S = 600
"""A trial ends by itself after so many seconds, should its parent be gone."""


def main(path: str, cpu_s: int, data_bytes: int, whole: bool, adapters: list[str]) -> None:
    """Limits: seconds of processor time, and bytes of memory beside the file's own pages. whole: read the weights and
    compute with them; else the graph is built without them. adapters: of the model, which act as it computes.
    """
    limit(cpu_s, data_bytes)
    lib = bindings()
    log = lib.llama_log_callback(_print_errors)
    lib.llama_log_set(log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts, params.no_alloc = 0, False, not whole
    if not whole:
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE  # pages that are mapped would be read
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return
    vocab, room = lib.llama_model_get_vocab(model), 2 * len(EVERY_BYTE)
    tokens, piece = (lib.llama_token * room)(), ctypes.create_string_buffer(256)
    has_tokenizer = lib.llama_vocab_type(vocab) != lib.LLAMA_VOCAB_TYPE_NONE  # drafts with a part of their target's
    count = lib.llama_tokenize(vocab, EVERY_BYTE, len(EVERY_BYTE), tokens, room, True, True) if has_tokenizer else 1
    for token in tokens[: max(0, count)] if has_tokenizer else ():
        lib.llama_token_to_piece(vocab, token, piece, len(piece), 0, False)
    loaded = [lib.llama_adapter_lora_init(model, os.fsencode(adapter)) for adapter in adapters]
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = _N_CTX, _SEVERAL, _SEVERAL
    params.n_threads = params.n_threads_batch = 1
    context = lib.llama_init_from_model(model, params)
    if not (context and all(loaded)):
        return
    scales = (ctypes.c_float * len(loaded))(*[1.0] * len(loaded))
    lib.llama_set_adapters_lora(context, (lib.llama_adapter_lora_p_ctypes * len(loaded))(*loaded), len(loaded), scales)
    if whole and count > 0:
        lib.llama_decode(context, lib.llama_batch_get_one(tokens, 1))
        several = (lib.llama_token * _SEVERAL)(*[tokens[0]] * _SEVERAL)  # which take another path than one
        lib.llama_decode(context, lib.llama_batch_get_one(several, _SEVERAL))


def limit(cpu_s: int, data_bytes: int) -> None:
    """Set seconds of processor time and bytes of memory of this process."""
    with suppress(ImportError, ValueError, OSError):  # Windows has none, and macOS not all
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if hasattr(signal, "alarm"):
        signal.alarm(_MOST_S)


def bindings() -> ModuleType:
    """The low-level bindings alone: the package around them imports for a quarter of a second what is not needed."""
    package = ModuleType("llama_cpp")
    spec = importlib.util.find_spec("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations or ()) if spec else []
    sys.modules["llama_cpp"] = package
    import llama_cpp.llama_cpp as lib

    return lib  # type: ignore[no-any-return]


def _print_errors(level: int, text: bytes, _user: object) -> None:
    if level == _ERROR:
        with suppress(OSError):
            os.write(2, text)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "whole", sys.argv[5:])
    os._exit(0)  # nothing has to be freed in order
