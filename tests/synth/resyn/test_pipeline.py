"""`loong synth resyn` end to end against the scripted author over HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from loong_jax.data import json_files, packages
from loong_jax.errors import ConfigError
from loong_jax.report import synthesis
from loong_jax.synth.calls import CallStore
from loong_jax.synth.resyn import command
from loong_jax.synth.resyn.command import ResynOptions
from loong_jax.synth.resyn.ideas import ResynSettings
from loong_jax.synth.resyn.measures import CalibrationRule
from tests.synth.scripted import play, played, resyn_defects
from tests.synth.scripted.resyn_families import FAMILIES

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("played_author")]
SAME = ("items.jsonl", "report.json", "audit.json", "run.json", "report.html",
        "funnel.png")  # fmt: skip
KILL_S = 120


def options(out: Path, words: Path, attempts: int = 8, **changes) -> ResynOptions:
    rule = CalibrationRule(attempts_per_level=attempts)
    settings = ResynSettings(ideas_per_keyword=3, calibration=rule)
    model = {"endpoint": played.URL, "model": "scripted"}
    return ResynOptions(out=out, keywords=words, settings=settings, **model | changes)


def made(out: Path, words: Path) -> Path:
    assert command.main(options(out, words)) == 0
    synthesis.write_resyn(out)
    return out


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("modular\nstring\n")
    return path


@pytest.fixture(scope="module")
def finished(words, tmp_path_factory, played_author):
    out = tmp_path_factory.mktemp("resyn")
    return made(out, words)


def tree(out: Path) -> dict[str, bytes]:
    """All that a run leaves, by path, without its work and the order of its calls."""
    found = {name: (out / name).read_bytes() for name in SAME}
    for path in sorted((out / "packages").rglob("*")):
        if path.is_file():
            found[str(path.relative_to(out))] = path.read_bytes()
    return found


def test_every_idea_ends_in_one_place(finished):
    items = json_files.read_jsonl(finished / "items.jsonl")
    funnel = json_files.read_json(finished / "report.json")["funnel"]
    assert len(items) == funnel["items"] == 2 * 3
    ends = Counter(item["end"] for item in items)
    entered = funnel["items"]
    for stage in funnel["stages"]:
        assert stage["in"] == entered
        assert sum(stage["refused"].values()) == ends[stage["stage"]]
        entered = stage["out"]
    assert entered == funnel["kept"] == ends["kept"] > 0
    assert (finished / "funnel.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_kept_is_a_package_that_can_reward(finished):
    kept = packages.read_all(finished / "packages")
    items = {i["uid"]: i for i in json_files.read_jsonl(finished / "items.jsonl")}
    assert len(kept) == sum(item["end"] == "kept" for item in items.values())
    for package in kept:
        packages.require_sound(package)
        assert package.author == "scripted"
        item = items[package.about["item"]]
        assert package.about["calibration"] == item["calibration"]
        assert item["calibration"]["decision"] == "kept"
        place = finished / "packages" / package.uid
        asked = json_files.read_jsonl(place / packages.TRANSCRIPT)
        assert {"resyn/ideas", "resyn/module", "resyn/judge_module", "resyn/judge_question",
                "resyn/solve"} <= {call["prompt_name"] for call in asked}  # fmt: skip
        assert {call["model"] for call in asked} == {"scripted"}
        assert [call["key"] for call in asked] == list(dict.fromkeys(item["calls"]))


def planted(out: Path) -> dict[str, list[bool]]:
    """By defect of a module, whether each that was planted was kept: ledger, calls and items."""
    ledger = json_files.read_jsonl(out / played.LEDGER)
    defect_of = {row["digest"]: row["defect"] or "" for row in ledger}
    found = defaultdict(list)
    with CallStore(out / "calls.jsonl") as store:
        for item in json_files.read_jsonl(out / "items.jsonl"):
            for call in map(store.get, dict.fromkeys(item["calls"])):
                name = defect_of[play.digest(call["messages"], call["seed"])]
                if name.startswith(resyn_defects.IN_MODULE):
                    is_refused = item["first_refusal"] or item["end"] != "kept"
                    found[name].append(not is_refused)
    return found


def test_no_planted_defect_of_code_is_kept(finished):
    assert not any(map(any, planted(finished).values()))


@pytest.mark.release
@pytest.mark.timeout(900)
def test_of_many_ideas_no_planted_defect_is_kept(tmp_path):
    words = tmp_path / "words.txt"
    known = {word for family in FAMILIES.values() for word in family.keywords}
    words.write_text("\n".join([*sorted(known), *(f"subject {n}" for n in range(15))]))
    chosen = options(tmp_path / "run", words, attempts=20)
    assert command.main(chosen) == 0
    report = json_files.read_json(chosen.out / "report.json")
    kept = packages.read_all(chosen.out / "packages")
    assert len(kept) == report["funnel"]["kept"] >= 5
    assert report["diversity"]["distinct_both"] == len(kept)
    found = planted(chosen.out)
    assert len(found) >= 15
    assert {name: kept for name, kept in found.items() if any(kept)} == {}


def test_a_run_of_little_budget_that_is_then_killed_goes_on_and_ends_alike(
    finished, words, tmp_path
):
    """Killed with -9 amid the calls: none that was kept is made again; equal bytes at the end."""
    out = tmp_path / "run"
    assert command.main(options(out, words, max_requests=20)) == command.BUDGET_SPENT
    report = json_files.read_json(out / "report.json")
    assert not report["is_complete"]
    assert report["funnel"]["kept"] == 0
    packages.write(out / "packages", packages.read_all(finished / "packages")[0], [])
    (kept,) = (out / "packages").iterdir()
    kept.rename(kept.with_name("left_by_an_earlier_start-0123456789abcdef"))
    num_calls = (out / "calls.jsonl").read_bytes().count(b"\n")
    arguments = [sys.executable, "-m", "tests.synth.scripted.played", "synth", "resyn"]
    arguments += ["--out", str(out), "--keywords", str(words), *played.AT, "--ideas", "3"]
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [*arguments, "--attempts", "8"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(root)}, start_new_session=True,
    )  # fmt: skip
    calls, deadline = out / "calls.jsonl", time.monotonic() + KILL_S
    while time.monotonic() < deadline and process.poll() is None:
        if calls.read_bytes().count(b"\n") >= num_calls + 20:
            break
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with CallStore(calls) as store:
        kept = {play.digest(call["messages"], call["seed"]) for call in store.records()}
    num_said = len((out / played.LEDGER).read_text().splitlines())
    made(out, words)
    said = [json.loads(line) for line in (out / played.LEDGER).read_text().splitlines()]
    assert len(said) > num_said
    assert not kept & {row["digest"] for row in said[num_said:]}
    assert tree(out) == tree(finished)


def test_a_directory_holds_one_run(finished, words):
    with pytest.raises(ConfigError, match="settings"):
        command.main(options(finished, words, attempts=16))


def test_an_endpoint_needs_a_model(words, tmp_path):
    with pytest.raises(ConfigError, match="--model"):
        command.main(options(tmp_path, words, endpoint="http://127.0.0.1:1/v1", model=""))
