"""Reinforcement learning as one loop, without orchestrator, threads, buffer or pool.

What asynchronous training in deterministic mode at staleness 0 must equal, bit for bit. It shares
the engine, the objective and the train step with the product, and nothing of the orchestration.
"""

from loong_jax.rl import batching, local_trainer, rewards, trainer
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.records import Ticket
from loong_jax.rollout.replica import Replica


def generate(engine, weights, version, tickets, *, group_size, sampling, seed):
    replica = Replica(engine, group_size=group_size, sampling=sampling, seed=seed)
    replica.assign(version, weights)
    replica.submit(tickets)
    groups = []
    while not replica.is_empty:
        finished, _ = replica.step()
        groups += finished
    return sorted(groups, key=lambda group: group.ticket.number)


def train(
    *, engine, model, settings, weights, problem_at, verify, num_steps, groups_per_step, group_size,
    sampling, seed,
):  # fmt: skip
    """Returns the final weights and, for each step, its metrics and the tickets it trained on."""
    programs = trainer.make_programs(
        model, settings.objective, settings.optimizer, settings.max_staleness
    )
    state = trainer.initial_state(model, settings.optimizer, weights)
    issued, history = 0, []
    for step in range(1, num_steps + 1):
        current = programs.publish(state.weights)
        batch = []
        while len(batch) < groups_per_step:
            missing = groups_per_step - len(batch)
            tickets = [
                Ticket(number=number, problem=problem_at(number))
                for number in range(issued, issued + missing)
            ]
            issued += missing
            for group in generate(
                engine, current, step - 1, tickets,
                group_size=group_size, sampling=sampling, seed=seed,
            ):  # fmt: skip
                judged, disposition = rewards.grade(verify(group), RewardRule())
                if disposition == "keep":
                    batch.append(judged)
        batch = [local_trainer.score_group(programs, current, g, settings) for g in batch]
        micro_batches = batching.make_batches(
            batch,
            settings.objective.signal,
            trainer_version=step - 1,
            rows=settings.rows,
            row_length=settings.row_length,
            layout=programs.layout,
        )
        state, metrics = trainer.train_step(
            programs, model, state, micro_batches, len(batch), sampling.temperature
        )
        history.append((metrics, [group.ticket.number for group in batch]))
    return state.weights, history
