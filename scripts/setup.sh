#!/bin/sh
# Make a virtual environment and install Redraft into it: setup.sh VENV WHAT [REQUIREMENTS]
# uses uv when it is there, else venv and pip; says what is missing otherwise.
set -eu
venv=$1 what=$2 requirements=${3:-}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$name" >/dev/null 2>&1 && new_enough "$name"; then command -v "$name"; return; fi
    done
}

if command -v uv >/dev/null 2>&1; then
    [ -x "$venv/bin/python" ] || uv venv --quiet --python "${PYTHON:->=3.11}" "$venv"
    uv pip install --quiet --python "$venv/bin/python" -e "$what" ${requirements:+-r "$requirements"}
    exit
fi

if ! { [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" && "$venv/bin/python" -c 'import pip' 2>/dev/null; }; then
    python=$(find_python)
    if [ -z "$python" ]; then
        echo "Redraft needs Python 3.11 or newer; found: $(python3 --version 2>/dev/null || echo 'no python3')." >&2
        echo "Install one (Debian and Ubuntu: apt install python3.11 python3.11-venv), or name it: make PYTHON=/path/to/python3.11" >&2
        exit 1
    fi
    if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        echo "$python cannot make virtual environments: its venv module is missing." >&2
        echo "Install it (Debian and Ubuntu: apt install python3-venv), or install uv." >&2
        exit 1
    fi
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
echo "Installing Redraft into $venv ..." >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$what" ${requirements:+-r "$requirements"}
