#!/usr/bin/env bash
# What each host of a slice does; `loong launch tpu-vm` calls it. One run at a time.
#
#   worker.sh setup                       takes in ~/loong.new, makes ~/loong/.venv, once for each push
#   worker.sh start RUN_ROOT train ...    runs `loong train ...` in the background, again after 42
#   worker.sh status | stop               how it goes; save on all hosts and stop
#   worker.sh follow [LINES]              its log to the end, from the start or the last LINES
#
# RUN_ROOT is a place in a bucket where the small files of the run outlive the machine; - for none.
# A run that was preempted and has saved exits with 42; like 127 and above, which is what a lost
# machine or a lost connection looks like, that starts it again. Anything else ends it.
set -euo pipefail

CODE=$HOME/loong
STATE=$HOME/loong-run # supervisor.pid, boot, log, status: of the run on this host
PAUSE_S=${LOONG_PAUSE_S:-10}
STOP_S=${LOONG_STOP_S:-240} # how long `stop` waits for the run to save
FETCHES=5                   # attempts
MAX_RESTARTS=${LOONG_MAX_RESTARTS:-100}
export TELEMETRY_ENABLED=false RAY_USAGE_STATS_ENABLED=0

fail() {
    echo "worker.sh: $*" >&2
    exit 1
}

boot_id() { # a process id means nothing after a reboot
    cat /proc/sys/kernel/random/boot_id
}

is_running() { # a run that was started before boots were noted counts as one of this boot
    [ -f "$STATE/supervisor.pid" ] &&
        [ "$(cat "$STATE/boot" 2>/dev/null || boot_id)" = "$(boot_id)" ] &&
        kill -0 "$(cat "$STATE/supervisor.pid")" 2>/dev/null
}

# ---- setup

find_python() { # 3.11 or newer; images of Ubuntu 22.04 have 3.10
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null &&
            "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

replace_code() { # by what was unpacked beside it; installed packages stay
    local new=$CODE.new
    [ -d "$new" ] || return 0
    if [ -d "$CODE/.venv" ]; then
        mv "$CODE/.venv" "$new/.venv"
    fi
    rm -rf "$CODE"
    mv "$new" "$CODE"
}

setup() {
    if is_running; then
        fail "a run is going on; stop it before its code is replaced"
    fi
    replace_code
    cd "$CODE"
    local stamp=.venv/tpu.stamp wanted python
    wanted=$(cat pyproject.toml constraints.txt | sha256sum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        echo "$(hostname): already installed"
        return
    fi
    python=$(find_python)
    if [ -n "$python" ]; then
        bash tools/make_venv.sh .venv "$python"
    else
        python3 -m pip install --quiet --user uv
        python3 -m uv venv --quiet --clear --seed --python 3.12 .venv
    fi
    .venv/bin/python -m pip --disable-pip-version-check install --quiet \
        --constraint constraints.txt --editable '.[tpu]'
    echo "$wanted" >"$stamp"
    echo "$(hostname): installed"
}

# ---- start

start() {
    local run_root=$1
    shift
    if is_running; then
        echo "$(hostname): the run is going on already"
        return
    fi
    mkdir -p "$STATE"
    rm -f "$STATE/status" "$STATE/stopped" "$STATE/supervisor.pid"
    boot_id >"$STATE/boot"
    setsid nohup bash "$CODE/launch/tpu_vm/worker.sh" supervise "$run_root" "$@" \
        >>"$STATE/log" 2>&1 </dev/null &
    echo "$!" >"$STATE/supervisor.pid"
    echo "$(hostname): started"
}

supervise() {
    local run_root=$1 status=42 restarts=0 run_dir child='' # 42: stopped before it began, goes on
    trap 'touch "$STATE/stopped"; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM
    shift
    run_dir=$(option_value --run-dir "$@")
    cd "$HOME"
    if ! fetch "$run_root" "$run_dir"; then
        echo "$(hostname): could not fetch $run_root, and a run without what is there would" \
            "overwrite it. Correct what is said above, then stop and start the run."
        echo 1 >"$STATE/status"
        return 1
    fi
    while [ ! -f "$STATE/stopped" ]; do # also after the pause, which a trapped signal does not cut
        echo "== $(date -u +%FT%TZ) $(hostname): loong $*"
        touch "$STATE/started"
        "$CODE/.venv/bin/loong" "$@" &
        child=$!
        [ ! -f "$STATE/stopped" ] || kill -TERM "$child" 2>/dev/null || true
        status=0
        wait "$child" || status=$?
        while kill -0 "$child" 2>/dev/null; do # a trapped signal ends `wait` before the child
            status=0
            wait "$child" || status=$?
        done
        child=''
        keep "$run_root" "$run_dir"
        echo "== $(date -u +%FT%TZ) $(hostname): exit status $status"
        may_start_again "$status" && [ ! -f "$STATE/stopped" ] || break
        restarts=$((restarts + 1))
        [ "$restarts" -le "$MAX_RESTARTS" ] || break
        sleep "$PAUSE_S"
    done
    echo "$status" >"$STATE/status"
}

may_start_again() {
    [ "$1" = 42 ] || [ "$1" -ge 127 ]
}

option_value() { # NAME ARGUMENTS...
    local name=$1
    shift
    while [ $# -gt 1 ]; do
        if [ "$1" = "$name" ]; then
            echo "$2"
            return
        fi
        shift
    done
    fail "no $name among the arguments"
}

fetch() { # what an earlier machine left; fails unless all of it, or that there is none, is certain
    [ "$1" != - ] || return 0
    mkdir -p "$2" || return 1
    local found attempt
    for ((attempt = 1; attempt <= FETCHES; attempt++)); do
        if found=$(gcloud storage ls "$1/" 2>&1); then
            ! gcloud storage rsync --recursive "$1" "$2" || return 0
        elif [[ $found == *"matched no objects"* ]]; then
            echo "nothing to fetch from $1, as before the first start"
            return 0
        else
            echo "$found"
        fi
        [ ! -f "$STATE/stopped" ] || return 0
        sleep "$PAUSE_S"
    done
    return 1
}

keep() { # only the host of process 0 has written here since the start
    local written
    written=$(find "$2" -maxdepth 1 -newer "$STATE/started" \
        '(' -name metrics.jsonl -o -name summary.json ')' 2>/dev/null || true)
    if [ "$1" != - ] && [ -n "$written" ]; then
        gcloud storage rsync --recursive --exclude='checkpoints/.*' "$2" "$1" ||
            echo "could not keep $2 in $1"
    fi
}

# ---- while it runs

status() {
    if is_running; then
        echo "$(hostname): running; $(tail -n 1 "$STATE/log")"
    elif [ -f "$STATE/status" ]; then
        echo "$(hostname): ended with exit status $(cat "$STATE/status")"
    elif [ -f "$STATE/supervisor.pid" ]; then
        echo "$(hostname): cut off"
    else
        echo "$(hostname): no run"
    fi
}

follow() {
    [ -f "$STATE/supervisor.pid" ] || fail "no run was started here"
    local follow_on=()
    if is_running; then
        follow_on=(-F "--pid=$(cat "$STATE/supervisor.pid")")
    fi
    tail --lines="${1:-+1}" "${follow_on[@]}" "$STATE/log" 2>/dev/null || true
    [ -f "$STATE/status" ] || fail "the run was cut off"
    exit "$(cat "$STATE/status")"
}

stop() {
    if ! is_running; then
        echo "$(hostname): no run"
        return
    fi
    local supervisor waited
    supervisor=$(cat "$STATE/supervisor.pid")
    kill -TERM "$supervisor"
    for ((waited = 0; waited < STOP_S; waited++)); do
        kill -0 "$supervisor" 2>/dev/null || break
        sleep 1
    done
    status
    if kill -0 "$supervisor" 2>/dev/null; then
        fail "$(hostname): told to stop, but not done after $STOP_S s; ask for its status later"
    fi
}

[ $# -gt 0 ] || fail "say setup, start, status, follow or stop"
action=$1
shift
case $action in
setup | start | supervise | status | follow | stop) "$action" "$@" ;;
*) fail "'$action' is none of setup, start, status, follow, stop" ;;
esac
