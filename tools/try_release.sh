#!/usr/bin/env bash
# Installs the wheel of a directory elsewhere and starts it, and builds a wheel from the sdist:
# try_release.sh DIRECTORY PYTHON
set -euo pipefail
dist=$(realpath "$1")
python=$2
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

"$python" -m venv fresh
pip=(fresh/bin/python -m pip --disable-pip-version-check)
echo "Installing $(basename "$dist"/*.whl) into a fresh environment ..."
"${pip[@]}" install --quiet --no-compile --constraint "$constraints" "$dist"/*.whl
fresh/bin/loong --help
fresh/bin/loong doctor
printf '{"gold": "1/2", "answer": "0.5"}\n' >cases.jsonl
fresh/bin/loong verify math --input cases.jsonl --output verdicts.jsonl
grep -q '"verdict": "correct"' verdicts.jsonl

echo "Building a wheel from $(basename "$dist"/*.tar.gz) ..."
"${pip[@]}" wheel --quiet --no-deps --wheel-dir again "$dist"/*.tar.gz
listed() { fresh/bin/python -m zipfile --list "$1" | awk 'NR > 1 { print $1 }' | sort; }
diff <(listed "$dist"/*.whl) <(listed again/*.whl)
echo "The wheel starts elsewhere, and the sdist builds the same wheel."
