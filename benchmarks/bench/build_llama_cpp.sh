#!/usr/bin/env bash
# Build programs of llama.cpp from the source in llama-cpp-python's package, with the options of specdec's own build, but
# with OpenMP and without changes to the source: a peer is measured as its makers build it. CHANGED=1 keeps the changes.
#   build_llama_cpp.sh FOLDER PROGRAM ...
set -euo pipefail
folder=${1:?usage: build_llama_cpp.sh FOLDER PROGRAM ...}
shift
python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
mkdir -p "$folder"
"$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$folder"
tar -C "$folder" -xf "$folder/llama_cpp_python-$version.tar.gz"
# These flags name the GPU, if there is one, and repair compilers that miscompile AMX.
eval "flags=($("$python" specdec_cli/llama/building.py flags))"
left_out=GGML_OPENMP
[ -n "${CHANGED:-}" ] || left_out+="|CMAKE_PROJECT_ggml_INCLUDE"
for i in "${!flags[@]}"; do [[ ${flags[i]} =~ ^-D($left_out)= ]] && unset "flags[i]"; done
cmake -S "$folder/llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release "${flags[@]}" \
  -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_EXAMPLES=ON
for program in "$@"; do cmake --build "$folder/build" --target "$program" -j "$(getconf _NPROCESSORS_ONLN)"; done
