"""The script that a child of trial_process.py runs: it tries kernels, a model file or heads, and llama.cpp may end it.

    trial_child.py kernels PARENT FOLDER THREADS extra|plain TYPE...  exits with 1 and a reason if kernels don't work,
                                                                       with 2 if they can't be tried
    trial_child.py model CPU_S DATA_BYTES whole| FILE ADAPTER...
    trial_child.py heads CPU_S DATA_BYTES FILE HEADS

If llama.cpp refuses a file with an error, this process exits as if all went well: the parent reports the error.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

EVERY_BYTE = bytes(range(1, 256)).decode("latin-1").encode() + bytes(range(0x80, 0x100))
"""Characters of one and two bytes, and bytes that aren't UTF-8: everything that a tokenizer may fall back to."""

WIDTHS = (1, 2, 4, 5, 16, 17, 64)
MAX_DISTANCE = 0.15
"""The largest distance of rows that passes, relative to their spread. Rounding of 8-bit activations gives 0.01 to 0.03,
a wrong kernel 1."""

_WIDTH, _HIDDEN, _VOCABULARY, _HEADS, _N_CTX = 256, 512, 512, 4, 128
_SINGLE, _ALIGNMENT = 8, 32
_F32, _TEXT, _U32, _FLOAT = 0, 8, 4, 6
_MODEL_N_CTX, _SEVERAL = 256, 17
_MAX_S = 600
"""A trial ends by itself after this many seconds, in case its parent is gone."""
_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_callbacks: list[Any] = []
"""llama.cpp keeps bare pointers to them."""


def limit(cpu_s: int, data_bytes: int) -> None:
    """Limit the processor time of this process, and its memory without mapped files."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, macOS not all
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if hasattr(signal, "alarm"):
        signal.alarm(_MAX_S)


def started(log: Callable[[int, bytes, object], None]) -> ModuleType:
    """llama.cpp through its low-level bindings alone: importing the rest of the package takes a quarter of a second."""
    package = ModuleType("llama_cpp")
    spec = importlib.util.find_spec("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations or ()) if spec else []
    sys.modules["llama_cpp"] = package
    import llama_cpp.llama_cpp as lib

    _callbacks.append(lib.llama_log_callback(log))
    lib.llama_log_set(_callbacks[0], ctypes.c_void_p(0))
    lib.llama_backend_init()
    return lib  # type: ignore[no-any-return]


def _print_errors(level: int, text: bytes, _user: object) -> None:
    if level == _ERROR and b"failed to initialize" not in text:  # GPUs are hidden from trials
        with suppress(OSError):
            os.write(2, text)


def try_model(path: str, whole: bool, adapters: list[str]) -> None:
    """Load a model file and decode some tokens with it. whole: read the weights and compute with them; otherwise, build
    the graph without them. adapters: files of adapters to apply.
    """
    lib = started(_print_errors)
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts, params.no_alloc = 0, False, not whole
    if not whole:
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE  # mapping the file would read its pages
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return
    vocab, room = lib.llama_model_get_vocab(model), 2 * len(EVERY_BYTE)
    tokens, piece = (lib.llama_token * room)(), ctypes.create_string_buffer(256)
    has_tokenizer = lib.llama_vocab_type(vocab) != lib.LLAMA_VOCAB_TYPE_NONE  # drafts may use part of their target's
    count = lib.llama_tokenize(vocab, EVERY_BYTE, len(EVERY_BYTE), tokens, room, True, True) if has_tokenizer else 1
    for token in tokens[: max(0, count)] if has_tokenizer else ():
        lib.llama_token_to_piece(vocab, token, piece, len(piece), 0, False)
    loaded = [lib.llama_adapter_lora_init(model, os.fsencode(adapter)) for adapter in adapters]
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = _MODEL_N_CTX, _SEVERAL, _SEVERAL
    params.n_threads = params.n_threads_batch = 1
    context = lib.llama_init_from_model(model, params)
    if not (context and all(loaded)):
        return
    scales = (ctypes.c_float * len(loaded))(*[1.0] * len(loaded))
    lib.llama_set_adapters_lora(context, (lib.llama_adapter_lora_p_ctypes * len(loaded))(*loaded), len(loaded), scales)
    if whole and count > 0:
        lib.llama_decode(context, lib.llama_batch_get_one(tokens, 1))
        several = (lib.llama_token * _SEVERAL)(*[tokens[0]] * _SEVERAL)  # these take another path than one
        lib.llama_decode(context, lib.llama_batch_get_one(several, _SEVERAL))


def try_heads(target: str, head: str) -> None:
    """Load heads and their target, and decode some tokens with both.

    Neither header shows whether the target's graph gives the rows that the heads read, or whether llama.cpp has a graph
    for the heads. If it has none, it ends the process.
    """
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.llama.context import LlamaContext
    from specdec_cli.llama.head_context import HeadContext
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.llama.model import Model
    from specdec_cli.llama.placement import Placement

    with suppress(SpecdecError):  # the parent reports it
        interrupt, place = Interrupt(), Placement(0)
        # Repacked weights would be in memory that isn't mapped, and `limit` leaves too little of that.
        model = Model(Path(target), place, interrupt, heads=target == head, repacks=False)
        heads = model if target == head else Model(Path(head), place, interrupt, heads=True, repacks=False)
        context = LlamaContext.open(model, 256, 2, 1, interrupt)
        drafts = HeadContext(heads, context, 2, 1, interrupt, branches=2)
        context.decode((0, 0, 0))
        context.decode((0, 0), all_rows=True)
        drafts.begin((0, 0, 0, 0))
        drafts.decode((0, 0))
        drafts.begin_draft()
        drafts.decode((0,))
        if drafts.max_rows > 1:
            drafts.grow((0, 1), (-1, -1))
            drafts.keep(())


def try_kernels(folder: Path, threads: int, extra_buffers: bool, types: list[int]) -> str:
    """Decode with a small random model as specdec will. Returns what is wrong; empty if nothing is.

    folder: for the model's file. types: ggml's numbers of weight types; each gets a model of random weights. Its rows
    for a text, read in passes of several widths, must equal those read token by token without the extra buffers, up to
    rounding.
    """
    import numpy as np

    limit(60 * threads, 4 << 30)
    lib = started(lambda *_: None)
    base = _ggml(lib)
    weights = _weights(np)
    text = np.random.default_rng(1).integers(0, _VOCABULARY, max(WIDTHS)).tolist()
    path = folder / "trial.gguf"
    for kind in (_F32, *types):
        path.write_bytes(_gguf(np, base, weights, kind))
        own = _rows(lib, np, path, text, 1, (1,), False)[1]
        # Several threads wait for each other if other programs run, so only the last type uses them.
        count = threads if kind == types[-1] else 1
        found = _rows(lib, np, path, text, count, WIDTHS, extra_buffers, _SINGLE)
        for width, rows in found.items():
            if not np.isfinite(rows).all():
                return f"passes of {width} tokens give NaN or infinity for weights of type {kind}"
            expected = own[: len(rows)]
            distance = float(np.sqrt(np.mean((rows - expected) ** 2)) / max(float(expected.std()), 1e-9))
            if distance > MAX_DISTANCE:
                return f"passes of {width} tokens give wrong numbers for weights of type {kind}"
    return ""


def _weights(np: Any) -> dict[str, Any]:
    """Random weights of a model with one layer."""
    random = np.random.default_rng(0)
    shapes = {"token_embd": (_VOCABULARY, _WIDTH), "blk.0.ffn_down": (_WIDTH, _HIDDEN)}
    shapes |= {f"blk.0.attn_{part}": (_WIDTH, _WIDTH) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{part}": (_HIDDEN, _WIDTH) for part in ("gate", "up")}
    matrices = {name: random.standard_normal(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return {name: matrix.astype(np.float32) for name, matrix in matrices.items()} | {
        name: np.ones(_WIDTH, np.float32) for name in norms
    }


def _ggml(lib: Any) -> ctypes.CDLL:
    path = Path(lib._lib._name).with_name("ggml-base.dll")
    base = ctypes.CDLL(str(path)) if path.exists() else lib._lib  # only Windows needs the name of the library
    pointer = ctypes.c_void_p
    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, *[ctypes.c_int64] * 3, pointer]
    base.ggml_quantize_chunk.restype = base.ggml_row_size.restype = ctypes.c_size_t
    base.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    return base


def _gguf(np: Any, base: ctypes.CDLL, weights: dict[str, Any], kind: int) -> bytes:
    """A GGUF file of these weights, with its matrices in one type."""
    named = {"block_count": 1, "context_length": _N_CTX, "embedding_length": _WIDTH}
    named |= {"feed_forward_length": _HIDDEN, "attention.head_count": _HEADS, "vocab_size": _VOCABULARY}
    values = [
        _pair("general.architecture", _TEXT, _string("llama")),
        _pair("tokenizer.ggml.model", _TEXT, _string("none")),
        *(_pair(f"llama.{name}", _U32, struct.pack("<I", value)) for name, value in named.items()),
        _pair("llama.attention.layer_norm_rms_epsilon", _FLOAT, struct.pack("<f", 1e-5)),
    ]
    table, data = b"", b""
    for name, weight in weights.items():
        own = kind if weight.ndim > 1 else _F32
        dims = weight.shape[::-1]
        table += _string(f"{name}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, own, len(data))
        data += _quantized(np, base, weight, own)
        data += b"\0" * (-len(data) % _ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(values)) + b"".join(values) + table
    return head + b"\0" * (-len(head) % _ALIGNMENT) + data


def _pair(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _quantized(np: Any, base: ctypes.CDLL, weight: Any, kind: int) -> bytes:
    if kind == _F32:
        return bytes(weight.tobytes())
    rows, width = weight.shape
    made = ctypes.create_string_buffer(rows * base.ggml_row_size(kind, width))
    importance = np.ones(width, np.float32)  # some types require it
    base.ggml_quantize_chunk(kind, weight.ctypes.data, made, 0, rows, width, importance.ctypes.data)
    return made.raw


def _rows(
    lib: Any,
    np: Any,
    path: Path,
    text: list[int],
    threads: int,
    widths: tuple[int, ...],
    extra_buffers: bool,
    single: int | None = None,
) -> dict[int, Any]:
    """Rows of logits by the width of the passes, from the start of the text. One pass for each width. For width 1,
    `single` passes; by default, one for each token.
    """
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, extra_buffers
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise SystemExit("llama.cpp refuses a model of random weights")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = _N_CTX, len(text), len(text)
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp cannot create a context for a model of random weights")
    batch, found = lib.llama_batch_init(len(text), 0, 1), {}
    for width in widths:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        rows = []
        for first in range((single or len(text)) if width == 1 else 1):
            for i in range(width):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = text[first + i], first + i, 1
                batch.seq_id[i][0], batch.logits[i] = 0, 1
            batch.n_tokens = width
            if code := lib.llama_decode(context, batch):
                raise SystemExit(f"a pass of {width} tokens fails with code {code}")
            rows.append(np.ctypeslib.as_array(lib.llama_get_logits(context), (width, _VOCABULARY)).copy())
        found[width] = np.concatenate(rows)
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found


def _end_with(parent: int) -> None:
    with suppress(OSError, AttributeError, TypeError):  # only Linux can end a process with its parent
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:  # the parent has already ended
        os._exit(2)


def _kernels(parent: str, folder: str, threads: str, how: str, *types: str) -> int:
    """Try the kernels; returns the exit code."""
    _end_with(int(parent))
    try:
        fault = try_kernels(Path(folder), int(threads), how == "extra", list(map(int, types)))
        code = 1 if fault else 0
    except SystemExit as error:
        code, fault = 1, str(error)
    except (OSError, MemoryError) as error:  # unless a library is missing, this says nothing about the kernels
        code, fault = 1 if isinstance(error, FileNotFoundError) else 2, str(error)
    print(fault, flush=True)
    return code


def main(what: str, arguments: list[str]) -> int:
    if what == "kernels":
        return _kernels(*arguments)
    limit(int(arguments[0]), int(arguments[1]))
    if what == "model":
        try_model(arguments[3], arguments[2] == "whole", arguments[4:])
    else:
        try_heads(*arguments[2:])
    return 0


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # modules in this folder would hide others of the same name
    os._exit(main(sys.argv[1], sys.argv[2:]))  # there is nothing to clean up
