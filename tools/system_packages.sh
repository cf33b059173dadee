#!/usr/bin/env bash
# Installs the system packages that are missing where it may, else prints the command that does.
# It never fails: what needs a missing package is skipped by name (and fails in CI).
set -uo pipefail
missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap) # isolates the programs that a policy writes
[ ${#missing[@]} = 0 ] && exit 0
install="apt-get update -qq && apt-get install -y -qq --no-install-recommends ${missing[*]}"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing system packages: ${missing[*]}"
    if (export DEBIAN_FRONTEND=noninteractive && eval "$install") >/dev/null; then exit 0; fi
    echo "That failed; going on without."
else
    echo "Missing system packages: ${missing[*]}. On Debian or Ubuntu, once:"
    echo "    sudo sh -c '$install'"
fi
echo "Tests that need them are skipped by name."
