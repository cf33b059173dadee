"""Does the miniature learn? SFT, then synchronous RL per domain, in one straight line.

Cold start by careful demonstrations, then a mixture of careful and hurried ones; then, for each
domain, on-policy RL from the same weights with group-normalised advantages and eq. 4. No
asynchrony: what this shows is that the problems, the cold start and the objective suffice. Writes
OUT/probe.json and OUT/probe.png.

Command: python examples/learning_probe.py --out build/probe --seed 0
"""

import argparse
import functools
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot
import numpy as np
from flax import nnx

from loong_jax import environments
from loong_jax.data import response
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.environments.stream import ProblemStream
from loong_jax.models import moe
from loong_jax.models.moe.model import LatentCache
from loong_jax.rl import batching, objectives, optimizers, policy_model, sft, trainer
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from loong_jax.verifiers.runner import SandboxRunner

matplotlib.use("Agg")

NAMES = {"stem": "vector_sum", "logic": "gates", "code": "masks"}
PROMPT_LENGTH, MAX_NEW_TOKENS, GROUP_SIZE = 36, 56, 8
TOKENIZER = AsciiTokenizer()
ENCODE = sft.pair_encoder(TOKENIZER)
SAMPLING = SamplingSettings(max_new_tokens=MAX_NEW_TOKENS)


def make_environment(domain, runner):
    settings = {"run": runner} if domain == "code" else {}
    return environments.get_environment(NAMES[domain], **settings)


def demonstrations(streams, seed, num_careful, careful_share):
    """Endless pairs of prompt and response; hurried ones only after the first `num_careful`."""
    for number in range(10**9):
        rng = np.random.default_rng((seed, number))
        stream = streams[number % len(streams)]
        problem = stream.problem_at(number)
        hurried = number >= num_careful and rng.random() > careful_share
        solution = stream.environment.solve(problem, rng, "hurried" if hurried else "careful")
        yield problem.prompt, response.render_response(*solution)


@functools.partial(jax.jit, static_argnames=("graphdef", "greedy"))
def decode(graphdef, weights, prompts, lengths, key, greedy):
    """Tokens [B, MAX_NEW_TOKENS] after right-padded prompts, padded after <eos>; their log-p."""
    model = nnx.merge(graphdef, nnx.State(weights))
    mask = jnp.arange(prompts.shape[1])[None] < lengths[:, None]
    output, cache = model.prefill(prompts, mask)
    room = ((0, 0),) * 3 + ((0, MAX_NEW_TOKENS), (0, 0))
    cache = LatentCache(*(jnp.pad(a, room) for a in cache))
    logits = jnp.take_along_axis(output.logits, (lengths - 1)[:, None, None], 1)[:, 0]
    batch = prompts.shape[0]

    def goes_on(carry):
        step, _, _, _, _, ended = carry
        return (step < MAX_NEW_TOKENS) & ~jnp.all(ended)

    def one(carry):
        step, logits, cache, tokens, logprobs, ended = carry
        noise = jax.random.gumbel(jax.random.fold_in(key, step), logits.shape)
        chosen = jnp.argmax(logits + (0 if greedy else noise), axis=-1).astype(jnp.int32)
        chosen = jnp.where(ended, TOKENIZER.pad_id, chosen)
        logprob = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], 1)[:, 0]
        tokens = tokens.at[:, step].set(chosen)
        logprobs = logprobs.at[:, step].set(logprob)
        logits, cache = model.decode(chosen, lengths + step, cache)
        ended |= chosen == TOKENIZER.eos_id
        return step + 1, logits, cache, tokens, logprobs, ended

    empty = jnp.zeros((batch, MAX_NEW_TOKENS))
    ended = jnp.zeros(batch, bool)
    start = (0, logits, cache, empty.astype(jnp.int32), empty, ended)
    return jax.lax.while_loop(goes_on, one, start)[3:5]


def attempt(graphdef, weights, environment, problems, repeats, key, greedy=False):
    """`repeats` graded attempts at each: (prompt, tokens, log-p, parsed or None, correct)."""
    heads = [[TOKENIZER.bos_id, *TOKENIZER.encode(p.prompt)] for p in problems]
    heads = [head for head in heads for _ in range(repeats)]
    attempts, chunk = [], 256
    for start in range(0, len(heads), chunk):
        part = heads[start : start + chunk]
        padded = part + [[TOKENIZER.bos_id]] * (chunk - len(part))
        prompts = np.zeros((chunk, PROMPT_LENGTH), np.int32)
        for row, head in enumerate(padded):
            prompts[row, : len(head)] = head
        lengths = np.array([len(head) for head in padded], np.int32)
        part_key = jax.random.fold_in(key, start)
        rows, logprobs = decode(graphdef, weights, prompts, lengths, part_key, greedy)
        for index, (head, row, logprob) in enumerate(
            zip(part, np.asarray(rows), np.asarray(logprobs), strict=False)
        ):
            count = int(np.sum(row != TOKENIZER.pad_id))
            parsed = response.parse_response(TOKENIZER.decode(row[:count]))
            if count == 0 or row[count - 1] != TOKENIZER.eos_id:
                parsed = None
            problem = problems[(start + index) // repeats]
            correct = parsed and environment.verify(problem, parsed.answer).is_correct
            attempts.append((head, row[:count], logprob[:count], parsed, bool(correct)))
    return attempts


def evaluate(graphdef, weights, environment, problems, key):
    """Sampled pass@1 (4 samples), greedy, pass@16 on a quarter of the problems, form, style."""
    sampled = attempt(graphdef, weights, environment, problems, 4, key)
    greedy = attempt(graphdef, weights, environment, problems, 1, key, greedy=True)
    some = problems[: len(problems) // 4]
    many = attempt(graphdef, weights, environment, some, 16, jax.random.fold_in(key, 1))
    parsed = [a for a in sampled if a[3]]
    careful = [a for a in parsed if a[3].thinking.startswith("=")]
    hurried = [a for a in parsed if a[3].thinking.startswith("~")]
    share = lambda values: round(float(np.mean(values)), 4) if len(values) else None  # noqa: E731
    return {
        "pass@1": share([a[4] for a in sampled]),
        "greedy": share([a[4] for a in greedy]),
        "pass@16": share(np.any(np.reshape([a[4] for a in many], (-1, 16)), axis=1)),
        "well_formed": share([a[3] is not None for a in sampled]),
        "careful_share": len(careful) / len(sampled),
        "pass@1_careful": share([a[4] for a in careful]),
        "pass@1_hurried": share([a[4] for a in hurried]),
        "mean_length": share([len(a[1]) for a in sampled]),
        "p99_length": float(np.percentile([len(a[1]) for a in sampled], 99)),
    }


def as_group(number, problem, attempts):
    ticket = Ticket(number=number, problem=problem)
    rollouts = tuple(
        Rollout(
            ticket=number,
            attempt=index,
            prompt=np.array(head, np.int32),
            tokens=tokens,
            loss_mask=np.ones(len(tokens), bool),
            engine_logprob=logprob,
            behavior_logprob=logprob,
            sampling=SAMPLING,
            versions=((0, 0),),
            finish_reason="stop",
            reward=float(correct),
        )
        for index, (head, tokens, logprob, _, correct) in enumerate(attempts)
    )
    return Group(ticket=ticket, version=0, rollouts=rollouts)


def reinforce(graphdef, policy, weights, environment, stream, args, key):
    """RL on one domain; returns the weights and the mean reward of each step over all groups."""
    objective = objectives.longcat_objective(
        group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS
    )
    schedule = optimizers.WarmupConstant(peak=args.rl_lr, warmup_steps=args.rl_warmup)
    programs = trainer.make_programs(policy, objective, optimizers.AdamW(schedule=schedule), 0)
    state, curve, cursor = programs.initial(weights), [], 0
    for step in range(args.rl_steps):
        groups, rewards = [], []
        while len(groups) < args.groups and len(rewards) < 4 * args.groups * GROUP_SIZE:
            problems = [stream.problem_at(cursor + i) for i in range(args.groups)]
            part = jax.random.fold_in(key, cursor)
            attempts = attempt(graphdef, state.weights, environment, problems, GROUP_SIZE, part)
            for i, problem in enumerate(problems):
                own = attempts[i * GROUP_SIZE : (i + 1) * GROUP_SIZE]
                rewards += [a[4] for a in own]
                if 0 < sum(a[4] for a in own) < GROUP_SIZE and len(groups) < args.groups:
                    groups.append(as_group(cursor + i, problem, own))
            cursor += args.groups
        if not groups:
            print(f"  step {step + 1}: no group has any signal left", flush=True)
            break
        batches = batching.make_batches(
            groups, objective.signal, trainer_version=0, rows=24, row_length=args.row_length
        )
        state, metrics = trainer.train_step(programs, policy, state, batches, len(groups), 1.0)
        curve.append(float(np.mean(rewards)))
        if step % 5 == 4:
            print(
                f"  step {step + 1}: reward {np.mean(curve[-5:]):.3f} entropy "
                f"{metrics['entropy']:.3f} norm {metrics['grad_norm']:.3f} groups drawn {cursor}",
                flush=True,
            )
    return state.weights, curve


def draw(results, path):
    figure, axes = matplotlib.pyplot.subplots(1, 3, figsize=(10, 3), sharey=True)
    for axis, (domain, result) in zip(axes, results["domains"].items(), strict=False):
        axis.plot(np.arange(1, len(result["curve"]) + 1), result["curve"], label="train reward")
        last = len(result["curve"])
        points = [result["before"]["pass@1"], result["after"]["pass@1"]]
        axis.plot([0, last], points, "o", label="held-out pass@1")
        axis.set(title=domain, xlabel="RL step", ylim=(0, 1))
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--domains", default="stem,logic,code")
    parser.add_argument("--levels", default="2")
    parser.add_argument("--sft-steps", type=int, default=640)
    parser.add_argument("--sft-rows", type=int, default=8)
    parser.add_argument("--sft-lr", type=float, default=3e-3)
    parser.add_argument("--row-length", type=int, default=152)
    parser.add_argument("--num-careful", type=int, default=6600, help="first, careful only")
    parser.add_argument("--careful-share", type=float, default=0.4)
    parser.add_argument("--rl-steps", type=int, default=40)
    parser.add_argument("--rl-lr", type=float, default=3e-4)
    parser.add_argument("--rl-warmup", type=int, default=5)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--num-eval", type=int, default=256)
    parser.add_argument("--sft-weights", type=pathlib.Path, help="reuse these, or write them")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    levels = {int(level): 1.0 for level in args.levels.split(",")}

    runner = SandboxRunner()
    domains = args.domains.split(",")
    env = {domain: make_environment(domain, runner) for domain in NAMES}
    train = {
        d: ProblemStream(environment=e, level_weights=levels, split="train", seed=args.seed)
        for d, e in env.items()
    }
    held_out = {
        d: ProblemStream(environment=e, level_weights=levels, split="test", seed=0).take_distinct(
            args.num_eval
        )
        for d, e in env.items()
    }
    config, key = moe.MoEConfig.tiny(), jax.random.key(args.seed)
    graphdef, weights = moe.init_weights(config, key)
    policy = policy_model.policy_of(graphdef, config, 1e-3)
    results = {"args": {k: str(v) for k, v in vars(args).items()}, "domains": {}}

    if args.sft_weights and args.sft_weights.exists():
        leaves, structure = jax.tree.flatten(weights)
        stored = np.load(args.sft_weights)
        weights = jax.tree.unflatten(structure, [stored[f"a{i}"] for i in range(len(leaves))])
        weights = jax.tree.map(jnp.asarray, weights)
    else:
        start = time.process_time()
        schedule = optimizers.WarmupCosine(
            peak=args.sft_lr, warmup_steps=30, num_steps=args.sft_steps, final_share=0.02
        )
        optimizer = optimizers.AdamW(schedule=schedule, weight_decay=0.01)
        settings = sft.SftSettings(
            optimizer=optimizer, num_steps=args.sft_steps, rows=args.sft_rows,
            row_length=args.row_length,
        )  # fmt: skip
        pairs = demonstrations(
            list(train.values()), args.seed, args.num_careful, args.careful_share
        )

        def report(state, cursor, metrics):
            if int(state.step) % 40 == 0:
                used = time.process_time() - start
                print(
                    f"sft {int(state.step)}: loss {metrics['loss']:.3f}, {cursor} pairs, "
                    f"{used:.0f} s of CPU",
                    flush=True,
                )

        state = trainer.initial_state(policy, optimizer, weights)
        state, _ = sft.run(
            policy, settings, state, pairs, sft.pair_encoder(TOKENIZER), on_step=report
        )
        weights = state.weights
        results["sft_cpu_s"] = time.process_time() - start
        if args.sft_weights:
            leaves = jax.tree.leaves(weights)
            np.savez(args.sft_weights, **{f"a{i}": np.asarray(a) for i, a in enumerate(leaves)})

    eval_key = jax.random.key(1000 + args.seed)
    for domain in domains:
        before = evaluate(graphdef, weights, env[domain], held_out[domain], eval_key)
        print(domain, "before", before, flush=True)
        start = time.process_time()
        expert, curve = reinforce(
            graphdef, policy, weights, env[domain], train[domain], args, jax.random.fold_in(key, 7)
        )
        rl_cpu_s = time.process_time() - start
        after = evaluate(graphdef, expert, env[domain], held_out[domain], eval_key)
        print(domain, "after", after, f"rl cpu {rl_cpu_s:.0f} s", flush=True)
        results["domains"][domain] = {
            "before": before, "after": after, "curve": curve, "rl_cpu_s": rl_cpu_s,
        }  # fmt: skip
        (args.out / "probe.json").write_text(json.dumps(results, indent=1))
    draw(results, args.out / "probe.png")
    runner.close()


if __name__ == "__main__":
    main()
