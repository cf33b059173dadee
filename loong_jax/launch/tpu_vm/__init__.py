"""A run on a TPU slice through gcloud: topology, the commands of each action, who runs them."""

from loong_jax.launch.tpu_vm.actions import perform, state_of
from loong_jax.launch.tpu_vm.commands import (
    ACTIONS,
    ARCHIVE,
    STARTING,
    Action,
    Command,
    Job,
    TpuVm,
    WaitActive,
    ask_state,
    dry_run,
    steps_of,
    train_words,
)
from loong_jax.launch.tpu_vm.topology import GENERATIONS, Generation, Slice, parse_topology

__all__ = [
    "ACTIONS", "ARCHIVE", "GENERATIONS", "STARTING", "Action", "Command", "Generation", "Job",
    "Slice", "TpuVm", "WaitActive", "ask_state", "dry_run", "parse_topology", "perform", "state_of",
    "steps_of", "train_words",
]  # fmt: skip
