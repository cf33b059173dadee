"""Kinds of configs as files name them: tags that stay when a class moves or is renamed.

Files of runs up to 0.1 name classes by their Python paths; `tag_of_path` reads those, and what has
changed since `config_older`.
"""

import re

KIND = "_kind"  # the key that names one
KINDS: dict[str, str] = {  # tag -> "module:class" in loong_jax
    "recipe": "recipes.recipe:Recipe",
    "mo_e_config": "models.moe.config:MoEConfig",
    "yarn_scaling": "models.rope:YarnScaling",
    "linear_scaling": "models.rope:LinearScaling",
    "llama3_scaling": "models.rope:Llama3Scaling",
    "dense_config": "models.dense.config:DenseConfig",
    "ngram_embedding": "models.moe.config:NgramEmbedding",
    "whole_scores": "models.moe.core_attention:WholeScores",
    "blockwise": "models.moe.kernels.blockwise:Blockwise",
    "splash": "models.moe.kernels.splash:Splash",
    "cudnn": "models.moe.kernels.cudnn:Cudnn",
    "gather_exchange": "models.moe.exchange:GatherExchange",
    "padded_exchange": "models.moe.exchange:PaddedExchange",
    "ragged_exchange": "models.moe.exchange:RaggedExchange",
    "bias_controller": "models.moe.balance:BiasController",
    "generated_problems": "recipes.problems:GeneratedProblems",
    "domain_problems": "recipes.domains:DomainProblems",
    "packaged_problems": "recipes.packaged:PackagedProblems",
    "file_problems": "recipes.problems:FileProblems",
    "engine_settings": "rollout.engine_config:EngineSettings",
    "thread_replicas": "rollout.engine_config:ThreadReplicas",
    "process_replicas": "rollout.engine_config:ProcessReplicas",
    "ray_replicas": "rollout.engine_config:RayReplicas",
    "page_config": "rollout.engine_config:PageConfig",
    "local_verifiers": "recipes.recipe:LocalVerifiers",
    "ray_verifiers": "recipes.recipe:RayVerifiers",
    "evaluation_settings": "eval.evaluation:EvaluationSettings",
    "sampling_settings": "rollout.records:SamplingSettings",
    "tool_settings": "recipes.recipe:ToolSettings",
    "turn_limits": "rollout.agentic.agent:TurnLimits",
    "mesh_settings": "recipes.mesh:MeshSettings",
    "pod_settings": "recipes.mesh:PodSettings",
    "auxiliary_losses": "rl.auxiliary:AuxiliaryLosses",
    "device_balance": "models.moe.balance:DeviceBalance",
    "count_choices": "models.moe.balance:CountChoices",
    "count_tokens": "models.moe.balance:CountTokens",
    "sft_stage": "recipes.stages:SftStage",
    "thinking_style": "recipes.stages:ThinkingStyle",
    "adam_w": "rl.optimizers:AdamW",
    "muon": "rl.optimizers:Muon",
    "lora": "rl.lora:LoraConfig",
    "response_form": "problems.response:ResponseForm",
    "warmup_constant": "rl.optimizers:WarmupConstant",
    "warmup_cosine": "rl.optimizers:WarmupCosine",
    "rl_stage": "recipes.stages:RlStage",
    "dora_policy": "orchestrator.dora:DoraPolicy",
    "triggers": "orchestrator.rebalance:Triggers",
    "elastic_gate": "orchestrator.dora:ElasticGate",
    "synchronous_policy": "orchestrator.baselines:SynchronousPolicy",
    "tail_batching_policy": "orchestrator.baselines:TailBatchingPolicy",
    "one_step_off_policy": "orchestrator.baselines:OneStepOffPolicy",
    "partial_rollout_policy": "orchestrator.baselines:PartialRolloutPolicy",
    "drop_and_replace_policy": "orchestrator.baselines:DropAndReplacePolicy",
    "objective": "rl.objectives.objective:Objective",
    "own_part": "own:OwnPart",
    "group_normalised": "rl.rewards:GroupNormalised",
    "mean_only": "rl.rewards:MeanOnly",
    "token_ratio": "rl.objectives.ratios:TokenRatio",
    "sequence_ratio": "rl.objectives.ratios:SequenceRatio",
    "sequence_token_ratio": "rl.objectives.ratios:SequenceTokenRatio",
    "decoupled_ratio": "rl.objectives.ratios:DecoupledRatio",
    "triplet_clip": "rl.objectives.clips:TripletClip",
    "linear_bound": "rl.objectives.clips:LinearBound",
    "stepped_bound": "rl.objectives.clips:SteppedBound",
    "symmetric_clip": "rl.objectives.clips:SymmetricClip",
    "asymmetric_clip": "rl.objectives.clips:AsymmetricClip",
    "detached_clip": "rl.objectives.clips:DetachedClip",
    "token_sum_over_constant": "rl.objectives.objective:TokenSumOverConstant",
    "mean_of_sequence_means": "rl.objectives.objective:MeanOfSequenceMeans",
    "token_mean": "rl.objectives.objective:TokenMean",
    "k3_kl": "rl.objectives.objective:K3KL",
    "k2_kl": "rl.objectives.objective:K2KL",
    "engine_trust": "rl.objectives.ratios:EngineTrust",
    "trust_band": "rl.objectives.ratios:Band",
    "reward_rule": "rl.rewards:RewardRule",
    "repetition_detector": "rl.rewards:RepetitionDetector",
    "noise_reward": "rl.rewards:NoiseReward",
    "group_reuse": "rollout.reuse:GroupReuse",
    "collapse_rules": "rl.collapse:CollapseRules",
    "collapse_limits": "rl.collapse:CollapseLimits",
    "collapse_drift": "rl.collapse:Drift",
    "curriculum": "orchestrator.curriculum:Curriculum",
    "pass_rates": "orchestrator.curriculum:PassRates",
    "growing_context": "orchestrator.curriculum:GrowingContext",
    "fusion_stage": "recipes.stages:FusionStage",
    "longcat_fusion": "merge.methods.dropout:LongcatFusion",
    "linear": "merge.methods.sums:Linear",
    "task_arithmetic": "merge.methods.sums:TaskArithmetic",
    "ties": "merge.methods.elections:Ties",
    "dare": "merge.methods.dropout:Dare",
    "della": "merge.methods.dropout:Della",
    "breadcrumbs": "merge.methods.elections:Breadcrumbs",
    "sce": "merge.methods.elections:Sce",
    "ram": "merge.methods.elections:Ram",
    "slerp": "merge.methods.sphere:Slerp",
    "nu_slerp": "merge.methods.sphere:NuSlerp",
    "karcher": "merge.methods.sphere:Karcher",
    "evaluation_stage": "recipes.stages:EvaluationStage",
    "sample_stage": "recipes.stages:SampleStage",
}

TAG_OF_CLASS = {path: tag for tag, path in KINDS.items()}

_OTHER_TAGS = {
    "rl.collapse.Limits": "collapse_limits",
    "rl.collapse.Drift": "collapse_drift",
    "rl.objectives.engine_trust.Band": "trust_band",
}


def tag_of_path(path: str) -> str | None:
    """The tag of a class that an older file names by its path, such as `rl.optimizers.AdamW`."""
    tag = _OTHER_TAGS.get(path) or _snake(path.rpartition(".")[2])
    return tag if tag in KINDS else None


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
