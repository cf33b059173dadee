"""Kinds of configs as files name them: tags that stay when a class moves or is renamed.

A tag is the name of its class in small letters (`DoraPolicy`: dora_policy), or the one given here.
Files of runs up to 0.1 name classes by their Python paths; `tag_of_path` reads those, and what has
changed since `config_older`.
"""

import re

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
