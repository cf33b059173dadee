"""A run on a TPU slice through gcloud: its topology, and the commands of each action.

Functions from a `TpuVm` and a `Job` to commands, of which none is run here. One slice, any number
of hosts, all of which start the same command. A topology is what a text such as v5e:4x4 is to Cloud
and to JAX. Sources: the reference of `gcloud compute tpus`; Google's pages on each TPU generation
for accelerator types, shapes and runtime versions.
"""

import dataclasses
import itertools
import math
import re
import shlex
from collections.abc import Sequence
from typing import Literal, get_args

from loong_jax.errors import ConfigError

Action = Literal["create", "push", "run", "status", "logs", "stop", "delete", "all"]
ACTIONS = get_args(Action)
STARTING = ("create", "run", "all")  # those after which a recipe runs, so that it must fit
CHECKOUT_HAS = "launch/tpu_vm/worker.sh"
WORKER = f"loong/{CHECKOUT_HAS}"  # on every host, once pushed
PUSHED = "loong.new"  # where code is unpacked: a run may be going on with that in loong
ARCHIVE = "loong.tar.gz"
EVERY_S = 30.0  # between two looks at machines that are to come


# ---- topologies


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation of chips: its names at Google Cloud, and how they are counted there."""

    accelerator: str  # prefix of an accelerator type
    counted_per_chip: int = 1  # its number counts cores where 2
    devices_per_chip: int = 1  # as JAX sees them
    runtime_version: str
    flat_shapes: tuple[tuple[int, int], ...] = ()  # all there are; () for shapes of three sides
    max_chips: int = 256
    note: str = ""


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))  # larger ones have multiples of 4 as sides
CHIPS_PER_HOST = 4  # a flat slice of 8 chips or fewer is one host

GENERATIONS = {
    "v5e": Generation(
        accelerator="v5litepod",
        runtime_version="v2-alpha-tpuv5-lite",
        flat_shapes=_FLAT,
    ),
    "v6e": Generation(
        accelerator="v6e",
        runtime_version="v2-alpha-tpuv6e",
        flat_shapes=_FLAT,
    ),
    "v5p": Generation(
        accelerator="v5p",
        counted_per_chip=2,
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


_BUCKET = r"gs://(?![^./]{64})[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[\w.-]+)*"
_BUCKET_RULE = (
    "such as gs://my-bucket, whose name has 3 to 63 of a-z, 0-9, - and _, or more with dots"
)


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
    shared_disk: bool = False  # all hosts mount the disk that --checkpoints after -- is on
    internal_ip: bool = False  # reach the hosts from within their network
    provision_timeout_h: float = 24.0  # how long to wait for machines
    follow_timeout_h: float = 168.0  # how long to follow the logs; the run itself goes on

    def __post_init__(self):
        for field, pattern, rule in (
            ("name", r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", "a DNS label: a-z, 0-9, -, at most 63"),
            ("zone", r"[a-z]+-[a-z]+\d+-[a-z0-9]+", "a zone such as us-west4-a"),
            ("project", r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "the id of a project"),
            ("bucket", _BUCKET, _BUCKET_RULE),
            ("runtime_version", r"[a-z0-9][a-z0-9.-]*", "a version such as v2-alpha-tpuv6e"),
            ("service_account", r"[\w.-]+@[\w.-]+", "an address"),
        ):
            value = getattr(self, field)
            if value is not None and not re.fullmatch(pattern, value):
                raise ConfigError(f"{field}={value!r} is not {rule}. Correct it.")
        if self.spot and self.reserved:
            raise ConfigError("spot and reserved exclude each other. Drop one.")
        for field in ("provision_timeout_h", "follow_timeout_h"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(
                    f"{field}={getattr(self, field)} is not a finite number of hours above 0. "
                    "Give one."
                )
        parse_topology(self.topology)

    @property
    def slice(self) -> Slice:
        return parse_topology(self.topology)


def train_words(vm: TpuVm, job: Job) -> tuple[str, ...]:
    """The arguments of `loong` on every host.

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
    for place in _values(job.arguments, "--checkpoints"):
        if "://" not in place and vm.slice.num_hosts > 1 and not vm.shared_disk:
            raise ConfigError(
                f"--checkpoints {place} after -- is no URL such as gs://BUCKET/RUN, and "
                f"topology={vm.topology!r} has {vm.slice.num_hosts} hosts with a disk each. Give a "
                "URL, or --shared-disk before -- where every host mounts the same disk there."
            )
    if "--checkpoints" not in given:
        if vm.bucket is not None:
            words += ("--checkpoints", f"{vm.bucket}/{vm.name}/checkpoints")
        elif vm.slice.num_hosts > 1:
            raise ConfigError(
                f"topology={vm.topology!r} has {vm.slice.num_hosts} hosts with a disk each, and "
                "checkpoints need a place that all of them see. Give --bucket gs://BUCKET."
            )
    return words + job.arguments


def _values(words: Sequence[str], option: str) -> list[str]:
    """The values given for an option, as `--option VALUE` or `--option=VALUE`."""
    values = [after for word, after in itertools.pairwise(words) if word == option]
    return values + [w.partition("=")[2] for w in words if w.startswith(f"{option}=")]


# ---- commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One command; `what` says what it is for."""

    what: str
    words: tuple[str, ...]
    timeout_s: float = 300.0
    remedy: str = "Repeat the action."  # for want of time

    def __str__(self) -> str:
        return f"# {self.what}\n{shlex.join(self.words)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitActive:
    """Asks for the state of the queued resource until its machines are there."""

    ask: Command
    timeout_s: float

    def __str__(self) -> str:
        return (
            f"# wait up to {self.timeout_s / 3600:g} h for machines\n"
            f'until [ "$({shlex.join(self.ask.words)})" = ACTIVE ]; do sleep {EVERY_S:g}; done'
        )


Step = Command | WaitActive


def steps_of(vm: TpuVm, job: Job, action: str, archive: str = ARCHIVE) -> list[Step]:
    """The commands of one action, with nothing there yet; `archive` is where the code is packed."""
    if action in STARTING:
        train_words(vm, job)  # which may refuse
    match action:
        case "create":
            return [create(vm), wait(vm)]
        case "push":
            return _push(vm, archive)
        case "run":
            # where the run's small files outlive the machines; - for nowhere
            root = f"{vm.bucket}/{vm.name}/run" if vm.bucket else "-"
            words = ("bash", WORKER, "start", root, *train_words(vm, job))
            return [_ssh(vm, "start the same command on every host", words, timeout_s=600)]
        case "status":
            return [ask_state(vm), ask_hosts(vm)]
        case "logs":
            return [follow(vm)]
        case "stop":
            return [_ssh(vm, "save on all hosts, then stop", ("bash", WORKER, "stop"))]
        case "delete":
            return [delete(vm)]
    parts = ("create", "push", "run", "logs")  # of `all`
    return [step for part in parts for step in steps_of(vm, job, part, archive)]


def ask_state(vm: TpuVm) -> Command:
    words = (*_queued("describe", vm), "--format", "value(state.state)")
    return Command(what="state of the queued resource", words=words)


def ask_hosts(vm: TpuVm, worker: str = "all") -> Command:
    what = "ask every host" if worker == "all" else f"ask host {worker}"
    return _ssh(vm, what, ("bash", WORKER, "status"), worker=worker)


def create(vm: TpuVm) -> Command:
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


def wait(vm: TpuVm) -> WaitActive:
    return WaitActive(ask=ask_state(vm), timeout_s=vm.provision_timeout_h * 3600)


def _push(vm: TpuVm, archive: str) -> list[Step]:
    out = (f"--prefix={PUSHED}/", f"--output={archive}")
    pack = ("git", "archive", "--format=tar.gz", *out, "HEAD")
    setup = ("bash", f"{PUSHED}/{CHECKOUT_HAS}", "setup")
    unpack = ("rm", "-rf", PUSHED), ("tar", "-xzf", ARCHIVE), setup
    copy = _on_hosts(vm, "scp", archive, f"{vm.name}:{ARCHIVE}", worker="all")
    return [
        Command(what="pack the commit that is checked out", words=pack),
        Command(what="copy it to every host", words=copy, timeout_s=600),
        _ssh(vm, "unpack and install it on every host", *unpack, timeout_s=1800),
    ]


def follow(vm: TpuVm, num_lines: int | None = None) -> Command:
    """Shows the log of host 0 from its start, or its last lines, and what comes, to the end."""
    lines = () if num_lines is None else (str(num_lines),)
    command = _ssh(
        vm,
        "follow host 0 to the end",
        ("bash", WORKER, "follow", *lines),
        worker="0",
        timeout_s=vm.follow_timeout_h * 3600,
        flags=("--ssh-flag=-oServerAliveInterval=30",),  # a dead connection ends after 90 s
    )
    return dataclasses.replace(command, remedy="Repeat the action, or raise --follow-timeout-h.")


def delete(vm: TpuVm) -> Command:
    words = (*_queued("delete", vm), "--force", "--quiet")
    return Command(what="delete the machines and the request", words=words, timeout_s=1800)


def _ssh(
    vm: TpuVm,
    what: str,
    *commands: tuple[str, ...],
    worker: str = "all",
    timeout_s: float = 300.0,
    flags: tuple[str, ...] = (),
) -> Command:
    remote = " && ".join(map(shlex.join, commands))
    words = (*_on_hosts(vm, "ssh", vm.name, worker=worker), *flags, "--command", remote)
    return Command(what=what, words=words, timeout_s=timeout_s)


def _on_hosts(vm: TpuVm, verb: str, *what: str, worker: str) -> tuple[str, ...]:
    words = ("gcloud", "compute", "tpus", "tpu-vm", verb, *what, *_where(vm), f"--worker={worker}")
    return (*words, "--internal-ip", "--quiet") if vm.internal_ip else (*words, "--quiet")


def _queued(verb: str, vm: TpuVm) -> tuple[str, ...]:
    return ("gcloud", "compute", "tpus", "queued-resources", verb, vm.name, *_where(vm))


def _where(vm: TpuVm) -> tuple[str, str]:
    return (f"--project={vm.project}", f"--zone={vm.zone}")


def dry_run(vm: TpuVm, job: Job, action: str) -> str:
    """Every command of an action, in order, as lines for a shell. Nothing is run."""
    return "\n\n".join(str(step) for step in steps_of(vm, job, action))
