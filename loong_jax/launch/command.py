"""`loong launch TARGET RECIPE`: a recipe on machines that are to be had.

The commands of an action run in order, each awaited, and what is there seen. Repeating an action is
safe. Repeating `all` under the same name follows a run that is going on, and goes on where one
stopped.
"""

import dataclasses
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax import cli_help, options, recipes
from loong_jax.errors import ConfigError, LaunchError
from loong_jax.launch import tpu_vm
from loong_jax.launch.tpu_vm import Command, Job, Step, TpuVm, WaitActive
from loong_jax.run import distributed
from loong_jax.run.distributed import PREEMPTED

LOST = 255  # exit status of ssh, and so of gcloud, without a connection
LOST_AT_MOST = 60  # connections in a row, before following is given up
HELD_S = 300.0  # a connection that held for so long starts that count anew
LINES_AGAIN = 100  # of the log are shown again after such a connection, otherwise all


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Runs a recipe on a TPU slice. Overrides of the recipe follow after `--`."""

    action: tyro.conf.Positional[tpu_vm.Action] = "all"  # the action
    dry_run: bool = False  # print the commands and run none of them
    machines: Annotated[tpu_vm.TpuVm, tyro.conf.arg(name="")]


def main(arguments: Sequence[str]) -> int:
    target, *rest = arguments
    if target != "tpu-vm":
        raise ConfigError(f"{target!r} is no target. Choose one of: tpu-vm.")
    cut = rest.index("--") if "--" in rest else len(rest)
    words: list[str] = rest[:cut]
    overrides = tuple(rest[cut + 1 :])
    if words == ["--dry-run"]:
        words = [*cli_help.LAUNCH_EXAMPLE.split()]
        print(f"note: as an example, loong launch tpu-vm {' '.join(words)}", file=sys.stderr)
    recipe = _recipe_for_hosts(words)
    chosen = options.parse(LaunchOptions, "loong launch tpu-vm RECIPE", words)
    vm, job = chosen.machines, tpu_vm.Job(recipe=recipe, arguments=overrides)
    if chosen.action in tpu_vm.STARTING:
        config, processes = recipes.get_recipe(recipe)(), distributed.Processes()
        config = options.parse_train(recipe, "", config, overrides, processes=processes).config
        if config.mesh.num_devices != vm.slice.num_devices:
            raise ConfigError(
                f"{vm.topology} has {vm.slice.num_devices} devices, and the mesh of the recipe is "
                f"for {config.mesh.num_devices}: {config.mesh}. Choose another topology, or end "
                "the command with -- --mesh.fsdp N and so on."
            )
    if note := vm.slice.generation.note:
        print(f"note: {note}", file=sys.stderr)
    if chosen.dry_run:
        print(tpu_vm.dry_run(vm, job, chosen.action))
        return 0
    return perform(vm, job, chosen.action)


def _recipe_for_hosts(words: list[str]) -> str:
    """Takes the recipe out of the words: the first, or one behind options and their values."""
    fields = dataclasses.fields(tpu_vm.TpuVm)
    names = ["dry-run", *(f.name.replace("_", "-") for f in fields if f.type is bool)]
    flags = {f"--{no}{name}" for name in names for no in ("", "no-")}  # which take no value
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        is_value = before.startswith("--") and "=" not in before and before not in flags
        if word in recipes.ON_ALL_PROCESSES and not is_value:
            return words.pop(index)
        if word in ("-h", "--help"):
            return recipes.ON_ALL_PROCESSES[0]
    raise ConfigError(
        f"{' '.join(words[:1])!r} stands where a recipe for several hosts belongs. Choose one of: "
        f"{', '.join(recipes.ON_ALL_PROCESSES)}."
    )


def perform(
    vm: TpuVm,
    job: Job,
    action: str,
    *,
    say: Callable[[str], None] = print,
    every_s: float = tpu_vm.EVERY_S,
) -> int:
    """Carries an action out; returns the exit status of `loong launch`.

    That of `logs` and `all` is the run's own: 42 when it was preempted, and `all` goes on with it.
    Between two looks at what is there, and before following again, `every_s` passes.

    Raises LaunchError where a command fails or takes too long, and ConfigError before the first
    one where the run's words do not fit the machines.
    """
    if action in tpu_vm.STARTING:
        tpu_vm.train_words(vm, job)
    if action == "all":
        steps = _steps_to_create(vm, say)
        _take(steps, vm, say, every_s)
        told = "" if steps else _ask_hosts(vm).stdout  # new machines have no run
        if _is_going_on(told):
            say(f"{vm.name}: the run is going on; it keeps its code and settings, and is followed")
        for part in parts_before_logs(told):
            perform(vm, job, part, say=say, every_s=every_s)
    if action in ("all", "logs"):
        return _follow(vm, say, every_s)
    if action == "delete" and state_of(vm) is None:
        say(f"{vm.name}: not there, so there is nothing to delete")
        return 0
    if action == "push" and not Path(tpu_vm.CHECKOUT_HAS).exists():
        raise LaunchError(
            f"{Path.cwd()} holds no {tpu_vm.CHECKOUT_HAS}, so it is no checkout of "
            "loong_jax. Go to the root of one, since its commit is what the hosts run."
        )
    with tempfile.TemporaryDirectory() as directory:
        steps = tpu_vm.steps_of(vm, job, action, str(Path(directory) / tpu_vm.ARCHIVE))
        _take(_steps_to_create(vm, say) if action == "create" else steps, vm, say, every_s)
    return 0


def _take(steps: Sequence[Step], vm: TpuVm, say: Callable[[str], None], every_s: float) -> None:
    for step in steps:
        if isinstance(step, WaitActive):
            _wait_until_active(vm, step, say, every_s)
        else:
            _run(step, say)


def parts_before_logs(told: str) -> tuple[str, ...]:
    """The parts of `all` that remain on existing machines; `told` is their report on the run.

    Beside a run that is going on, a host that lost its part, by a reboot say, starts it again.
    """
    if not _is_going_on(told):
        return ("push", "run")
    return ("run",) if _says(told, "no run$") or _says(told, "cut off$") else ()


def _is_going_on(told: str) -> bool:
    return _says(told, "running; ") is not None


def _says(told: str, pattern: str) -> re.Match[str] | None:
    """The first line in which a host reports something that begins with the pattern."""
    return re.search(rf"^\S+: {pattern}", told, re.MULTILINE)


def _ask_hosts(vm: TpuVm, worker: str = "all") -> subprocess.CompletedProcess[str]:
    return _finish(tpu_vm.ask_hosts(vm, worker), capture=True)


def _follow(vm: TpuVm, say: Callable[[str], None], every_s: float) -> int:
    """Follows host 0 to the end of the run, whose exit status it returns, over lost connections.

    Raises LaunchError after `LOST_AT_MOST` connections in a row and after `follow_timeout_h`.
    """
    deadline_s, num_lost, why = time.monotonic() + vm.follow_timeout_h * 3600, 0, ""
    shown: int | None = None  # lines of the log; None: all
    remedy = "The run may be going on; repeat `logs` or `all` to follow it"
    while num_lost < LOST_AT_MOST:
        began_s = time.monotonic()
        limit_s = max(deadline_s - began_s, 1.0)
        following = dataclasses.replace(tpu_vm.follow(vm, shown), timeout_s=limit_s)
        status = _run(following, say, may_fail=True)
        now_s = time.monotonic()
        if status in (0, PREEMPTED):
            return status
        try:
            ended, why = _how_it_ended(vm, say), "the connection was lost, and the run goes on"
        except LaunchError as error:
            if status != LOST and num_lost == 0:
                raise
            ended, why = None, str(error)
        if ended is not None:
            return ended
        if now_s > deadline_s:
            raise LaunchError(
                f"{vm.name} was followed for {vm.follow_timeout_h:g} h. {remedy}, and raise "
                "--follow-timeout-h."
            )
        num_lost += 1
        if now_s - began_s > HELD_S:
            num_lost, shown = 1, LINES_AGAIN
        say(
            f"{vm.name}: {why} (exit status {status}); in {every_s:g} s this follows it again, "
            f"from {'the start' if shown is None else f'the last {shown} lines'} of its log "
            f"({num_lost} of {LOST_AT_MOST} in a row)"
        )
        time.sleep(every_s)
    raise LaunchError(f"{vm.name} was lost {LOST_AT_MOST} times in a row: {why}. {remedy}.")


def _how_it_ended(vm: TpuVm, say: Callable[[str], None]) -> int | None:
    """The exit status of the run, None where it goes on.

    Host 0 says it: a run may itself end with what ssh and gcloud exit with when they fail. Machines
    that were deleted are not asked for again: somebody wanted that.

    Raises LaunchError where neither Cloud nor host 0 can say.
    """
    state = state_of(vm)
    if state in (None, "DELETING"):
        say(f"{vm.name} was deleted; repeating `all` asks for machines again and resumes")
        return 1
    if state != "ACTIVE":
        say("the machines were taken away")
        return PREEMPTED
    answer = _ask_hosts(vm, worker="0")
    told = answer.stdout.strip()
    if _is_going_on(told):
        return None
    if told:
        say(told)
    if ended := _says(told, r"ended with exit status (\d+)$"):
        return int(ended[1])
    if _says(told, "cut off$"):  # by a reboot, say; `all` starts it again
        return PREEMPTED
    if _says(told, "no run$"):
        return 1
    raise LaunchError(
        f"cannot ask host 0 how the run ended: exit status {answer.returncode}, "
        f"{answer.stderr.strip()[-300:]!r}. Correct it."
    )


def _steps_to_create(vm: TpuVm, say: Callable[[str], None]) -> list[Step]:
    """The steps that remain until the machine is there: a request that died is replaced."""
    state = state_of(vm)
    say(f"{vm.name}: {state or 'not there yet'}")
    match state:
        case "ACTIVE":
            return []
        case None:
            return [tpu_vm.create(vm), tpu_vm.wait(vm)]
        case "FAILED" | "SUSPENDING" | "SUSPENDED":
            return [tpu_vm.delete(vm), tpu_vm.create(vm), tpu_vm.wait(vm)]
        case "DELETING":
            raise LaunchError(f"{vm.name} is being deleted. Wait for its end, then repeat this.")
    return [tpu_vm.wait(vm)]


def state_of(vm: TpuVm) -> str | None:
    """State of the queued resource as Cloud names it, None where there is none."""
    ask = tpu_vm.ask_state(vm)
    found = _finish(ask, capture=True)
    if found.returncode == 0:
        return found.stdout.strip() or None
    if "NOT_FOUND" in found.stderr:
        return None
    raise LaunchError(f"cannot ask for the {ask.what}: {found.stderr.strip()}. Correct it.")


def _wait_until_active(
    vm: TpuVm, wait: WaitActive, say: Callable[[str], None], every_s: float
) -> None:
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
        time.sleep(every_s)


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
            f"{shlex.join(command.words)}. {command.remedy}"
        ) from None
