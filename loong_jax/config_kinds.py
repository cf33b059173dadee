"""Kinds of configs as files name them: tags that stay when a class moves or is renamed.

A tag is the name of its class in small letters (`DoraPolicy`: dora_policy), or the one given here.
Files of runs up to 0.1 name classes by their Python paths; `tag_of_path` reads those, and `convert`
makes configs of older runs those of today: recipes had a class each, and DORA had two.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

KIND = "_kind"  # the key that names one
_CLASSES = {  # by module in loong_jax
    "eval.evaluation": "EvaluationSettings",
    "merge.methods.dropout": "LongcatFusion Dare Della",
    "merge.methods.elections": "Ties Breadcrumbs Sce Ram",
    "merge.methods.sphere": "Slerp NuSlerp Karcher",
    "merge.methods.sums": "Linear TaskArithmetic",
    "models.dense.config": "DenseConfig",
    "models.moe.balance": "BiasController DeviceBalance CountChoices CountTokens",
    "models.moe.config": "MoEConfig NgramEmbedding",
    "models.moe.core_attention": "WholeScores",
    "models.moe.exchange": "GatherExchange PaddedExchange RaggedExchange",
    "models.moe.kernels.blockwise": "Blockwise",
    "models.moe.kernels.cudnn": "Cudnn",
    "models.moe.kernels.splash": "Splash",
    "models.rope": "YarnScaling LinearScaling Llama3Scaling",
    "orchestrator.baselines": "SynchronousPolicy TailBatchingPolicy OneStepOffPolicy "
    "PartialRolloutPolicy DropAndReplacePolicy",
    "orchestrator.curriculum": "Curriculum PassRates GrowingContext",
    "orchestrator.dora": "DoraPolicy ElasticGate",
    "orchestrator.rebalance": "Triggers",
    "own": "OwnPart",
    "problems.response": "ResponseForm",
    "recipes.problems": "DomainProblems GeneratedProblems PackagedProblems FileProblems",
    "recipes.recipe": "Recipe MeshSettings PodSettings LocalVerifiers RayVerifiers ToolSettings",
    "recipes.stages": "SftStage ThinkingStyle RlStage FusionStage EvaluationStage SampleStage",
    "rl.auxiliary": "AuxiliaryLosses",
    "rl.collapse": "CollapseRules CollapseLimits Drift:collapse_drift",
    "rl.lora": "LoraConfig:lora",
    "rl.objectives.clips": "TripletClip LinearBound SteppedBound SymmetricClip AsymmetricClip "
    "DetachedClip",
    "rl.objectives.objective": "Objective TokenSumOverConstant MeanOfSequenceMeans TokenMean "
    "K3KL K2KL",
    "rl.objectives.ratios": "TokenRatio SequenceRatio SequenceTokenRatio DecoupledRatio "
    "EngineTrust Band:trust_band",
    "rl.optimizers": "AdamW Muon WarmupConstant WarmupCosine",
    "rl.rewards": "GroupNormalised MeanOnly RewardRule RepetitionDetector NoiseReward",
    "rollout.agentic.agent": "TurnLimits",
    "rollout.engine_config": "EngineSettings ThreadReplicas ProcessReplicas RayReplicas PageConfig",
    "rollout.records": "SamplingSettings",
    "rollout.reuse": "GroupReuse",
}
_OTHER_TAGS = {
    "rl.collapse.Limits": "collapse_limits",
    "rl.collapse.Drift": "collapse_drift",
    "rl.objectives.engine_trust.Band": "trust_band",
}


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


TAG_OF_CLASS = {  # by "module:class" in loong_jax
    f"{module}:{name}": tag or _snake(name)
    for module, words in _CLASSES.items()
    for name, _, tag in (word.partition(":") for word in words.split())
}
KINDS: dict[str, str] = {tag: place for place, tag in TAG_OF_CLASS.items()}


def tag_of_path(path: str) -> str | None:
    """The tag of a class that an older file names by its path, such as `rl.optimizers.AdamW`."""
    tag = _OTHER_TAGS.get(path) or _snake(path.rpartition(".")[2])
    return tag if tag in KINDS else None


# ---- configs of older runs

Json = dict[str, Any]
START, TEACHER = "start", "teacher"  # what stages start from, as their configs say it
DOMAINS = ("stem", "logic", "code")
_OTHERS = ("Problems", "OneDomain", "MultiVersionPolicy", "multi_version_policy", "own_policy")
_COMMON = ("name", "seed", "model", "problems", "engine", "verifiers", "evaluation", "tools")


def older_kind(kind: str, fields: Json) -> str | None:
    """The kind as `convert` knows it; None where the fields are those of today."""
    name, tag = kind.rpartition(".")[2], tag_of_path(kind)
    if tag is not None and fields.keys() & RENAMED.get(tag, {}).keys():
        return tag
    places = ("launch.recipe", "orchestrator.", "multi_version_policy", "own_policy")
    return name if kind.startswith(places) and name in (*_STAGES, *_OTHERS) else None


def convert(kind: str, old: Json) -> Json:
    """`old` holds the fields of a config of the class `kind` and may lack some."""
    if kind in RENAMED:
        for name in old.keys() & RENAMED[kind].keys():
            old |= RENAMED[kind][name](old)
        return {KIND: kind, **old}
    if kind == "OneDomain":
        return _generated({old["domain"]: old["problems"]})
    if kind == "Problems":
        return _generated(old)
    if kind in ("MultiVersionPolicy", "multi_version_policy"):
        return _algorithm_1(**old)
    if kind == "own_policy":
        settings = {name: value for name, value in old.items() if name not in ("kind", "settings")}
        settings |= old["settings"]
        return {KIND: "own_part", "kind": old["kind"], "settings": settings}
    found: Json = {KIND: "recipe"}
    found |= {name: old[name] for name in _COMMON if name in old}
    found |= {name: old[name] for name in ("start_from", "teacher") if name in old}
    if "bias_rate" in old:
        found["bias"] = {KIND: "bias_controller", "rate": old["bias_rate"]}
    return found | _STAGES[kind](old)


def _generated(domains: Json) -> Json:
    return {KIND: "generated_problems", "domains": domains}


def _algorithm_1(over_provision: float = 0.5, **fields: Any) -> Json:
    policy: Json = {KIND: "dora_policy", "max_ahead": 1 + over_provision, "over_stale": "wait"}
    policy |= {"triggers": {KIND: "triggers"}, "replicas_per_version": None}
    return policy | {"score_at_least": None, "generators_score": True} | fields


def _longcat(old: Json) -> Json:
    experts = [[f"rl_{domain}", domain] for domain in DOMAINS]
    names = ("sft", *(name for name, _ in experts), "fused", "general")
    return {"stages": {name: old[name] for name in names}, "experts": experts}


def _controls(old: Json) -> Json:
    stages: Json = {}
    noise: dict[str, list[str]] = {f"rl_{domain}": [] for domain in DOMAINS}
    for seed in old["noise_seeds"]:
        for domain in DOMAINS:
            name, stage = f"noise_{domain}_{seed}", old[f"noise_{domain}"]
            stages[name] = stage | {"reward": stage["reward"] | {"seed": seed}}
            noise[f"rl_{domain}"].append(name)
    stages["sft_continued"] = old["sft_continued"]
    continued = {name: ["sft_continued"] for name in noise}
    return {"stages": stages, "controls": {"noise reward": noise, "continued SFT": continued}}


def _two(old: Json) -> Json:
    return {"stages": {"sft": old["sft"], "rl": old["rl"]}}


def _environments(old: Json) -> Json:
    problems = {
        KIND: "packaged_problems",
        "directory": old["packages"],
        "names": old["package_names"],
        "levels": old["levels"],
        "max_prompt_chars": old["max_prompt_chars"],
    }
    return {"problems": problems} | _two(old)


def _own(old: Json) -> Json:
    if old.get("start_from") is not None:
        return {"stages": {"rl": old["rl"] | {"after": START}}}
    stages = _two(old)["stages"]
    if old.get("sft_continued") is not None:
        stages["sft_continued"] = old["sft_continued"] | {"after": "sft"}
    return {"stages": stages}


def _after(old: Json) -> str | None:
    return None if old.get("start_from") is None else START


def _rl(old: Json) -> Json:
    reference = None if old.get("teacher") is None else TEACHER
    return {"stages": {"rl": old["rl"] | {"after": START, "reference": reference}}}


def _distill(old: Json) -> Json:
    sft = old["sft"] | {"after": _after(old), "samples_of": "samples"}
    return {"stages": {"samples": old["samples"], "sft": sft}}


def _pod(old: Json) -> Json:
    pod: Json = {KIND: "pod_settings"}
    names = ("stack_start", "rates_of", "losses", "routing_every", "checkpoints")
    pod |= {name: old[name] for name in (*names, "keep_checkpoints") if name in old}
    found: Json = {"stages": {"sft": old["sft"]}, "mesh": old["mesh"], "pod": pod}
    if isinstance(found_start := old.get("start_from"), str):
        found["start_from"] = {KIND: "path", "value": found_start}
    if "bias" in old:
        found["bias"] = old["bias"]
    return found


_STAGES: Mapping[str, Callable[[Json], Json]] = {
    "LongcatRecipe": _longcat,
    "ControlsRecipe": _controls,
    "AgenticRecipe": _two,
    "EnvironmentsRecipe": _environments,
    "OwnProblemsRecipe": _own,
    "SftRecipe": lambda old: {"stages": {"sft": old["sft"] | {"after": _after(old)}}},
    "RlRecipe": _rl,
    "DistillRecipe": _distill,
    "PodSftRecipe": _pod,
}


def _thinking(old: Json) -> Json:
    names = ("first_pairs", "first_careful_share", "careful_share")
    shares = {name: old.pop(name) for name in names if name in old}
    return {"thinking": {KIND: "thinking_style", **shares}}


def _prefill_lengths(old: Json) -> Json:
    length = old.pop("prefill_length")
    return {"prefill_lengths": [length] * bool(length)}


def _left_out(name: str) -> "Renaming":
    """Of a setting that nothing came of."""

    def take_away(old: Json) -> Json:
        del old[name]
        return {}

    return take_away


Renaming = Callable[[Json], Json]  # takes fields away from those of a config, gives what they are
_AHEAD: dict[str, Renaming] = {
    "over_provision": lambda old: {"max_ahead": 1 + old.pop("over_provision")}
}
RENAMED: Mapping[str, Mapping[str, Renaming]] = {  # by tag and by a field of older files
    "mo_e_config": {"mixing": lambda old: {"attention": old.pop("mixing")}},
    "engine_settings": {
        "prefill_length": _prefill_lengths,
        "raw_log_probs": _left_out("raw_log_probs"),
    },
    "sft_stage": {
        "is_cold_start": lambda old: {"always_runs": not old.pop("is_cold_start")},
        "first_pairs": _thinking,
    },
    "reward_rule": {"score_weights": _left_out("score_weights")},
    "tool_settings": {"max_parked": lambda old: {"max_paused": old.pop("max_parked")}},
    "tail_batching_policy": _AHEAD,
    "partial_rollout_policy": _AHEAD,
    "drop_and_replace_policy": _AHEAD,
}
