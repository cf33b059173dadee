"""What stages decide by themselves: when time ends one, what an interrupt leaves, admission."""

import contextlib
import dataclasses
import io
import math
import os
import signal
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from loong_jax import configs, environments, interrupts, recipes
from loong_jax.data import json_files
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError, LoongError, VerifierError
from loong_jax.models import dense
from loong_jax.models.dense import DenseConfig
from loong_jax.problems import verdict
from loong_jax.recipes import MeshSettings, SftStage
from loong_jax.report.metrics_log import MetricsLog
from loong_jax.report.progress import Progress
from loong_jax.report.usage import StepProfile
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.run import devices, run, session, stages
from loong_jax.run.pipeline import StageDirectories
from loong_jax.run.texts import Texts
from loong_jax.verifiers import admission
from tests.report import test_metrics_log

TEXTS = Texts(tokenizer=AsciiTokenizer())


def test_time_before_an_interruption_counts_towards_the_end_of_a_stage(tmp_path):
    for name in ("a", "b"):
        json_files.write_json(tmp_path / name / "done.json", {"wall_s": 60.0, "evaluation_s": 10.0})
    directories = StageDirectories(
        own=tmp_path / "c", inputs={name: tmp_path / name for name in ("a", "b")}
    )

    def keeps_going(names, earlier_s):
        stage = types.SimpleNamespace(wall_time_of=names)
        work: Any = types.SimpleNamespace(stage=stage, directories=directories)
        return stages.Work.keep_going(work, earlier_s)()

    assert keeps_going(("a", "b"), 90.0)
    assert not keeps_going(("a", "b"), 100.0)
    assert keeps_going((), 100.0)


def test_weights_of_a_stage_are_read_to_where_they_lie_on_a_mesh(tmp_path):
    """Also where another stage's masters are read; no device holds a whole matrix on the way."""
    config = DenseConfig.tiny(num_layers=1, param_dtype="bfloat16")
    rules = devices.training_rules_on(MeshSettings(fsdp=4, tensor=2), config)
    like = dense.abstract_weights(config, rules)[1]
    wide = dataclasses.replace(config, param_dtype="float32")
    _, masters = dense.init_weights(wide, jax.random.key(0))
    stages.save_weights(tmp_path / "base", 1, masters, like)
    directories = StageDirectories(own=tmp_path, inputs={"base": tmp_path / "base"})
    of_session: Any = types.SimpleNamespace(abstract_weights=like)
    work: Any = types.SimpleNamespace(session=of_session, directories=directories)
    found = stages.Work.weights_of(work, "base")
    assert found["embedding"].sharding.shard_shape((128, 96)) == (64, 24)
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.sharding, b.sharding), found, like)
    jax.tree.map(np.testing.assert_array_equal, found, masters)


def test_sft_that_is_told_to_stop_saves_the_step_under_way(tmp_path, monkeypatch):
    saved = []

    def run(policy, settings, state, pairs, encode, *, cursor, frozen, on_step, keep_going):
        for step in range(1, 10):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            on_step(types.SimpleNamespace(step=step), cursor + step, {"loss": 1.0})

    monkeypatch.setattr(stages.sft, "run", run)
    monkeypatch.setattr(stages.demonstrations, "pairs_of", lambda *_: [])
    monkeypatch.setattr(stages.trainer, "initial_state", lambda *_: types.SimpleNamespace(step=0))
    monkeypatch.setattr(stages.trainer, "to_arrays", lambda state: {"step": state.step})
    monkeypatch.setattr(
        stages.checkpoint, "save", lambda _, step, arrays, kept, keep: saved.append((step, kept))
    )
    session = types.SimpleNamespace(fresh_weights={}, policy=None, texts=TEXTS, recipe=None)
    optimizer = AdamW(schedule=WarmupConstant(peak=1e-3, warmup_steps=1))
    progress = Progress(["sft"], console=Console(file=io.StringIO()))
    with pytest.raises(interrupts.Terminated), interrupts.handled():
        stages.run_sft(
            stages.Work(
                session=session,
                name="sft",
                stage=SftStage(num_steps=9, optimizer=optimizer, row_length=8),
                directories=StageDirectories(own=tmp_path / "sft", inputs={}),
                progress=progress,
            )
        )
    assert saved == [(3, {"cursor": 3})]
    steps = json_files.read_jsonl(tmp_path / "sft" / "metrics.jsonl")
    assert [line["step"] for line in steps] == [1, 2, 3]


@contextlib.contextmanager
def shown_log(directory, stream, num_steps):
    """That of a stage "rl", whose lines go to `stream`."""
    progress = Progress(["rl"], console=Console(file=stream), line_every_s=0)
    progress.start("rl", num_steps=num_steps)
    stage = recipes.get_recipe("rl")().stages["rl"]
    work: Any = types.SimpleNamespace(progress=progress, stage=stage, own=directory)
    with MetricsLog(directory, stage="rl") as log:
        yield stages._ShownLog(work, log, StepProfile(directory))


def test_reward_and_share_of_groups_with_a_signal_stand_in_the_line(tmp_path):
    stream = io.StringIO()
    with shown_log(tmp_path, stream, num_steps=9) as shown:
        teaches = test_metrics_log.group([1.0, 0.0, 0.0, 0.0])
        for disposition, group in (
            ("filtered", test_metrics_log.group([0.0, 0.0, 0.0, 0.0])),
            ("keep", teaches),
        ):
            shown.judged(group, disposition)
        shown.step(1, {"loss": 0.25}, [teaches])
    assert "step 1/9  loss 0.250  reward 0.12  signal 50%" in stream.getvalue()


def test_steps_without_a_finite_loss_are_warned_of_and_end_the_stage(tmp_path, caplog):
    with shown_log(tmp_path, io.StringIO(), num_steps=99) as shown:
        losses = [math.nan] * 9 + [0.5] + [math.nan] * 8
        for step, loss in enumerate(losses, 1):
            shown.step(step, {"loss": loss, "grad_norm": 1.0}, [])
        shown.step(19, {"loss": 0.0, "grad_norm": math.nan}, [])
        with pytest.raises(LoongError, match="10 steps in a row, up to 20, had no finite loss"):
            shown.step(20, {"loss": math.inf}, [])
    assert [r.message[:7] for r in caplog.records if "nothing was learnt" in r.message] == [
        "step 1 ",
        "step 11",
    ]


def test_a_run_refuses_an_environment_that_is_not_admitted(monkeypatch):
    gates = type(environments.get_environment("gates"))
    monkeypatch.setattr(gates, "verify", lambda self, problem, answer: verdict.correct())
    admission.require_environment.cache_clear()
    started = []
    monkeypatch.setattr(session, "_start_pool", started.append)
    recipe = recipes.get_recipe("quickstart")()
    with pytest.raises(VerifierError, match=r"environment 'gates' is not admitted.*gates-"):
        session.Session(recipe)
    assert started == []
    admission.require_environment.cache_clear()


def test_a_refused_command_leaves_no_settings_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_start_pool", lambda recipe: None)
    wide = recipes.get_recipe("quickstart")().with_stage("sft", rows=64)
    for name in ("rl_stem", "rl_logic", "rl_code", "general"):
        wide = wide.with_stage(name, rows=64)
    wide = dataclasses.replace(wide, mesh=MeshSettings(fsdp=64))
    with pytest.raises(ConfigError, match="needs 64 devices"):
        run.train(wide, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_no_memory_is_asked_for_a_stage_that_is_done(tmp_path, monkeypatch):
    """What trained on many devices may be looked at on few."""
    asked = []

    def show(_, names):
        asked.extend(names)
        raise InterruptedError

    monkeypatch.setattr(run, "Session", contextlib.nullcontext)
    monkeypatch.setattr(run, "_show_memory", show)
    json_files.write_json(tmp_path / "stages" / "sft" / "done.json", {})
    recipe = recipes.get_recipe("quickstart")()
    with pytest.raises(InterruptedError):
        run.train(recipe, tmp_path)
    assert asked == list(recipe.stages)[1:]


def test_a_stage_of_another_run_goes_on_alone(tmp_path, monkeypatch):
    """A run begun with --only and --from is resumed with both by its directory alone."""
    asked = []
    recipe = recipes.get_recipe("quickstart")()
    configs.open_run(recipe, tmp_path, recipe="quickstart")
    json_files.write_json(tmp_path / run.SOURCE, {"source": "runs/elder", "only": "fused"})
    monkeypatch.setattr(run, "train", lambda _, place, **words: asked.append((place, words)))
    for words in (["--run-dir"], ["--only", "sft", "--run-dir"], ["quickstart", "--run-dir"]):
        run.main([*words, str(tmp_path)])
    assert asked == [
        (tmp_path, {"only": "fused", "source": Path("runs/elder")}),
        (tmp_path, {"only": "sft", "source": None}),
        (tmp_path, {"only": None, "source": None}),
    ]
