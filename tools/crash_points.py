"""Kills a small run with SIGKILL at many points, goes on with it, and checks what came of it.

    python tools/crash_points.py                          each kind of point, first and last time
    python tools/crash_points.py --once                   each kind in the middle of its times
    python tools/crash_points.py --count 200 --seed 0     that many, drawn at random

The run is `tests.doubles.killable_run`: real loop, journal, Orbax checkpoints and verifier
processes. After each kill the same run is opened again until it ends. It must end with the weights
of a run that nobody killed, bit for bit, with every step trained on the groups it had before, with
the counts of tickets adding up, and without having written a journaled group again. Prints a
table; the exit status is 1 where anything differed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.doubles import crash_point, killable_run

# How often each point is passed in the whole run, at most.
POINTS = {
    "Assign": 8,
    "Issue": 4,
    "Dispatch": 5,
    "Generated": 10,
    "Verified": 8,
    "Score": 4,
    "Scored": 4,
    "Train": 4,
    "Trained": 4,
    "Published": 4,
    "SaveBegun": 2,
    "half_saved": 2,
    "saved": 2,
    "Ended": 1,
    "verifier_worker": 8,
}
NOT_RECORDS = ("half_saved", "saved", "verifier_worker")
TIMEOUT_S = 120.0


def every_kind(*, once: bool = False) -> list[str]:
    """Each kind of point at its first and last time, and the records torn as well.

    `once`: in the middle of its times alone, and every third record torn.
    """
    torn = [f"{name}:1:torn" for name in POINTS if name not in NOT_RECORDS]
    if once:
        return [f"{name}:{(most + 1) // 2}" for name, most in POINTS.items()] + torn[::3]
    return [f"{name}:{c}" for name, most in POINTS.items() for c in sorted({1, most})] + torn


def drawn(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    points = []
    for _ in range(count):
        name = generator.choice(list(POINTS))
        torn = ":torn" if name not in NOT_RECORDS and generator.random() < 0.3 else ""
        points.append(f"{name}:{generator.randint(1, POINTS[name])}{torn}")
    return points


def live(directory: Path, point: str | None) -> int:
    """One life of the run in a process of its own; returns how it ended, as `os.waitpid` says.

    The process is forked from this one, which has imported everything and started no thread.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ.pop(crash_point.VARIABLE, None)
            if point is not None:
                os.environ[crash_point.VARIABLE] = point
            log = os.open(directory.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 2)
            found = killable_run.run(directory)
            (directory / "found.json").write_text(json.dumps(found))
            status = 0
        finally:
            os._exit(status)
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"{point or 'the resumed run'} did not end within {TIMEOUT_S} s.")


def lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def try_point(point: str, directory: Path, expected: dict) -> tuple[bool, list[str]]:
    """Was the process killed there, and what is wrong with the run that went on?"""
    first = live(directory, point)
    was_killed = os.WIFSIGNALED(first) and os.WTERMSIG(first) == signal.SIGKILL
    wrong = []
    if was_killed:
        journaled = {
            json.loads(line[9:])[1]
            for path in (directory / "journal").glob("*.log")
            for line in path.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n") and line[9:].startswith(b'["Generated"')
        }
        before = len(lines(directory / "generated.jsonl"))
        if live(directory, None) != 0:
            return was_killed, ["the resumed run failed"]
        again = {number for number, _ in lines(directory / "generated.jsonl")[before:]}
        if journaled & again:
            wrong.append(f"written again: {sorted(journaled & again)}")
    elif first != 0:
        return was_killed, [f"status {first}"]
    found = json.loads((directory / "found.json").read_text())
    counts = found["counts"]
    if found["weights"] != expected["weights"]:
        wrong.append("other weights")
    if counts["issued"] != sum(counts.values()) - counts["issued"]:
        wrong.append(f"counts {counts}")
    if counts["trained"] != expected["counts"]["trained"]:
        wrong.append(f"trained {counts['trained']}")
    batches: dict[int, list] = {}
    for step, batch in lines(directory / "trained.jsonl"):
        if batches.setdefault(step, batch) != batch:
            wrong.append(f"step {step} trained on other groups")
    keys = [key for batch in batches.values() for key, _ in batch]
    most = 1 + killable_run.REUSE.max_reads
    if any(keys.count(key) > most for key in keys):
        wrong.append(f"a problem trained more than {most} times in one issue")
    return was_killed, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, help="random points, instead of each kind")
    parser.add_argument("--once", action="store_true", help="each kind, at one time alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", nargs="*", help="these points alone")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no point after this")
    arguments = parser.parse_args()
    points = arguments.points or (
        every_kind(once=arguments.once)
        if arguments.count is None
        else drawn(arguments.count, arguments.seed)
    )
    start_s, tally, num_wrong = time.monotonic(), {}, 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if live(root / "straight", None) != 0:
            print((root / "straight.log").read_text(), file=sys.stderr)
            return 1
        expected = json.loads((root / "straight" / "found.json").read_text())
        for number, point in enumerate(points):
            if time.monotonic() - start_s > arguments.limit_s:
                break
            directory = root / str(number)
            was_killed, wrong = try_point(point, directory, expected)
            row = tally.setdefault(point.split(":")[0], [0, 0, 0])
            row[0] += 1
            row[1] += was_killed
            row[2] += bool(wrong)
            num_wrong += bool(wrong)
            if wrong:
                print(f"{point}: {'; '.join(wrong)}", file=sys.stderr)
                print(directory.with_suffix(".log").read_text()[-2000:], file=sys.stderr)
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{'point':<18}{'tried':>7}{'killed':>8}{'wrong':>7}")
    for name, (tried, killed, bad) in tally.items():
        print(f"{name:<18}{tried:>7}{killed:>8}{bad:>7}")
    tried, killed, bad = (sum(row[i] for row in tally.values()) for i in range(3))
    print(f"{'all':<18}{tried:>7}{killed:>8}{bad:>7}   {time.monotonic() - start_s:.0f} s")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
