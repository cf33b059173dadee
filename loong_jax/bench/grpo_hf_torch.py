"""TRL's side of `loong bench grpo`: GRPOTrainer with plain `generate`.

A script of its own, for the python that has TRL: `python grpo_hf_torch.py TASK.json`.
Prints a JSON line for what it ran with, then one for every step.
"""

# pyright: reportMissingImports=false
import json
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
import trl


class TimedTrainer(trl.GRPOTrainer):
    """Prints where the time of each step went, from the end of the step before."""

    def __init__(self, *, rewards: list[float], **kwargs: Any):
        super().__init__(**kwargs)
        self.rewards, self.generation_s = rewards, 0.0
        self.prepared_at_s: float | None = None  # when the samples of the step were ready
        self.begun_at_s = self.begun_cpu_s = 0.0
        generate = self.model.generate

        def timed(*arguments: Any, **named: Any) -> Any:
            start_s = time.perf_counter()
            found = generate(*arguments, **named)
            self.generation_s += time.perf_counter() - start_s
            return found

        self.model.generate = timed
        self.add_callback(StepEnds(self))

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        self.prepared_at_s = self.prepared_at_s or time.perf_counter()
        return inputs


class StepEnds(transformers.TrainerCallback):
    def __init__(self, trainer: TimedTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.begun_at_s = time.perf_counter()
        self.trainer.begun_cpu_s = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer, now_s, now_cpu_s = self.trainer, time.perf_counter(), time.process_time()
        seconds, training_s = now_s - trainer.begun_at_s, now_s - (trainer.prepared_at_s or now_s)
        say(
            {
                "step": state.global_step,
                "seconds": seconds,
                "cpu_s": now_cpu_s - trainer.begun_cpu_s,
                "generation": trainer.generation_s,
                "scoring": 0.0,  # on policy TRL takes log-probabilities from the training pass
                "training": training_s,
                "rest": seconds - trainer.generation_s - training_s,
                "reward": trainer.rewards[-1],
            }
        )
        trainer.begun_at_s, trainer.begun_cpu_s = now_s, now_cpu_s
        trainer.generation_s, trainer.prepared_at_s = 0.0, None


def say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def main(task: dict[str, Any]) -> None:
    torch.set_num_threads(task["threads"])
    transformers.utils.logging.disable_progress_bar()
    # as tokenizer.json says, where AutoTokenizer has splits of its own for Qwen2
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(
        task["model"], padding_side="left"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32)
    # with bf16 the trainer keeps float32 masters and computes in bfloat16
    per_step = task["prompts"] * task["group_size"]
    rows = task["trl_rows"] or per_step
    settings = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": per_step // rows,
        "num_generations": task["group_size"],
        "max_completion_length": task["new_tokens"],
        "max_steps": task["steps"],
        "learning_rate": task["learning_rate"],
        "lr_scheduler_type": "constant",
        "adam_beta2": task["beta2"],
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "num_iterations": 1,
        "beta": 0.0,
        "loss_type": "grpo",
        "temperature": 1.0,
        "use_cpu": not (task["accelerator"] and torch.cuda.is_available()),
        "bf16": task["accelerator"],
        "gradient_checkpointing": False,
        "seed": task["seed"],
    }
    rewards: list[float] = []

    def right(completions: list[str], completion_ids: Any, gold: list[str], **_: Any) -> Any:
        lengths = {len(ids) for ids in completion_ids}
        assert lengths == {task["new_tokens"]}, f"completions of {lengths} tokens"
        said = (text.partition("\n")[0].strip() for text in completions)
        found = [float(one == wanted) for one, wanted in zip(said, gold, strict=True)]
        rewards.append(sum(found) / len(found))
        return found

    texts = [problem["prompt"] for problem in task["problems"]]
    trainer = TimedTrainer(
        rewards=rewards,
        model=model,
        processing_class=tokenizer,
        reward_funcs=right,
        train_dataset=datasets.Dataset.from_list(task["problems"]),
        args=trl.GRPOConfig(
            output_dir=task["directory"],
            # an end token could only come last, so both sides sample and train as many tokens
            generation_kwargs={"min_new_tokens": task["new_tokens"]},
            shuffle_dataset=False,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **settings,
        ),
    )
    say(
        {
            "versions": {m.__name__: m.__version__ for m in (trl, transformers, torch)},
            "settings": settings
            | {"threads": torch.get_num_threads(), "attention": model.config._attn_implementation},
            "prompt_tokens": sum(len(ids) for ids in tokenizer(texts)["input_ids"]),
        }
    )
    trainer.train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
