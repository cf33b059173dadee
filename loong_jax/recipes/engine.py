"""What decodes and judges: replicas, the shapes they compile, where they live; verifiers."""

import dataclasses
import os
from typing import Literal

from loong_jax.errors import ConfigError
from loong_jax.rollout.engine_config import EngineConfig, PageConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadReplicas:
    """Replicas in threads of the trainer's process."""

    # shared: the trainer's, in turns with it; own: those after the trainer's, but for elastic ones
    devices: Literal["shared", "own"] = "shared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessReplicas:
    """Replicas in processes of this machine."""

    replicas_per_process: int = 1
    # accelerators of each process, after those of the trainer: --replica-mesh needs as many for a
    # mesh; 0: whatever JAX finds there
    devices_per_process: int = 0
    cores: tuple[int, ...] = ()  # process i runs on core cores[i % len] alone; () for anywhere
    single_threaded: bool = False  # XLA's CPU programs use one thread


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayReplicas:
    """Replicas in Ray actors, each with its own devices. Amounts are per actor."""

    replicas_per_actor: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    num_tpus: float = 0.0
    address: str | None = None  # of a running Ray; None: the one there is, or a local one


Placement = ThreadReplicas | ProcessReplicas | RayReplicas


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The pool of replicas. Lengths are in tokens."""

    num_replicas: int = 2
    num_elastic: int = 0  # the last of them, which share the trainer's devices in turns
    placement: Placement = ThreadReplicas()
    offload_versions: bool = False  # older ones that nobody decodes under wait in host memory
    slots_per_replica: int = 128  # samples that are written at the same time
    groups_per_replica: int | None = None  # decoded at once in RL; None: what the slots hold
    narrow_slots: tuple[int, ...] = ()  # widths to decode with while few slots are active
    cache_length: int = 0  # prompt and response together; 0: what the problems need
    prefill_length: int = 0  # prompts are padded to it; 0: what the problems need
    prefill_prompts: int = 4  # prompts read in one call
    prefill_members: int = 64  # samples that may start from one call
    decode_steps: int = 8  # in one call
    chunked_prefill: bool = False  # longer prompts are read in chunks of prefill_length
    speculation: bool = False  # decode with the model's drafting head
    pages: PageConfig | None = None  # None: every slot owns cache_length positions
    mantissa_bits: int | None = None  # of the weights that sample in RL, to stand for low precision

    def __post_init__(self):
        if self.num_replicas < 1:
            raise ConfigError(f"num_replicas={self.num_replicas} must be at least 1. Raise it.")
        if not 0 <= self.num_elastic <= self.num_replicas:
            raise ConfigError(
                f"num_elastic={self.num_elastic} is not in 0..{self.num_replicas}, num_replicas."
            )
        if self.num_elastic and not isinstance(self.placement, ThreadReplicas):
            raise ConfigError(
                f"num_elastic={self.num_elastic} replicas would share the trainer's devices, and "
                f"placement={self.placement} puts them into other processes. Use ThreadReplicas."
            )
        if self.num_replicas % self.replicas_per_host:
            raise ConfigError(
                f"num_replicas={self.num_replicas} is no multiple of the {self.replicas_per_host} "
                "that a process of `placement` holds. Change one of the two."
            )

    @property
    def replicas_per_host(self) -> int:
        """How many replicas share a process."""
        match self.placement:
            case ThreadReplicas():
                return self.num_replicas
            case ProcessReplicas(replicas_per_process=number):
                return max(1, number)
            case RayReplicas(replicas_per_actor=number):
                return max(1, number)

    @property
    def shapes(self) -> EngineConfig:
        """What the engine compiles; what exceeds its slots is cut to them."""
        slots = self.slots_per_replica
        return EngineConfig(
            slots_per_replica=self.slots_per_replica,
            cache_length=self.cache_length,
            prefill_lengths=(self.prefill_length,),
            prefill_prompts=self.prefill_prompts,
            prefill_members=min(self.prefill_members, slots),
            decode_steps=self.decode_steps,
            narrow_slots=tuple(width for width in self.narrow_slots if width < slots),
            chunked_prefill=self.chunked_prefill,
            speculation=self.speculation,
            pages=self.pages,
            mantissa_bits=self.mantissa_bits,
            single_threaded=self.num_replicas >= (os.cpu_count() or 1),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalVerifiers:
    """Verifiers as child processes of this one."""

    num_workers: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayVerifiers:
    """Verifiers as Ray actors on CPU."""

    num_workers: int = 2
