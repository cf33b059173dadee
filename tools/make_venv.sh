#!/usr/bin/env bash
# Makes a virtual environment, or keeps the one that is there: make_venv.sh DIRECTORY PYTHON
set -euo pipefail
venv=$1
python=$2
is_new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "$is_new_enough" 2>/dev/null; then
    exit 0
fi
if ! command -v "$python" >/dev/null; then
    echo "There is no '$python' here, and loong_jax needs Python 3.11 or newer." >&2
    echo "Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
    exit 1
fi
if ! "$python" -c "$is_new_enough"; then
    echo "'$python' is $("$python" --version 2>&1), and loong_jax needs Python 3.11 or newer." >&2
    echo "Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
    exit 1
fi
rm -rf "$venv"
if ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    package=$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing the system package $package ..."
        ( # one at a time: make --jobs
            flock 9
            apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package"
        ) 9>"${TMPDIR:-/tmp}/loong-apt.lock"
        "$python" -m venv "$venv"
    else
        echo "'$python' cannot make a virtual environment. On Debian or Ubuntu:" >&2
        echo "    sudo apt-get install $package" >&2
        exit 1
    fi
fi
