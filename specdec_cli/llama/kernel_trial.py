"""The child of kernels: decodes with a small random model as specdec will. It is a script.

Arguments: the parent's process, threads, `extra` or `plain`, ggml's numbers of weight types. For each type a model of
random weights is made. What it gives for a text, read in passes of several widths, must be what it gives token by token
without the extra buffers, but for rounding. Ends with code 1 and says why where it is not, with 2 if it could not be
tried, or with a signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

WIDTHS = (1, 2, 4, 5, 16, 17, 64)
_WIDTH, _HIDDEN, _VOCABULARY, _HEADS, _LAYERS, _N_CTX = 256, 512, 512, 4, 1, 128
_SINGLE, _ALIGNMENT = 8, 32
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_F32, _TEXT, _U32, _FLOAT = 0, 8, 4, 6
MOST_DISTANCE = 0.15
"""Of rows, as a share of their spread. Rounding of 8-bit activations comes to 0.01 to 0.03, a wrong kernel to 1."""


def main(threads: int, extra_buffers: bool, types: list[int]) -> str:
    """What is wrong; empty if nothing is."""
    import numpy as np

    from specdec_cli.llama.trial_child import bindings, limit

    limit(60, 4 << 30)
    lib = bindings()
    log = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    base = _ggml(lib)
    random = np.random.default_rng(0)
    shapes = _shapes()
    weights = {name: _weight(np, random, name, shape) for name, shape in shapes.items()}
    text = random.integers(0, _VOCABULARY, max(WIDTHS)).tolist()
    with tempfile.TemporaryDirectory(prefix="specdec-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "trial.gguf"
        for kind in (_F32, *types):
            path.write_bytes(_gguf(np, base, weights, kind))
            own = _rows(lib, np, path, text, 1, (1,), False)[1]
            # Several threads, which wait for each other where other programs run, once: the last type has them.
            count = threads if kind == types[-1] else 1
            found = _rows(lib, np, path, text, count, WIDTHS, extra_buffers, _SINGLE)
            for width, rows in found.items():
                if not np.isfinite(rows).all():
                    return f"passes of {width} tokens give no numbers, for weights of type {kind}"
                expected = own[: len(rows)]
                distance = float(np.sqrt(np.mean((rows - expected) ** 2)) / max(float(expected.std()), 1e-9))
                if os.environ.get("SPECDEC_DEBUG"):
                    print(kind, width, round(distance, 4), file=sys.stderr)
                if distance > MOST_DISTANCE:
                    return f"passes of {width} tokens give wrong numbers, for weights of type {kind}"
    return ""


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (_VOCABULARY, _WIDTH), "output_norm": (_WIDTH,)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        shapes |= {f"{block}attn_{part}": (_WIDTH, _WIDTH) for part in ("q", "k", "v", "output")}
        shapes |= {f"{block}{part}_norm": (_WIDTH,) for part in ("attn", "ffn")}
        shapes |= {f"{block}ffn_{part}": (_HIDDEN, _WIDTH) for part in ("gate", "up")}
        shapes[f"{block}ffn_down"] = (_WIDTH, _HIDDEN)
    return shapes


def _weight(np: Any, random: Any, name: str, shape: tuple[int, ...]) -> Any:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)


def _ggml(lib: Any) -> ctypes.CDLL:
    folder = Path(lib._lib._name).parent
    names = (folder / name for name in ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll"))
    base = ctypes.CDLL(str(next(path for path in names if path.exists())))
    pointer = ctypes.c_void_p
    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, *[ctypes.c_int64] * 3, pointer]
    base.ggml_quantize_chunk.restype = base.ggml_row_size.restype = ctypes.c_size_t
    base.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    return base


def _gguf(np: Any, base: ctypes.CDLL, weights: dict[str, Any], kind: int) -> bytes:
    """A file of these weights, its matrices in one type."""
    named = {"block_count": _LAYERS, "context_length": _N_CTX, "embedding_length": _WIDTH}
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
    importance = np.ones(width, np.float32)  # which some types cannot do without
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
    """Rows of logits by the width of the passes, from the text's beginning: one pass, or of single tokens so many."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, extra_buffers
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise SystemExit("a model of random weights is refused")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = _N_CTX, len(text), len(text)
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("a model of random weights gets no context")
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


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # the folder of this file has names of other packages' modules
    parent = int(sys.argv.pop(1))
    with suppress(OSError, AttributeError, TypeError):  # Linux alone can end a process with its parent
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:  # which has ended already
        os._exit(2)
    code, fault = 0, ""
    try:
        fault = main(int(sys.argv[1]), sys.argv[2] == "extra", list(map(int, sys.argv[3:])))
        code = 1 if fault else 0
    except SystemExit as error:
        code, fault = 1, str(error)
    except (OSError, MemoryError) as error:  # but for a library that is not there, this says nothing of the kernels
        code, fault = 1 if isinstance(error, FileNotFoundError) else 2, str(error)
    print(fault, flush=True)
    os._exit(code)  # nothing has to be freed in order
