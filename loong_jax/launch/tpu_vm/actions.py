"""Actions on a slice carried out: its commands run in order, each awaited, and what is there seen.

Repeating an action is safe, and repeating `all` under the same name goes on where the run stopped.
"""

import dataclasses
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loong_jax.errors import LaunchError
from loong_jax.launch.distributed import PREEMPTED
from loong_jax.launch.tpu_vm import commands
from loong_jax.launch.tpu_vm.commands import Command, Job, Step, TpuVm, WaitActive


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
        status = _run(commands.follow(vm), say, may_fail=True)
        if status not in (0, PREEMPTED) and state_of(vm) != "ACTIVE":
            say("the machines were taken away")
            return PREEMPTED
        return status
    if action == "delete" and state_of(vm) is None:
        say(f"{vm.name}: not there, so there is nothing to delete")
        return 0
    if action == "push" and not Path(commands.CHECKOUT_HAS).exists():
        raise LaunchError(
            f"{Path.cwd()} holds no {commands.CHECKOUT_HAS}, so it is no checkout of "
            "loong_jax. Go to the root of one, since its commit is what the hosts run."
        )
    with tempfile.TemporaryDirectory() as directory:
        archive = str(Path(directory) / commands.ARCHIVE)
        steps = commands.steps_of(vm, job, action, archive)
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
            return [commands.create(vm), commands.wait(vm)]
        case "FAILED" | "SUSPENDING" | "SUSPENDED":
            return [commands.delete(vm), commands.create(vm), commands.wait(vm)]
        case "DELETING":
            raise LaunchError(f"{vm.name} is being deleted. Wait for its end, then repeat this.")
    return [commands.wait(vm)]


def state_of(vm: TpuVm) -> str | None:
    """State of the queued resource as Cloud names it, None where there is none."""
    ask = commands.ask_state(vm)
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
