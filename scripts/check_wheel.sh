#!/bin/sh
# Install a wheel into a fresh environment, away from the source tree, and use it: check_wheel.sh WHEEL
set -eu
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}

if command -v uv >/dev/null 2>&1; then
    uv venv --quiet --python "$python" "$folder/env"
    uv pip install --quiet --python "$folder/env/bin/python" "$wheel"
else
    "$python" -m venv "$folder/env"
    "$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
fi
cd "$folder"
env/bin/python -c "import redraft; redraft.refine; print('imports:', redraft.__version__)"
env/bin/redraft --version
env/bin/redraft demo >demo.txt
echo "redraft demo: $(wc -l <demo.txt) lines"
