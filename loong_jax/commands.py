"""The commands of `loong`: words in, exit status out.

Every command imports its room when it runs, so that `loong --help` answers at once.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from loong_jax import cli_help
from loong_jax.errors import CheckpointError, ConfigError

Arguments = Sequence[str]


def train(arguments: Arguments) -> int:
    profiled, words = take("--profile-steps", arguments)
    if profiled is not None:
        os.environ["LOONG_PROFILE"] = profiled
    is_dry, words = "--dry-run" in words, [word for word in words if word != "--dry-run"]
    name, *rest = words
    if name.startswith("-"):
        name, rest = None, words
    from loong_jax import options
    from loong_jax.recipes import Recipe
    from loong_jax.run import choosing, named, train_help

    found = choosing.to_run(name, rest)
    if isinstance(found.config, Recipe):
        config, rest = named.choose(found.config, rest)
        found = found._replace(config=config)
        if {"-h", "--help"} & set(rest):
            print(train_help.settings_that_matter(name or found.name, config, found.text))
            return 0
    rest = ["--help" if word == "--help-all" else word for word in rest]
    if getattr(found.config, "pod", None) is not None:
        from loong_jax.run import distributed, pod_sft

        processes = distributed.Processes()
        chosen = options.parse_train(
            found.name, found.text, found.config, rest, processes=processes
        )
        return pod_sft.train(chosen.config, chosen.run_dir, chosen.processes)
    chosen = options.parse_train(found.name, found.text, found.config, rest)
    from loong_jax.run import run

    config = chosen.config
    if found.is_new:
        config = choosing.finished(config, found.config, rest)
    if isinstance(config, Recipe):
        named.try_own_parts(config)
    if is_dry:
        run.show_memory(config, chosen.only)
        return 0
    run.train(config, chosen.run_dir, only=chosen.only, source=chosen.source)
    return 0


def merge(arguments: Arguments) -> int:
    from loong_jax import options, own
    from loong_jax.merge import METHODS, checkpoints
    from loong_jax.merge.methods import OWN_METHOD

    name, *rest = arguments
    if ".py:" in name:
        method = own.named(name, OWN_METHOD, {})
    elif name in METHODS:
        method = METHODS[name]()
    else:
        raise ConfigError(
            f"{name!r} is no method. Choose one of: {', '.join(METHODS)}; or one of your own: "
            "FILE.py:CLASS."
        )
    config_type = options.with_defaults(checkpoints.MergeConfig, method=method)
    chosen = options.parse(config_type, f"loong merge {name}", rest)
    from loong_jax.run import merging

    return merging.merge(chosen)


def import_hf(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ImportHfOptions, "loong import-hf", arguments)
    from loong_jax.run import convert

    convert.import_hf(chosen.source, chosen.destination, dtype=chosen.dtype)
    return 0


def import_gguf(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ImportGgufOptions, "loong import-gguf", arguments)
    from loong_jax.models.hf import from_gguf

    from_gguf.import_gguf(chosen.source, chosen.destination, dtype=chosen.dtype)
    return 0


def export_hf(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ExportHfOptions, "loong export-hf", arguments)
    from loong_jax.run import convert, sources

    max_shard_bytes = convert.shard_bytes(chosen.max_shard_gb)
    source = sources.find_weights(chosen.source)
    assert isinstance(source, Path)
    convert.export_hf(source, chosen.destination, max_shard_bytes=max_shard_bytes)
    return 0


def launch(arguments: Arguments) -> int:
    from loong_jax import recipes

    target, *rest = arguments
    if target != "tpu-vm":
        raise ConfigError(f"{target!r} is no target. Choose one of: tpu-vm.")
    cut = rest.index("--") if "--" in rest else len(rest)
    words: list[str] = rest[:cut]
    overrides = tuple(rest[cut + 1 :])
    if words == ["--dry-run"]:
        words = [*cli_help.LAUNCH_EXAMPLE.split()]
        print(f"note: as an example, loong launch tpu-vm {' '.join(words)}", file=sys.stderr)
    from loong_jax import options
    from loong_jax.launch import tpu_vm
    from loong_jax.run import distributed

    recipe = _recipe_for_hosts(words, options.flags_of(tpu_vm.TpuVm) | {"--dry-run"})
    chosen = options.parse_launch(tpu_vm.TpuVm, tpu_vm.ACTIONS, words)
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


def _recipe_for_hosts(words: list[str], flags: set[str]) -> str:
    """Takes the recipe out of the words: the first, or one behind `flags` and other options."""
    from loong_jax import recipes

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


def report(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.ReportOptions, "loong report", arguments)
    if not (chosen.run_dir / "config.json").exists():
        raise CheckpointError(
            f"{chosen.run_dir} holds no config.json, so it is no run. Name a run directory."
        )
    from loong_jax.run import run

    run.write_report(chosen.run_dir, keeps_machine=True)
    return 0


def serve(arguments: Arguments) -> int:
    from loong_jax import options
    from loong_jax.run import serve as room

    return room.serve(options.parse(room.ServeOptions, "loong serve", arguments))


def evaluate(arguments: Arguments) -> int:
    from loong_jax import options
    from loong_jax.run import evaluate as room

    return room.evaluate(options.parse(room.EvalOptions, "loong eval", arguments))


def curate(arguments: Arguments) -> int:
    from loong_jax.run import curate as room

    return room.main(arguments)


def verify(arguments: Arguments) -> int:
    from loong_jax import verifiers
    from loong_jax.verifiers import command

    name, *rest = arguments
    if name == "admission":
        return command.admit(rest)
    table = {name: name} if ".py:" in name else {}
    if name not in (verifiers.VERIFIERS | table):
        raise ConfigError(
            f"{name!r} judges no files. Choose one of: {', '.join(verifiers.VERIFIERS)}; or one of "
            "your own: FILE.py:CLASS."
        )
    from loong_jax import options

    chosen = options.parse(options.VerifyOptions, f"loong verify {name}", rest)
    verifier = verifiers.get_verifier(name, table=table)
    counts = command.verify_file(verifier, chosen.input, chosen.output)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 0


def synth(arguments: Arguments) -> int:
    name, *rest = arguments
    from loong_jax import options

    if name == "loongenv":
        from loong_jax.run import synth_page
        from loong_jax.synth.loongenv import command

        chosen = options.parse(command.LoongEnvOptions, "loong synth loongenv", rest)
        status = command.main(chosen)
        print(synth_page.write_loongenv(chosen.out))
        return status
    if name == "resyn":
        from loong_jax.run import resyn_page
        from loong_jax.synth.resyn import command as resyn

        chosen = options.parse(resyn.ResynOptions, "loong synth resyn", rest)
        status = resyn.main(chosen)
        print(resyn_page.write(chosen.out))
        return status
    if name == "formal":
        from loong_jax.run import formal

        return formal.run(options.parse(formal.FormalOptions, "loong synth formal", rest))
    raise ConfigError(f"{name!r} makes no problems. Choose one of: loongenv, resyn, formal.")


def bench(arguments: Arguments) -> int:
    from loong_jax import bench as room

    name, *rest = arguments
    return room.get_bench(name)(rest)


def plan(arguments: Arguments) -> int:
    from loong_jax.plan import command

    return command.main(arguments)


def doctor(arguments: Arguments) -> int:
    from loong_jax import options

    chosen = options.parse(options.DoctorOptions, "loong doctor", arguments)
    from loong_jax import doctor as room

    checks = room.examine()
    print(room.as_json(checks) if chosen.json else room.as_text(checks))
    return 0 if room.is_healthy(checks) else 1


def take(option: str, words: Arguments) -> tuple[str | None, list[str]]:
    """The value of an option that stands before `--`, None without it, and the other words."""
    value, left = None, list[str]()
    rest = iter(words)
    for word in rest:
        if word == "--":
            left += [word, *rest]
        elif word == option:
            value = next(rest, "")
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
        else:
            left.append(word)
    return value, left
