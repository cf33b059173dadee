"""The virtual clock against the real one: one run on each, by the same scheduler and trace."""

from typing import Any

from loong_jax.orchestrator import baselines, dora
from loong_jax.orchestrator.protocols import Policy
from loong_jax.orchestrator.simulation.model import CostModel, LengthTrace
from loong_jax.orchestrator.simulation.run import orchestrator_for
from loong_jax.orchestrator.simulation.world import Layout, SimulatedWorld
from tests.orchestrator.sleeping import SleepingWorld

TRACE = LengthTrace(
    median_tokens=60, sigma=1.2, cap_tokens=500, group_size=4, prompt_tokens=16, seed=1
)
LAYOUT = Layout(num_accelerators=4, accelerators_per_replica=1, slots_per_replica=8, num_elastic=2)
COST = CostModel(  # a few seconds a step, and every part of the model a visible share of them
    decode_base_s=2e-3,
    decode_slot_s=5e-5,
    decode_context_s=1e-8,
    train_device_s=2e-4,
    step_fixed_s=0.1,
    prefill_token_s=1e-5,
    assign_s=0.02,
    publish_s=0.05,
    switch_s=0.03,
    verify_s=0.01,
)
BLOCK_STEPS = 4
POLICIES: dict[str, tuple[Policy, int]] = {  # with a number of steps that takes ten to 20 s
    "sync": (baselines.SynchronousPolicy(groups_per_step=8), 10),
    "DORA": (dora.algorithm_1(groups_per_step=8), 20),
}


def measure(name: str) -> dict[str, Any]:
    """Seconds to the end of the last step on both clocks; `error` is real over virtual, less 1."""
    policy, num_steps = POLICIES[name]
    parts: dict[str, Any] = {"layout": LAYOUT, "trace": TRACE, "cost": COST}
    virtual = SimulatedWorld(**parts)
    orchestrator_for(virtual, policy, num_steps).run()
    real = SleepingWorld(block_steps=BLOCK_STEPS, **parts)
    try:
        orchestrator_for(real, policy, num_steps).run()
    finally:
        real.close(timeout_s=5.0)
    virtual_s, real_s = virtual.marks[-1]["at_s"], real.marks[-1]["at_s"]
    return {
        "num_steps": num_steps,
        "virtual_s": virtual_s,
        "real_s": real_s,
        "error": real_s / virtual_s - 1,
    }
