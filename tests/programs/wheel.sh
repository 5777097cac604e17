#!/bin/sh
# Builds the wheel of pmnet for Python, installs it, and checks it: types, the reference and the examples.
set -eu
cd "$(dirname "$0")/../.."
venv=$PWD/target/venv
rm -rf target/wheel-test target/wheels/pmnet-*.whl
make --no-print-directory python WHEEL_PROFILE=checked
set -- target/wheels/pmnet-*-cp39-abi3-*.whl
[ $# = 1 ] && [ -f "$1" ] || { echo "not one wheel for 3.9 and later: $*"; exit 1; }
"$venv/bin/python" -m pip -q install --disable-pip-version-check --no-index --no-deps --target target/wheel-test "$1"
cd target/wheel-test
for file in py.typed _pmnet.pyi _pmnet.abi3.so __init__.py; do
    [ -e "pmnet/$file" ] || { echo "the wheel has no pmnet/$file"; exit 1; }
done
export PYTHONPATH="$PWD" MYPYPATH="$PWD" MYPY_CACHE_DIR="$PWD/cache"
"$venv/bin/python" -c 'import pmnet; print("loaded", pmnet.__version__)'
"$venv/bin/mypy" --strict pmnet ../../examples/python/*.py
# The stub must declare exactly the contents of the extension.
"$venv/bin/stubtest" pmnet
