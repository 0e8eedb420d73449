#!/bin/sh
# Make the environments of the peers that bench/overhead.py, bench/batch.py and bench/gateway.py measure: one each, in DIR.
# (10 GB, most of it for optillm, which needs torch.)
#
#     sh bench/peers.sh DIR
#
# PYTHON names the interpreter (default: python3). pip is used as it is configured on this machine.
set -eu

[ $# -eq 1 ] || { echo "usage: sh bench/peers.sh DIR" >&2; exit 2; }

make_peer() { # name, requirement
    [ -x "$1/bin/python" ] || "${PYTHON:-python3}" -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check "$2"
}

mkdir -p "$1"
make_peer "$1/executionkit" "executionkit==0.4.0"
make_peer "$1/executionkit-httpx" "executionkit[httpx]==0.4.0"
make_peer "$1/dspy" "dspy>=3"
make_peer "$1/openjudge" "py-openjudge==0.2.4"
make_peer "$1/curator" "bespokelabs-curator==0.1.31"
make_peer "$1/litellm" "litellm[proxy]==1.106.2"
make_peer "$1/optillm" "optillm==0.4.0"
echo "ready: python bench/overhead.py --peers $1; python bench/batch.py --peers $1;"
echo "python bench/gateway.py --litellm $1/litellm/bin/python --optillm $1/optillm/bin/python"
