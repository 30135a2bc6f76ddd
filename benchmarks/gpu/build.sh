#!/usr/bin/env bash
# Build specdec, llama.cpp and its peers from the files of pack.py, on a machine without a network.
#
#   benchmarks/gpu/build.sh [FOLDER]      # build/gpu unless named
#   source FOLDER/env.sh                  # specdec, llama-server and llama-speculative-simple are on the path now
#
# llama.cpp is compiled once, into shared libraries that both the bindings and the peers use: CUDA's kernels alone take
# an hour of one core. A run that was interrupted continues where it stopped; if there is nothing to do, it does nothing.
# ACCEL=cuda|cpu, CUDA_ARCH=90, CARRY=FOLDER of pack.py, PYTHON=python3, JOBS=all cores, PEERS="" for none.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
mkdir -p "${1:-$repo/build/gpu}"
folder=$(cd "${1:-$repo/build/gpu}" && pwd)
carry=${CARRY:-$here/carry}
accel=${ACCEL:-cuda}
python=$(command -v "${PYTHON:-python3}") || { echo "no ${PYTHON:-python3} here" >&2; exit 1; }
PATH=$(dirname "$python"):$PATH # cmake and ninja may be Python's packages
command -v cmake >/dev/null || { echo "no cmake here" >&2; exit 1; }
jobs=${JOBS:-$(nproc)}
read -ra peers <<<"${PEERS-llama-speculative-simple llama-server}"
archive=$carry/llama.tar.xz
[ -f "$archive" ] || { echo "no llama.tar.xz in $carry: run pack.py where there is a network" >&2; exit 1; }

began=$SECONDS
stage() { # NAME COMMAND...: run it and say how long it took
  local name=$1 from=$SECONDS
  shift
  "$@"
  printf '%-10s %4d s\n' "$name" $((SECONDS - from))
}

architecture() { # of the first GPU, as nvcc names it: 90 for an H200, 89 for an RTX 4090
  local found
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .) || true
  echo "${found:-90}"
}

# cuBLAS and the driver's library, if they aren't in the toolkit: in Python's packages, and next to the driver.
cuda_flags() {
  local nvcc top header lib driver
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  [ -x "$nvcc" ] || { echo "no nvcc here: install CUDA's toolkit, set CUDACXX, or build with ACCEL=cpu" >&2; exit 1; }
  top=$(cd "$("$nvcc" --dryrun none.cu 2>&1 | sed -n 's/^#\$ TOP=//p')" && pwd -P)
  flags+=(-DGGML_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCH:-$(architecture)}" -DGGML_CUDA_NCCL=OFF
    "-DCMAKE_CUDA_COMPILER=$top/bin/nvcc" "-DCUDAToolkit_ROOT=$top" "-DCMAKE_BUILD_RPATH=$top/lib64;$top/lib")
  if [ ! -e "$top/include/cublas_v2.h" ]; then
    header=$("$python" -c 'import glob, sys
print(next((h for p in sys.path for h in glob.glob(p + "/nvidia/*/include/cublas_v2.h")), ""))')
    [ -n "$header" ] || { echo "no cuBLAS in $top or in Python's packages (nvidia-cublas)" >&2; exit 1; }
    lib=$(dirname "$(dirname "$header")")/lib
    flags+=("-DCMAKE_CUDA_FLAGS=-isystem $(dirname "$header")")
    for name in cublas cublasLt; do
      flags+=("-DCUDA_${name}_LIBRARY=$(find "$lib" -name "lib$name.so*" | sort | head -n 1)")
    done
  fi
  if [ -z "$(find -L "$top" -path '*/stubs/libcuda.so' -print -quit)" ]; then
    driver=$(ldconfig -p | sed -n 's/.*libcuda\.so.* => //p' | sort | head -n 1)
    [ -n "$driver" ] || ! [ -d /usr/local/nvidia ] || driver=$(find /usr/local/nvidia -name 'libcuda.so*' -print -quit)
    # Without it memory comes from one pool less; a little slower in rare cases.
    if [ -n "$driver" ]; then flags+=("-DCUDA_cuda_driver_LIBRARY=$driver"); else flags+=(-DGGML_CUDA_NO_VMM=ON); fi
  fi
}

flags=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TESTS=OFF
  -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_EXAMPLES=ON -DLLAMA_BUILD_SERVER=ON
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_OPENMP=OFF)
case $accel in
  cuda) cuda_flags ;;
  cpu) flags+=(-DGGML_CUDA=OFF) ;;
  *) echo "ACCEL is $accel; it must be cuda or cpu" >&2; exit 1 ;;
esac
[ "$(uname -m)" != x86_64 ] || flags+=("-DCMAKE_CXX_FLAGS=-include '$repo/specdec_cli/llama/amx_tile_config.h'")
command -v ninja >/dev/null && flags+=(-G Ninja)

source_id=$(sha256sum <"$archive")
wheels_id=$({ "$python" -VV; find "$carry" -name '*.whl' -printf '%f\n' | sort; } | sha256sum)
flags_id=$(printf '%s\n' "$source_id" "${flags[@]}" | sha256sum)
everything=$(printf '%s\n' "$flags_id" "$wheels_id" "$repo" "${peers[@]}" | sha256sum)

is_done() { [ -f "$folder/.$1" ] && [ "$(cat "$folder/.$1")" = "$2" ]; }
if is_done ready "$everything"; then
  echo "nothing to do: $folder is built"
  exit 0
fi
rm -f "$folder/.ready"

unpack() {
  rm -rf "$folder/source" "$folder/build" "$folder/.configured"
  mkdir "$folder/source"
  tar -C "$folder/source" -xf "$archive"
  echo "$source_id" >"$folder/.unpacked"
}
is_done unpacked "$source_id" || stage unpack unpack

packages() {
  rm -rf "$folder/site"
  mkdir "$folder/site"
  if compgen -G "$carry/*.whl" >/dev/null; then
    "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --target "$folder/site" "$carry"/*.whl
  fi
  echo "$wheels_id" >"$folder/.packages"
}
is_done packages "$wheels_id" || stage packages packages

configure() {
  rm -rf "$folder/build"
  cmake -S "$folder/source/vendor/llama.cpp" -B "$folder/build" "${flags[@]}" >"$folder/configure.log" 2>&1 ||
    { tail -n 40 "$folder/configure.log" >&2; exit 1; }
  echo "$flags_id" >"$folder/.configured"
}
is_done configured "$flags_id" || stage configure configure

compile() {
  cmake --build "$folder/build" --target llama "${peers[@]}" -j "$jobs" >"$folder/compile.log" 2>&1 ||
    { grep -n -A 20 -E 'error|FAILED|fatal' "$folder/compile.log" | head -n 60 >&2; exit 1; }
}
stage compile compile

# Apart from their libraries, the bindings are only Python: they get the peers' libraries.
install() {
  ln -sfn "$folder/source/llama_cpp" "$folder/site/llama_cpp"
  ln -sfn "$folder/build/bin" "$folder/source/llama_cpp/lib"
  mkdir -p "$folder/bin"
  printf '#!/bin/sh\nexec "%s" -m specdec_cli "$@"\n' "$python" >"$folder/bin/specdec"
  chmod +x "$folder/bin/specdec"
  cat >"$folder/env.sh" <<END
export PYTHONPATH="$folder/site:$repo\${PYTHONPATH:+:\$PYTHONPATH}"
export PATH="$folder/bin:$folder/build/bin:\$PATH"
END
}
stage install install

check() {
  # shellcheck disable=SC1091
  source "$folder/env.sh"
  "$python" -m specdec_cli doctor
  [ "$accel" != cuda ] || "$python" -c 'from specdec_cli.llama import library
assert any(device.kind == "GPU" for device in library.devices()), "llama.cpp was built for CUDA and sees no GPU"'
  for peer in "${peers[@]}"; do "$peer" --version >/dev/null 2>&1 || { echo "$peer does not start" >&2; exit 1; }; done
}
stage check check
echo "$everything" >"$folder/.ready"
echo "built in $((SECONDS - began)) s: source $folder/env.sh"
