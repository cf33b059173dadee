"""`loong launch TARGET RECIPE`: a recipe on machines that are to be had."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from loong_jax import cli_help, options, recipes
from loong_jax.errors import ConfigError
from loong_jax.launch import tpu_vm
from loong_jax.run import distributed


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
    return tpu_vm.perform(vm, job, chosen.action)


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
