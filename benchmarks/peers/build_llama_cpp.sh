#!/usr/bin/env bash
# Build llama-speculative-simple from the very llama.cpp that llama-cpp-python's source package contains,
# with the options that the bindings are built with. Usage: build_llama_cpp.sh FOLDER
set -euo pipefail
folder=${1:?usage: build_llama_cpp.sh FOLDER}
python=${PYTHON:-.venv/bin/python}
version=$($python -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
mkdir -p "$folder"
$python -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$folder"
tar -C "$folder" -xf "$folder/llama_cpp_python-$version.tar.gz"
cmake -S "$folder/llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
  -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=ON
cmake --build "$folder/build" --target llama-speculative-simple -j "$(nproc)"
echo "$folder/build/bin/llama-speculative-simple"
