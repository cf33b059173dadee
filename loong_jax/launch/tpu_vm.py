"""A run on a TPU slice through `gcloud`: queued resource, code, run, logs, deletion.

Everything that decides is a function from a `TpuVm` and a `Job` to commands; `perform` alone runs
them. One slice, any number of hosts, all of which start the same command. Repeating an action is
safe, and repeating `all` under the same name goes on where the run stopped.

Sources: the reference of `gcloud compute tpus`, and Google's pages on each TPU generation for
accelerator types, shapes and runtime versions.
"""

import dataclasses
import itertools
import math
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loong_jax.errors import ConfigError, LaunchError
from loong_jax.launch.distributed import PREEMPTED

ACTIONS = ("create", "push", "run", "status", "logs", "stop", "delete", "all")
STARTING = ("create", "run", "all")  # those after which a recipe runs, so that it must fit
CHECKOUT_HAS = "launch/tpu_vm/worker.sh"
WORKER = f"loong/{CHECKOUT_HAS}"  # on every host, once pushed
PUSHED = "loong.new"  # where code is unpacked: a run may be going on with that in loong
ARCHIVE = "loong.tar.gz"


# ---- topologies


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """What Cloud calls a generation of chips, and how it counts them."""

    accelerator: str  # what an accelerator type starts with
    counted_per_chip: int  # its number counts cores where 2
    devices_per_chip: int  # as JAX sees them
    runtime_version: str
    flat_shapes: tuple[tuple[int, int], ...] = ()  # all there are; () for shapes of three sides
    max_chips: int
    note: str = ""


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))  # larger ones have multiples of 4 as sides
CHIPS_PER_HOST = 4  # a flat slice of 8 chips or fewer is one host

GENERATIONS = {
    "v5e": Generation(
        accelerator="v5litepod",
        counted_per_chip=1,
        devices_per_chip=1,
        runtime_version="v2-alpha-tpuv5-lite",
        flat_shapes=_FLAT,
        max_chips=256,
    ),
    "v6e": Generation(
        accelerator="v6e",
        counted_per_chip=1,
        devices_per_chip=1,
        runtime_version="v2-alpha-tpuv6e",
        flat_shapes=_FLAT,
        max_chips=256,
    ),
    "v5p": Generation(
        accelerator="v5p",
        counted_per_chip=2,
        devices_per_chip=1,
        runtime_version="v2-alpha-tpuv5",
        max_chips=8960,
    ),
    "tpu7x": Generation(
        accelerator="tpu7x",
        counted_per_chip=2,
        devices_per_chip=2,
        runtime_version="v2-alpha-tpu7-ubuntu2404",
        max_chips=9216,
        note="Google documents tpu7x for GKE; as a TPU VM it is for projects that were given it",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A topology such as v5e:4x4, as Cloud and JAX see it."""

    generation: Generation
    num_chips: int

    @property
    def accelerator_type(self) -> str:
        counted = self.num_chips * self.generation.counted_per_chip
        return f"{self.generation.accelerator}-{counted}"

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.generation.devices_per_chip

    @property
    def num_hosts(self) -> int:
        if self.generation.flat_shapes and self.num_chips <= 8:
            return 1
        return self.num_chips // CHIPS_PER_HOST


def parse_topology(text: str) -> Slice:
    """The slice that a text such as v5e:4x4 or v5p:4x4x8 names.

    An accelerator type holds the number of chips and no shape, so of the shapes with that number
    only the one that Cloud gives can be asked for.

    Raises ConfigError for anything else, naming what would do.
    """
    name, _, shape = text.partition(":")
    if name not in GENERATIONS:
        raise ConfigError(
            f"topology={text!r} starts with none of {', '.join(GENERATIONS)}. Write for example "
            "v5e:4x4 or v5p:4x4x4."
        )
    generation = GENERATIONS[name]
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", shape):
        raise ConfigError(f"topology={text!r} has no shape such as 4x4. Write {name}:4x4 or so.")
    sides = tuple(sorted(int(side) for side in shape.split("x")))
    num_chips = math.prod(sides)
    if num_chips > generation.max_chips:
        raise ConfigError(
            f"topology={text!r} has {num_chips} chips, and a pod of {name} has "
            f"{generation.max_chips}. Choose a smaller shape."
        )
    if generation.flat_shapes:
        if sides not in generation.flat_shapes:
            shapes = ", ".join(_shape(known) for known in generation.flat_shapes)
            raise ConfigError(f"topology={text!r} does not exist. {name} has {shapes}.")
    elif (given := _given_shape(num_chips)) != sides:
        hint = (
            f"{num_chips} chips come as {name}:{_shape(given)}" if given
            else "sides are 2x2x1, 2x2x2, 2x2x4, 2x4x4 or multiples of 4"
        )  # fmt: skip
        raise ConfigError(f"topology={text!r} cannot be asked for: {hint}. Use such a shape.")
    return Slice(generation=generation, num_chips=num_chips)


def _given_shape(num_chips: int) -> tuple[int, ...] | None:
    """The shape of three sides that Cloud gives for a number of chips: the nearest to a cube."""
    sides = range(4, num_chips // 16 + 1, 4)
    cubes = [
        (a, b, num_chips // (a * b))
        for a, b in itertools.combinations_with_replacement(sides, 2)
        if a * b * b <= num_chips and num_chips % (a * b * 4) == 0
    ]
    small = [tuple(sorted(shape)) for shape in _SMALL if math.prod(shape) == num_chips]
    return min(small or cubes, key=sum, default=None)


def _shape(sides: Sequence[int]) -> str:
    ordered = sorted(sides) if min(sides) > 1 else sorted(sides, reverse=True)  # 2x2x1, as written
    return "x".join(map(str, ordered))


# ---- what to run, and where


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """`loong train RECIPE ARGUMENTS`."""

    recipe: str
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuVm:
    """One slice; `name` is that of the run, the queued resource and its node."""

    name: str  # of the run and of the machines: the same name resumes
    topology: str  # such as v5e:4x4, v6e:8x8, v5p:4x4x4, tpu7x:4x4x4
    zone: str  # such as us-west4-a
    project: str  # its id
    bucket: str | None = None  # gs://...; what a run leaves is under BUCKET/NAME
    spot: bool = False  # cheaper machines that may be taken away
    reserved: bool = False  # machines of a reservation
    runtime_version: str | None = None  # of the machines' software; None: that of the generation
    service_account: str | None = None  # whom the machines act as; None: Cloud's default
    internal_ip: bool = False  # reach the hosts from within their network
    provision_timeout_h: float = 24.0  # how long to wait for machines
    follow_timeout_h: float = 168.0  # how long to follow the logs; the run itself goes on

    def __post_init__(self):
        for field, pattern, rule in (
            ("name", r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", "a DNS label: a-z, 0-9, -, at most 63"),
            ("zone", r"[a-z]+-[a-z]+\d+-[a-z0-9]+", "a zone such as us-west4-a"),
            ("project", r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "the id of a project"),
            ("bucket", r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/[\w.-]+)*", "such as gs://my-bucket"),
            ("runtime_version", r"[a-z0-9][a-z0-9.-]*", "a version such as v2-alpha-tpuv6e"),
            ("service_account", r"[\w.-]+@[\w.-]+", "an address"),
        ):
            value = getattr(self, field)
            if value is not None and not re.fullmatch(pattern, value):
                raise ConfigError(f"{field}={value!r} is not {rule}. Correct it.")
        if self.spot and self.reserved:
            raise ConfigError("spot and reserved exclude each other. Drop one.")
        for field in ("provision_timeout_h", "follow_timeout_h"):
            if not getattr(self, field) > 0:
                raise ConfigError(f"{field}={getattr(self, field)} is not positive. Raise it.")
        parse_topology(self.topology)

    @property
    def slice(self) -> Slice:
        return parse_topology(self.topology)


def train_words(vm: TpuVm, job: Job) -> tuple[str, ...]:
    """What follows `loong` on every host.

    Raises ConfigError when the hosts would have no place in common for checkpoints, and for a
    directory of the run other than the one that `worker.sh` keeps.
    """
    given = [word.partition("=")[0].replace("_", "-") for word in job.arguments]
    if "--run-dir" in given:
        raise ConfigError(
            f"--run-dir after -- would be a second one beside runs/{vm.name}, where every host "
            "keeps its run. Leave it out; another --name gives another directory."
        )
    words = ("train", job.recipe, "--run-dir", f"runs/{vm.name}")
    if "--checkpoints" not in given:
        if vm.bucket is not None:
            words += ("--checkpoints", f"{vm.bucket}/{vm.name}/checkpoints")
        elif vm.slice.num_hosts > 1:
            raise ConfigError(
                f"topology={vm.topology!r} has {vm.slice.num_hosts} hosts with a disk each, and "
                "checkpoints need a place that all of them see. Give --bucket gs://BUCKET."
            )
    return words + job.arguments


# ---- commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One command; `what` says what it is for."""

    what: str
    words: tuple[str, ...]
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"# {self.what}\n{shlex.join(self.words)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitActive:
    """Asks for the state of the queued resource until its machines are there."""

    ask: Command
    timeout_s: float
    every_s: float = 30.0

    def __str__(self) -> str:
        return (
            f"# wait up to {self.timeout_s / 3600:g} h for machines\n"
            f'until [ "$({shlex.join(self.ask.words)})" = ACTIVE ]; do sleep {self.every_s:g}; done'
        )


Step = Command | WaitActive


def steps_of(vm: TpuVm, job: Job, action: str, archive: str = ARCHIVE) -> list[Step]:
    """The commands of one action, with nothing there yet; `archive` is where the code is packed."""
    started = train_words(vm, job) if action in STARTING else ()
    match action:
        case "create":
            return [_create(vm), _wait(vm)]
        case "push":
            return _push(vm, archive)
        case "run":
            words = ("bash", WORKER, "start", _run_root(vm), *started)
            return [_ssh(vm, "start the same command on every host", words, timeout_s=600)]
        case "status":
            return [ask_state(vm), _ssh(vm, "ask every host", ("bash", WORKER, "status"))]
        case "logs":
            return [_follow(vm)]
        case "stop":
            return [_ssh(vm, "save on all hosts, then stop", ("bash", WORKER, "stop"))]
        case "delete":
            return [_delete(vm)]
        case "all":
            parts = ("create", "push", "run", "logs")
            return [step for part in parts for step in steps_of(vm, job, part, archive)]
    raise ConfigError(f"{action!r} is no action. Choose one of: {', '.join(ACTIONS)}.")


def ask_state(vm: TpuVm) -> Command:
    words = (*_queued("describe", vm), "--format", "value(state.state)")
    return Command(what="state of the queued resource", words=words)


def _create(vm: TpuVm) -> Command:
    how = ["--spot"] if vm.spot else ["--reserved"] if vm.reserved else []
    if vm.service_account is not None:
        how.append(f"--service-account={vm.service_account}")
    words = (
        *_queued("create", vm),
        f"--node-id={vm.name}",
        f"--accelerator-type={vm.slice.accelerator_type}",
        f"--runtime-version={vm.runtime_version or vm.slice.generation.runtime_version}",
        *how,
    )
    what = f"ask for {vm.slice.num_chips} chips on {vm.slice.num_hosts} hosts"
    return Command(what=what, words=words)


def _wait(vm: TpuVm) -> WaitActive:
    return WaitActive(ask=ask_state(vm), timeout_s=vm.provision_timeout_h * 3600)


def _push(vm: TpuVm, archive: str) -> list[Step]:
    pack = (
        "git",
        "archive",
        "--format=tar.gz",
        f"--prefix={PUSHED}/",
        f"--output={archive}",
        "HEAD",
    )
    setup = ("bash", f"{PUSHED}/{CHECKOUT_HAS}", "setup")
    unpack = ("rm", "-rf", PUSHED), ("tar", "-xzf", ARCHIVE), setup
    copy = (
        *("gcloud", "compute", "tpus", "tpu-vm", "scp", archive, f"{vm.name}:{ARCHIVE}"),
        *_where(vm),
        "--worker=all",
        *_reach(vm),
    )
    return [
        Command(what="pack the commit that is checked out", words=pack),
        Command(what="copy it to every host", words=copy, timeout_s=600),
        _ssh(vm, "unpack and install it on every host", *unpack, timeout_s=1800),
    ]


def _follow(vm: TpuVm) -> Command:
    words, limit_s = ("bash", WORKER, "follow"), vm.follow_timeout_h * 3600
    return _ssh(vm, "follow host 0 to the end", words, worker="0", timeout_s=limit_s)


def _delete(vm: TpuVm) -> Command:
    words = (*_queued("delete", vm), "--force", "--quiet")
    return Command(what="delete the machines and the request", words=words, timeout_s=1800)


def _ssh(
    vm: TpuVm, what: str, *commands: tuple[str, ...], worker: str = "all", timeout_s: float = 300.0
) -> Command:
    remote = " && ".join(shlex.join(command) for command in commands)
    words = (
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", vm.name),
        *_where(vm),
        f"--worker={worker}",
        *_reach(vm),
        *("--command", remote),
    )
    return Command(what=what, words=words, timeout_s=timeout_s)


def _reach(vm: TpuVm) -> list[str]:
    return [*(["--internal-ip"] if vm.internal_ip else []), "--quiet"]


def _queued(verb: str, vm: TpuVm) -> tuple[str, ...]:
    return ("gcloud", "compute", "tpus", "queued-resources", verb, vm.name, *_where(vm))


def _where(vm: TpuVm) -> tuple[str, str]:
    return (f"--project={vm.project}", f"--zone={vm.zone}")


def _run_root(vm: TpuVm) -> str:
    """Where the run's small files are kept between machines; - for nowhere."""
    return f"{vm.bucket}/{vm.name}/run" if vm.bucket else "-"


# ---- carrying them out


def dry_run(vm: TpuVm, job: Job, action: str) -> str:
    """Every command of an action, in order, as lines for a shell. Nothing is run."""
    return "\n\n".join(str(step) for step in steps_of(vm, job, action))


def perform(
    vm: TpuVm, job: Job, action: str, *, say: Callable[[str], None] = print, every_s: float = 30.0
) -> int:
    """Carries an action out; returns the exit status of `loong launch`.

    That of `logs` and `all` is the run's own: 42 when it was preempted, and `all` goes on with it.

    Raises LaunchError where a command fails or takes too long.
    """
    if action == "all":
        for part in ("create", "push", "run"):
            perform(vm, job, part, say=say, every_s=every_s)
        return perform(vm, job, "logs", say=say, every_s=every_s)
    if action == "logs":
        status = _run(_follow(vm), say, may_fail=True)
        if status not in (0, PREEMPTED) and state_of(vm) != "ACTIVE":
            say("the machines were taken away")
            return PREEMPTED
        return status
    if action == "delete" and state_of(vm) is None:
        say(f"{vm.name}: not there, so there is nothing to delete")
        return 0
    if action == "push" and not Path(CHECKOUT_HAS).exists():
        raise LaunchError(
            f"{Path.cwd()} holds no {CHECKOUT_HAS}, so it is no checkout of loong_jax. Go to the "
            "root of one, since its commit is what the hosts run."
        )
    with tempfile.TemporaryDirectory() as directory:
        archive = str(Path(directory) / ARCHIVE)
        steps = steps_of(vm, job, action, archive)
        if action == "create":
            steps = _steps_to_create(vm, say)
        for step in steps:
            if isinstance(step, WaitActive):
                _wait_until_active(vm, dataclasses.replace(step, every_s=every_s), say)
            else:
                _run(step, say)
    return 0


def _steps_to_create(vm: TpuVm, say: Callable[[str], None]) -> list[Step]:
    """What is left to do, given what is there: a request that died is replaced."""
    state = state_of(vm)
    say(f"{vm.name}: {state or 'not there yet'}")
    match state:
        case "ACTIVE":
            return []
        case None:
            return [_create(vm), _wait(vm)]
        case "FAILED" | "SUSPENDING" | "SUSPENDED":
            return [_delete(vm), _create(vm), _wait(vm)]
        case "DELETING":
            raise LaunchError(f"{vm.name} is being deleted. Wait for its end, then repeat this.")
    return [_wait(vm)]


def state_of(vm: TpuVm) -> str | None:
    """State of the queued resource as Cloud names it, None where there is none."""
    ask = ask_state(vm)
    found = _finish(ask, capture=True)
    if found.returncode == 0:
        return found.stdout.strip() or None
    if "NOT_FOUND" in found.stderr:
        return None
    raise LaunchError(f"cannot ask for the {ask.what}: {found.stderr.strip()}. Correct it.")


def _wait_until_active(vm: TpuVm, wait: WaitActive, say: Callable[[str], None]) -> None:
    deadline_s, last = time.monotonic() + wait.timeout_s, ""
    while (state := state_of(vm)) != "ACTIVE":
        if state in ("FAILED", "SUSPENDED", None):
            raise LaunchError(
                f"{vm.name} is {state or 'gone'} and will not become ACTIVE. Repeat `create`; "
                f"`{shlex.join(wait.ask.words[:-2])}` says why."
            )
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"{vm.name} is still {state} after {wait.timeout_s / 3600:g} h. Repeat the "
                "command to wait on, or raise --provision-timeout-h."
            )
        if state != last:
            say(f"{vm.name}: {state}")
        last = state
        time.sleep(wait.every_s)


def _run(command: Command, say: Callable[[str], None], *, may_fail: bool = False) -> int:
    say(str(command))
    status = _finish(command).returncode
    if status and not may_fail:
        raise LaunchError(
            f"this failed with exit status {status}, to {command.what}: "
            f"{shlex.join(command.words)}. Correct what it says above and repeat the action."
        )
    return status


def _finish(command: Command, *, capture: bool = False) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command.words,
            timeout=command.timeout_s,
            check=False,
            text=True,
            capture_output=capture,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"there is no {command.words[0]!r} here. Install it and put it on the PATH."
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"after {command.timeout_s:g} s this was not done, to {command.what}: "
            f"{shlex.join(command.words)}. Repeat the action."
        ) from None
