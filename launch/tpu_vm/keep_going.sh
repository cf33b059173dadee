#!/usr/bin/env bash
# Keeps a run on spot machines going to its end: asks for machines, starts or resumes, follows, and
# begins again whenever they are taken away. Copy it and fill in the names. Run it where it can stay.
#
#   bash launch/tpu_vm/keep_going.sh [ARGUMENTS OF loong launch tpu-vm ...]
set -euo pipefail

RUN=(
    "${RECIPE:-pod-sft}"
    --name "${NAME:?the name of the run, such as pod-sft-1}"
    --topology "${TOPOLOGY:-v5e:4x4}"
    --zone "${ZONE:?such as us-west4-a}"
    --project "${PROJECT:?the id of your project}"
    --bucket "${BUCKET:?such as gs://my-bucket}"
    --spot
)
attempts=${ATTEMPTS:-50}

if ! command -v loong >/dev/null; then
    echo "there is no loong on the PATH here, and nothing was asked for; activate the environment" \
        "that it is installed in, or put its bin directory on the PATH" >&2
    exit 127
fi

for ((attempt = 1; attempt <= attempts; attempt++)); do
    status=0
    loong launch tpu-vm "${RUN[@]}" all "$@" || status=$?
    if [ "$status" != 42 ]; then # 0: done; anything else is for a person to look at
        echo "ended with exit status $status after $attempt attempts; the machines are still yours:" >&2
        echo "    loong launch tpu-vm ${RUN[*]} delete" >&2
        exit "$status"
    fi
    echo "preempted and saved; attempt $((attempt + 1)) follows" >&2
    sleep "${PAUSE_S:-60}"
done
echo "still not done after $attempts attempts; the run resumes when this is started again" >&2
exit 42
