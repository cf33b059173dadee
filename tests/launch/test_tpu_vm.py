"""The way onto a TPU slice: commands as text, refusals, their order against a gcloud of ours."""

import json
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from loong_jax import cli, cli_help
from loong_jax.errors import ConfigError, LaunchError
from loong_jax.launch import command, tpu_vm
from loong_jax.launch.tpu_vm import Command, Job, TpuVm, WaitActive
from loong_jax.run.distributed import PREEMPTED

ROOT = Path(__file__).resolve().parents[2]

# Every flag that we give to gcloud, by command. `gcloud meta lint-gcloud-commands` knows them all.
FLAGS = {
    "queued-resources create": {
        "--project", "--zone", "--node-id", "--accelerator-type", "--runtime-version", "--spot",
        "--reserved", "--service-account",
    },
    "queued-resources describe": {"--project", "--zone", "--format"},
    "queued-resources delete": {"--project", "--zone", "--force", "--quiet"},
    "tpu-vm scp": {"--project", "--zone", "--worker", "--internal-ip", "--quiet"},
    "tpu-vm ssh": {
        "--project", "--zone", "--worker", "--internal-ip", "--quiet", "--ssh-flag", "--command",
    },
}  # fmt: skip


def make_vm(**changes) -> TpuVm:
    settings = dict(
        name="pod-sft-1",
        topology="v5e:4x4",
        zone="us-west4-a",
        project="my-project",
        bucket="gs://my-bucket",
    )
    return TpuVm(**(settings | changes))


JOB = Job(recipe="pod-sft", arguments=("--sft.num-steps", "7"))


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def all_commands() -> list[Command]:
    """Every command there is, with every option."""
    address = "trainer@my-project.iam.gserviceaccount.com"
    machines = (
        make_vm(spot=True),
        make_vm(reserved=True, internal_ip=True, service_account=address, runtime_version="v2-x"),
    )
    steps = [
        step
        for vm in machines
        for action in tpu_vm.ACTIONS
        for step in tpu_vm.steps_of(vm, JOB, action)
    ]
    return [step.ask if isinstance(step, WaitActive) else step for step in steps]


def gcloud_commands() -> list[str]:
    words = [command.words for command in all_commands() if command.words[0] == "gcloud"]
    return sorted({shlex.join(line) for line in words})


# ---- topologies


@pytest.mark.parametrize(
    ("topology", "accelerator_type", "num_hosts", "num_devices"),
    [
        ("v5e:1x1", "v5litepod-1", 1, 1),
        ("v5e:2x4", "v5litepod-8", 1, 8),
        ("v5e:4x4", "v5litepod-16", 4, 16),
        ("v5e:16x16", "v5litepod-256", 64, 256),
        ("v6e:2x2", "v6e-4", 1, 4),
        ("v6e:8x4", "v6e-32", 8, 32),
        ("v5p:2x2x1", "v5p-8", 1, 4),
        ("v5p:2x4x4", "v5p-64", 8, 32),
        ("v5p:4x4x4", "v5p-128", 16, 64),
        ("v5p:4x4x20", "v5p-640", 80, 320),
        ("v5p:4x8x12", "v5p-768", 96, 384),
        ("v5p:8x8x8", "v5p-1024", 128, 512),
        ("v5p:8x12x16", "v5p-3072", 384, 1536),
        ("v5p:8x20x20", "v5p-6400", 800, 3200),
        ("v5p:16x16x24", "v5p-12288", 1536, 6144),
        ("v5p:16x20x28", "v5p-17920", 2240, 8960),
        ("tpu7x:2x2x1", "tpu7x-8", 1, 8),
        ("tpu7x:4x4x4", "tpu7x-128", 16, 128),
    ],
)
def test_topologies_become_what_cloud_calls_them(
    topology, accelerator_type, num_hosts, num_devices
):
    found = tpu_vm.parse_topology(topology)
    assert found.accelerator_type == accelerator_type
    assert (found.num_hosts, found.num_devices) == (num_hosts, num_devices)


@pytest.mark.parametrize(
    ("topology", "remedy"),
    [
        ("v9:4x4", "v5e, v6e, v5p, tpu7x"),
        ("v5e", "Write v5e:4x4"),
        ("v5e:4x", "Write v5e:4x4"),
        ("v5e:0x4", "Write v5e:4x4"),
        ("v5e:4x5", "v5e has 1x1, 2x2, 2x4, 4x4"),
        ("v6e:4x4x4", "exist|a pod of v6e|v6e has"),
        ("v5e:16x32", "a pod of v5e has 256"),
        ("v5p:2x2x8", "32 chips come as v5p:2x4x4"),
        ("v5p:2x2x3", "sides are 2x2x1, 2x2x2, 2x2x4, 2x4x4 or multiples of 4"),
        ("v5p:4x4", "16 chips come as v5p:2x2x4"),
        ("v5p:4x4x32", "512 chips come as v5p:8x8x8"),
        ("tpu7x:32x32x32", "a pod of tpu7x has 9216"),
    ],
)
def test_other_topologies_are_refused_with_what_would_do(topology, remedy):
    with pytest.raises(ConfigError, match=remedy):
        tpu_vm.parse_topology(topology)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(name="Pod"), "name='Pod' is not a DNS label"),
        (dict(name="pod-"), "DNS label"),
        (dict(name="p" * 64), "DNS label"),
        (dict(zone="us-west4"), "zone='us-west4'"),
        (dict(project="x"), "project='x'"),
        (dict(bucket="my-bucket"), "such as gs://my-bucket"),
        (dict(bucket="gs://my-bucket; rm"), "bucket="),
        (dict(bucket="gs://b1"), "'gs://b1' is not .*3 to 63 of a-z"),
        (dict(bucket=f"gs://{'b' * 64}/a"), "3 to 63 of a-z"),
        (dict(runtime_version="V 2"), "runtime_version"),
        (dict(service_account="me"), "service_account='me'"),
        (dict(spot=True, reserved=True), "exclude each other"),
        (dict(provision_timeout_h=0.0), "provision_timeout_h=0.0 is not a finite number"),
        (dict(provision_timeout_h=math.inf), "provision_timeout_h=inf is not a finite number"),
        (dict(follow_timeout_h=math.inf), "follow_timeout_h=inf is not a finite number"),
        (dict(follow_timeout_h=math.nan), "follow_timeout_h=nan is not a finite number"),
        (dict(topology="v5e:3x3"), "v5e has"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked_for(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_vm(**changes)


@pytest.mark.parametrize("zone", ["us-west4-a", "us-south1-ai1b", "us-central1-ai1a"])
def test_zones_of_one_letter_and_those_for_ai_are_known(zone):
    assert f"--zone={zone}" in tpu_vm.ask_state(make_vm(zone=zone)).words


@pytest.mark.parametrize("bucket", ["gs://b12", f"gs://{'b' * 63}/a/b.c", f"gs://a.{'b' * 63}.org"])
def test_buckets_of_every_length_are_taken(bucket):
    assert make_vm(bucket=bucket).bucket == bucket


def test_one_host_needs_no_bucket_and_a_place_may_be_given_by_hand():
    words = tpu_vm.train_words(make_vm(topology="v5e:2x2", bucket=None), JOB)
    assert words == ("train", "pod-sft", "--run-dir", "runs/pod-sft-1", *JOB.arguments)
    with pytest.raises(ConfigError, match=r"4 hosts with a disk each.*Give --bucket"):
        tpu_vm.dry_run(make_vm(bucket=None), JOB, "create")
    by_hand = Job(recipe="pod-sft", arguments=("--checkpoints=gs://other/run",))
    words = tpu_vm.train_words(make_vm(), by_hand)
    assert [word for word in words if "checkpoints" in word] == ["--checkpoints=gs://other/run"]


@pytest.mark.parametrize("words", [("--checkpoints=/mnt/run",), ("--checkpoints", "/mnt/run")])
def test_several_hosts_write_to_a_directory_only_where_it_is_said_to_be_shared(words):
    job = Job(recipe="pod-sft", arguments=words)
    for bucket in (None, "gs://my-bucket"):
        with pytest.raises(ConfigError, match=r"/mnt/run after -- is no URL.*4 hosts.*--shared-d"):
            tpu_vm.dry_run(make_vm(bucket=bucket), job, "run")
        for fits in (dict(topology="v5e:2x2"), dict(shared_disk=True)):
            assert tpu_vm.train_words(make_vm(bucket=bucket, **fits), job)[4:] == words


@pytest.mark.parametrize("word", ["--run-dir", "--run-dir=runs/b", "--run_dir=runs/b"])
def test_a_second_directory_of_the_run_is_refused(word):
    job = Job(recipe="pod-sft", arguments=(word, "runs/b")[: 1 if "=" in word else 2])
    with pytest.raises(ConfigError, match=r"--run-dir after --.*runs/pod-sft-1"):
        tpu_vm.dry_run(make_vm(), job, "run")


# ---- the command line


def test_a_dry_run_prints_every_command_and_runs_none(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", None)
    words = """tpu-vm pod-sft --name pod-sft-1 --topology v5e:4x4 --zone us-west4-a
      --project my-project --bucket gs://my-bucket --spot --dry-run -- --sft.num-steps 200"""
    assert cli.main(["launch", *words.split()]) == 0
    shown = capsys.readouterr().out
    assert shown == (ROOT / "tests" / "launch" / "tpu_vm_dry_run.txt").read_text()
    assert shown.strip() in (ROOT / "docs/tutorials/pod.md").read_text()


def test_the_recipe_may_stand_behind_options_and_a_bare_dry_run_shows_the_example(capsys):
    words = cli_help.LAUNCH_EXAMPLE.split()
    shown = []
    for given in (words, ["--dry-run"], [*words[1:], words[0]], ["--spot", *words]):
        assert cli.main(["launch", "tpu-vm", *given]) == 0
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1
    named = [*words[1:-1], "status", "--dry-run", "pod-sft-flash"]
    named[named.index("pod-sft-1")] = "pod-sft"  # a name, not the recipe
    assert cli.main(["launch", "tpu-vm", *named]) == 0


@pytest.mark.parametrize("action", tpu_vm.ACTIONS)
def test_a_dry_run_is_a_script_that_bash_can_read(action):
    job = Job(recipe="pod-sft", arguments=("--sft.rows", "it's 32"))
    text = tpu_vm.dry_run(make_vm(), job, action)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


OPTIONS = "--name a --zone us-west4-a --project my-project --bucket gs://my-bucket --topology"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gke pod-sft", "is no target"),
        ("tpu-vm quickstart", "recipe for several hosts"),
        ("tpu-vm pod-sft TOPOLOGY v5e:2x4", "mesh of the recipe is for 16"),
        ("tpu-vm pod-sft TOPOLOGY v5e:4x4 -- --sft.rows 31", "sft.rows=31 cannot be cut"),
        ("tpu-vm pod-sft TOPOLOGY v5e:4x4 -- --checkpoints /mnt/x", "/mnt/x after -- is no URL"),
        ("tpu-vm pod-sft TOPOLOGY v5e:4x4 --dry-run --follow-timeout-h inf", "timeout_h=inf"),
    ],
)
def test_what_would_fail_on_the_pod_is_refused_here(words, message, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", None)
    assert cli.main(["launch", *words.replace("TOPOLOGY", OPTIONS).split()]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("setting", ["num-steps", "checkpoint-every"])
def test_settings_that_no_recipe_has_are_refused_here(setting, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", None)
    words = f"tpu-vm pod-sft {OPTIONS} v5e:4x4 run -- --sft.{setting} 0"
    with pytest.raises(SystemExit):
        cli.main(["launch", *words.split()])
    assert f"{setting.replace('-', '_')}=0 must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["push", "status", "logs", "stop", "delete"])
def test_what_starts_nothing_needs_neither_mesh_nor_bucket(action, capsys):
    """So that machines of another mesh, or without a bucket, can be looked at and deleted."""
    words = "tpu-vm pod-sft --name a --zone us-west4-a --project my-project --topology v5e:8x8"
    assert cli.main(["launch", *words.split(), "--dry-run", action]) == 0
    assert "gcloud" in capsys.readouterr().out


# ---- gcloud


def test_only_known_flags_are_given_to_gcloud():
    used: dict[str, set[str]] = {}
    for line in gcloud_commands():
        words = shlex.split(line)
        assert words[:3] == ["gcloud", "compute", "tpus"]
        flags = {word.partition("=")[0] for word in words[5:] if word.startswith("-")}
        used.setdefault(" ".join(words[3:5]), set()).update(flags)
    assert used == FLAGS


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_knows_every_command(tmp_path):
    good = gcloud_commands()
    misspelt = next(line for line in good if "--spot" in line).replace("--spot", "--spott")
    listed = tmp_path / "commands.json"
    listed.write_text(json.dumps([{"command_string": line} for line in [misspelt, *good]]))
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={listed}"],
        env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path)},  # no account, no settings
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode or not done.stdout.startswith("["):
        pytest.skip(f"this gcloud has no linter: {done.stderr[:200]}")
    bad, *found = json.loads(done.stdout)
    assert not bad["success"]
    assert len(found) == len(good)
    assert [f["error_message"] for f in found if not f["success"]] == []


# ---- order of commands, against a gcloud that remembers


RUNNING = "\n".join(f"host-{i}: running; step 7: it has no run" for i in range(4))


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A gcloud that notes what it is asked and takes its answers from files, the last of which
    stay: states of the queued resource, and what becomes of each following. `hosts` is what hosts
    say of the run."""
    write_program(
        tmp_path / "bin/gcloud",
        f"cd {shlex.quote(str(tmp_path))}\n"
        'next() { head -n 1 "$1"; [ "$(wc -l <"$1")" = 1 ] || sed -i 1d "$1"; }\n'
        'verb=$4 words="$*"; if [ "$verb" = ssh ]; then verb=${words##*worker.sh }; fi\n'
        'echo "${verb%% *}" >>asked\n'
        'case "${verb%% *}" in\n'
        "describe) state=$(next states)\n"
        '  [ "$state" != NONE ] || { echo "ERROR: NOT_FOUND: no such thing" >&2; exit 1; }\n'
        '  [ "$state" != DENIED ] || { echo "PERMISSION_DENIED: you" >&2; exit 1; }\n'
        '  echo "$state" ;;\n'
        'follow) exit "$(next follows)" ;;\n'
        "status) cat hosts; [ -s hosts ] || exit 255 ;;\n"
        "esac\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)

    def perform(action, states, follows=(0,), hosts="", **changes):
        (tmp_path / "asked").write_text("")
        (tmp_path / "states").write_text("\n".join(states) + "\n")
        (tmp_path / "follows").write_text("".join(f"{status}\n" for status in follows))
        (tmp_path / "hosts").write_text(hosts and hosts + "\n")
        said = []
        status = command.perform(make_vm(**changes), JOB, action, say=said.append, every_s=0.01)
        verbs = (tmp_path / "asked").read_text().split()
        return status, [verb for verb in verbs if verb != "describe"], said

    return perform


def test_all_creates_pushes_runs_and_returns_the_status_of_the_run(cloud):
    states = ["NONE", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    status, verbs, said = cloud("all", states)
    assert (status, verbs) == (0, ["create", "scp", "setup", "start", "follow"])
    assert "pod-sft-1: WAITING_FOR_RESOURCES" in said


@pytest.mark.parametrize(
    ("hosts", "verbs"),
    [
        (RUNNING, []),
        (f"host-9: ended with exit status 0\n{RUNNING}", []),
        (f"host-9: no run\n{RUNNING}", ["start"]),
        (f"host-9: cut off\n{RUNNING}", ["start"]),
        ("host-0: cut off\nhost-1: ended with exit status 134", ["scp", "setup", "start"]),
        ("host-0: no run\nhost-1: ended with exit status 42", ["scp", "setup", "start"]),
        ("", ["scp", "setup", "start"]),
    ],
)
def test_all_leaves_a_run_alone_that_is_going_on_and_follows_it(cloud, hosts, verbs):
    status, asked, said = cloud("all", ["ACTIVE"], hosts=hosts)
    assert (status, asked) == (0, ["status", *verbs, "follow"])
    assert ("keeps its code and settings" in " ".join(said)) == ("running" in hosts)
    assert cloud("all", ["ACTIVE"], follows=[PREEMPTED], hosts=hosts)[0] == PREEMPTED


def test_logs_end_with_the_status_of_the_run(cloud):
    ended = "host-0: ended with exit status {}"
    assert cloud("logs", ["ACTIVE"])[:2] == (0, ["follow"])
    assert cloud("logs", ["ACTIVE"], follows=[PREEMPTED])[:2] == (PREEMPTED, ["follow"])
    assert cloud("logs", ["ACTIVE"], follows=[1], hosts=ended.format(1))[0] == 1
    assert cloud("logs", ["ACTIVE"], follows=[255], hosts=ended.format(255))[0] == 255
    assert cloud("logs", ["ACTIVE"], follows=[1], hosts="host-0: no run")[0] == 1
    assert cloud("logs", ["ACTIVE"], follows=[1], hosts="host-0: cut off")[0] == PREEMPTED
    assert cloud("logs", ["SUSPENDED"], follows=[255])[0] == PREEMPTED
    with pytest.raises(LaunchError, match="cannot ask host 0 how the run ended: exit status 255"):
        cloud("logs", ["ACTIVE"], follows=[127])  # bash finds no worker.sh before the first push


@pytest.mark.parametrize("action", ["logs", "all"])
@pytest.mark.parametrize("hosts", ["", RUNNING])  # "": they cannot be reached either
def test_a_run_is_followed_again_when_the_connection_was_lost(cloud, action, hosts):
    status, verbs, said = cloud(action, ["ACTIVE"], follows=[255, 255, 0], hosts=hosts)
    assert (status, verbs.count("follow")) == (0, 3)
    lost = [line for line in said if "follows it again" in line]
    assert len(lost) == 2
    assert "1 of 60" in lost[0]
    assert "2 of 60" in lost[1]
    assert cloud(action, ["ACTIVE"], follows=[255, 42], hosts=hosts)[0] == PREEMPTED


def test_machines_that_are_taken_away_while_followed_end_the_run_as_preempted(cloud):
    states = ["ACTIVE", "DENIED", "ACTIVE", "SUSPENDING"]
    status, verbs, said = cloud("logs", states, follows=[255, 255, 1], hosts="")
    assert (status, verbs.count("follow")) == (PREEMPTED, 4)
    assert any("PERMISSION_DENIED" in line for line in said)
    assert said[-1] == "the machines were taken away"


@pytest.mark.parametrize("state", ["NONE", "DELETING"])
def test_machines_that_somebody_deletes_are_not_asked_for_again(cloud, state):
    status, _, said = cloud("all", ["ACTIVE", state], follows=[255], hosts=RUNNING)
    assert status == 1
    assert said[-1].startswith("pod-sft-1 was deleted")


def test_nobody_follows_for_ever(cloud, monkeypatch):
    monkeypatch.setattr(command, "LOST_AT_MOST", 3)
    with pytest.raises(LaunchError, match=r"pod-sft-1.*lost 3 times.*may be going on.*`logs`"):
        cloud("logs", ["ACTIVE"], follows=[255])
    with pytest.raises(LaunchError, match="cannot ask for the state"):
        cloud("logs", ["DENIED"], follows=[255])
    monkeypatch.setattr(command, "LOST_AT_MOST", 10**9)
    with pytest.raises(LaunchError, match="--follow-timeout-h"):
        cloud("logs", ["ACTIVE"], follows=[255], follow_timeout_h=0.5 / 3600)
    monkeypatch.setattr(command, "LOST_AT_MOST", 2)
    monkeypatch.setattr(command, "HELD_S", 0.0)  # then each connection counts as one that held
    status, _, said = cloud("logs", ["ACTIVE"], follows=[255, 255, 255, 0])
    assert status == 0
    assert [line.endswith("worker.sh follow 100'") for line in said if "ssh" in line] == [
        False, True, True, True,
    ]  # fmt: skip


def test_create_does_what_is_left_to_do(cloud):
    assert cloud("create", ["ACTIVE"])[1] == []
    assert cloud("create", ["ACCEPTED", "ACTIVE"])[1] == []
    assert cloud("create", ["SUSPENDED", "ACTIVE"])[1] == ["delete", "create"]
    assert cloud("create", ["FAILED", "ACTIVE"])[1] == ["delete", "create"]
    with pytest.raises(LaunchError, match="being deleted"):
        cloud("create", ["DELETING"])
    with pytest.raises(LaunchError, match="pod-sft-1 is FAILED and will not become ACTIVE"):
        cloud("create", ["NONE", "PROVISIONING", "FAILED"])
    with pytest.raises(LaunchError, match="PERMISSION_DENIED"):
        cloud("create", ["DENIED"])
    with pytest.raises(LaunchError, match="still WAITING_FOR_RESOURCES after"):
        cloud("create", ["NONE", "WAITING_FOR_RESOURCES"], provision_timeout_h=1e-5)


def test_what_is_gone_already_is_deleted(cloud):
    assert cloud("delete", ["ACTIVE"])[:2] == (0, ["delete"])
    status, verbs, said = cloud("delete", ["NONE"])
    assert (status, verbs) == (0, [])
    assert "nothing to delete" in said[-1]


def test_what_cannot_be_run_is_said(cloud, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match="is no checkout"):
        cloud("push", ["ACTIVE"])
    slow = Command(what="sleep", words=("sleep", "5"), timeout_s=0.05)
    with pytest.raises(LaunchError, match="was not done"):
        command._run(slow, print)
    with pytest.raises(LaunchError, match="failed with exit status 1, to fail"):
        command._run(Command(what="fail", words=("false",)), print)
    with pytest.raises(LaunchError, match="there is no 'gcloudx' here"):
        command._run(Command(what="look", words=("gcloudx",)), print)
