"""Every recipe holds together: lengths fit its problems, stages follow from one another."""

import dataclasses
import inspect
import itertools
import json
import math

import jax
import pytest

from loong_jax import configs, recipes
from loong_jax.data import json_files
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.families import family_of
from loong_jax.recipes import (
    DomainProblems,
    EngineSettings,
    EvaluationStage,
    FileProblems,
    FusionStage,
    MeshSettings,
    RlStage,
    SampleStage,
    SftStage,
)
from loong_jax.rl import sft
from loong_jax.rl.objectives import TokenSumOverConstant
from loong_jax.rl.optimizers import WarmupCosine
from loong_jax.rollout import replica
from loong_jax.run import demonstrations, run, sizes
from loong_jax.run.demonstrations import domains_of
from loong_jax.run.session import Session
from loong_jax.run.texts import Texts

NUM_DRAWN = 200  # problems of each domain and demonstrations, of which the longest must fit
SOURCE_OF = {"quickstart-controls": "quickstart"}  # controls start from another recipe's stages
OF_A_CHECKPOINT = ("smol", "smol-control", "smol-chat")  # whose tokens and tasks are its own
GIVEN = {  # what stages start from that no stage made
    **dict.fromkeys(("rl", *OF_A_CHECKPOINT), ("start",)),
    "distill": ("teacher",),
}
TOKENIZER = AsciiTokenizer()
TEXTS = Texts(tokenizer=TOKENIZER)


NEEDS_PACKAGES = ("environments",)  # its problems are the user's: test_environments_recipe
NEEDS_TOKENS = ("smol", "smol-control", "smol-chat")  # of a pretrained model: test_smol
STAGED = tuple(
    name
    for name in recipes.RECIPES
    if name not in (*recipes.ON_ALL_PROCESSES, *NEEDS_PACKAGES, *NEEDS_TOKENS)
)


@pytest.fixture(scope="module", params=STAGED)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def recipe(name, tmp_path_factory):
    made = recipes.get_recipe(name)()
    if not isinstance(made.problems, FileProblems):
        return sizes.fitted(made, TEXTS)
    lines = (
        {"prompt": f"{n}+{n}=", "gold": str(2 * n), "solution": f"{n} and {n}"} for n in range(500)
    )
    file = json_files.write_jsonl(tmp_path_factory.mktemp(name) / "mine.jsonl", lines)
    made = dataclasses.replace(made, problems=FileProblems(file=file))
    return sizes.fitted(made, TEXTS)


def stages_of(recipe, kind):
    return [stage for stage in recipe.stages.values() if isinstance(stage, kind)]


@pytest.fixture(scope="module")
def longest_prompts(recipe):
    """Tokens of the longest prompt of each domain, by the encoding that the replicas use."""
    encode = replica.prompt_encoder(TOKENIZER)
    return {
        domain: max(
            len(encode(demonstrations.stream_of(recipe, domain, split).problem_at(cursor)))
            for split in ("train", "test")
            for cursor in range(NUM_DRAWN // 2)
        )
        for domain in domains_of(recipe.problems)
    }


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_its_name_and_docstring_say_how_to_run_it(name):
    recipe = recipes.get_recipe(name)()
    assert recipe.name == name
    assert f"loong train {name}" in inspect.getdoc(recipes.get_recipe(name))
    assert recipes.get_recipe(name)() == recipe


def test_it_survives_json(recipe):
    assert configs.from_json(json.loads(json.dumps(configs.to_json(recipe)))) == recipe


def test_its_model_initialises(recipe):
    _, weights = family_of(recipe.model).abstract_weights(recipe.model)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))
    if recipe.name in OF_A_CHECKPOINT:
        return
    paths = jax.tree_util.tree_leaves_with_path(weights)
    assert any(moe.is_controller_state(path) for path, _ in paths)
    assert recipe.model.vocab_size == TOKENIZER.vocab_size
    if recipe.name.startswith("quickstart"):
        assert size == pytest.approx(1e6, rel=0.2)  # "a reasoner of a million parameters"


def test_its_prompts_and_responses_fit_the_engine(recipe, longest_prompts):
    engine = recipe.engine
    assert max(longest_prompts.values()) <= engine.prefill_lengths[-1]
    for settings in [recipe.evaluation, *stages_of(recipe, RlStage)]:
        needed = max(longest_prompts.values()) + settings.sampling.max_new_tokens
        assert needed <= min(engine.cache_length, recipe.model.max_position)
        assert not settings.sampling.is_truncated


def test_its_rollouts_fit_the_rows_they_train_in(recipe, longest_prompts):
    for stage in stages_of(recipe, RlStage):
        prompt = max(longest_prompts[domain] for domain in stage.domains or longest_prompts)
        assert prompt + stage.sampling.max_new_tokens <= stage.row_length
        assert stage.group_size <= recipe.engine.prefill_members
        assert stage.group_size <= recipe.engine.slots_per_replica
        if isinstance(stage.objective.reduction, TokenSumOverConstant):
            assert stage.objective.reduction.group_size == stage.group_size
            assert stage.objective.reduction.max_response_tokens == stage.sampling.max_new_tokens


def test_its_demonstrations_fit_the_rows_and_what_may_be_sampled(recipe):
    limit = min(s.sampling.max_new_tokens for s in [recipe.evaluation, *stages_of(recipe, RlStage)])
    for stage in stages_of(recipe, SftStage):
        pairs = demonstrations.pairs_of(recipe, stage, TEXTS)
        for prompt, response in itertools.islice(pairs, NUM_DRAWN):
            encoded = sft.encode_pair(TOKENIZER, prompt, response)
            assert len(encoded["tokens"]) <= stage.row_length
            assert encoded["loss_mask"].sum() <= limit
        schedule = stage.optimizer.schedule
        assert not isinstance(schedule, WarmupCosine) or schedule.num_steps == stage.num_steps


def test_demonstrations_repeat_and_mix_all_domains(recipe):
    symbols = {
        domain: {
            c
            for n in range(20)
            for c in demonstrations.stream_of(recipe, domain, "train").problem_at(n).prompt
        }
        for domain in domains_of(recipe.problems)
    }
    for stage in stages_of(recipe, SftStage):
        pairs, again = (
            list(itertools.islice(demonstrations.pairs_of(recipe, stage, TEXTS), NUM_DRAWN))
            for _ in range(2)
        )
        assert pairs == again
        assert len({prompt for prompt, _ in pairs}) > 0.95 * NUM_DRAWN
        for domain, own in symbols.items():
            own = own.difference(*(symbols[other] for other in symbols if other != domain))
            assert any(own & set(prompt) for prompt, _ in pairs), domain


def test_held_out_problems_are_the_same_for_every_seed_and_never_trained_on(recipe):
    other = dataclasses.replace(recipe, seed=recipe.seed + 1)
    for domain in domains_of(recipe.problems):
        held_out = demonstrations.held_out(recipe, domain, "test", 50)
        assert held_out == demonstrations.held_out(other, domain, "test", 50)
        train = demonstrations.stream_of(recipe, domain, "train")
        drawn = {train.problem_at(cursor).canonical for cursor in range(NUM_DRAWN)}
        assert not drawn & {problem.canonical for problem in held_out}
        if isinstance(recipe.problems, FileProblems):
            continue
        settings = recipe.problems.by_domain()[domain]
        assert {problem.level for problem in held_out} <= set(settings.levels)
        if recipe.name not in OF_A_CHECKPOINT:  # of a small task
            for level in settings.levels:  # many more than it trains on: draws seldom meet
                drawn = {train.environment.problem(level, seed).canonical for seed in range(3000)}
                assert len(drawn) > 2900


def test_its_stages_read_what_earlier_ones_made(name, recipe):
    stages = recipe.stages
    made = dict(recipes.get_recipe(SOURCE_OF[name])().stages) if name in SOURCE_OF else {}
    assert not set(made) & set(stages)
    made |= dict.fromkeys(GIVEN.get(name, ()))
    for key, stage in stages.items():
        match stage:
            case FusionStage():
                assert {name for name, _ in recipe.experts} == set(stage.experts)
                assert {made[expert].after for expert in stage.experts} == {stage.base}
                assert all(isinstance(made[expert], RlStage) for expert in stage.experts)
                needed = {stage.base, *stage.experts}
            case RlStage():
                assert set(stage.domains) <= set(domains_of(recipe.problems))
                needed = {stage.after, stage.reference, *stage.wall_time_of} - {None}
            case SftStage():
                needed = {stage.after, stage.samples_of, *stage.wall_time_of} - {None}
            case SampleStage():
                needed = {stage.teacher}
            case EvaluationStage():
                needed = set()  # it is left out where there are no weights to start from
        assert needed <= set(made), key
        made[key] = stage


def test_controls_are_compared_with_experts_of_their_domain(recipe):
    if not recipe.controls:
        return
    real = recipes.get_recipe(SOURCE_OF[recipe.name])()
    compared = set()
    for control in recipe.controls.values():
        for expert, names in control.items():
            compared |= set(names)
            for name in names:
                stage, meant = recipe.stages[name], real.stages[expert]
                assert expert in stage.wall_time_of
                assert stage.after == meant.after
                assert isinstance(stage, SftStage) or stage.domains == meant.domains
    assert compared == set(recipe.stages)
    rewards = [stage.reward for stage in recipe.stages.values() if isinstance(stage, RlStage)]
    assert {reward.seed for reward in rewards} == set(range(6))
    shared = ("model", "problems", "evaluation", "seed", "bias")
    assert [getattr(recipe, key) for key in shared] == [getattr(real, key) for key in shared]


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="Choose one of: quickstart, quickstart-controls"):
        recipes.get_recipe("slowstart")
    with pytest.raises(ConfigError, match="must have one share for each of levels"):
        DomainProblems(environment="gates", levels=(1, 2), level_shares=(1.0,))
    with pytest.raises(ConfigError, match="num_replicas=0 must be at least 1"):
        EngineSettings(num_replicas=0)
    real = recipes.get_recipe("quickstart")()
    shown, stem, fused = (real.stages[name] for name in ("sft", "rl_stem", "fused"))
    drawn, domain = dataclasses.replace(stem.sampling, top_k=3), real.problems.domains["stem"]
    for stage, changes, message in (
        (shown, {"checkpoint_every": 0}, "checkpoint_every=0 must be at least 1"),
        (shown.thinking, {"careful_share": 1.5}, r"careful_share=1\.5 is not in"),
        (stem, {"checkpoint_every": 0}, "checkpoint_every=0 must be at least 1"),
        (stem, {"group_size": 1}, "group_size=1 must be at least 2"),
        (stem, {"group_size": 4}, r"objective\.reduction\.group_size=8 divides"),
        (domain, {"demonstration_share": math.nan}, "demonstration_share=nan must be"),
        (domain, {"level_shares": (math.nan,)}, r"level_shares=\(nan,\) must be"),
        (shown.optimizer, {"weight_decay": math.nan}, "weight_decay=nan is not in"),
        (shown.optimizer.schedule, {"peak": math.inf}, "peak=inf is not in"),
        (stem, {"verdict_deadline_s": 0.0}, "must be positive"),
        (stem, {"row_length": 40}, "row_length=40 has no room"),
        (stem, {"sampling": drawn}, "cannot train"),
        (fused, {"num_problems": 0}, "num_problems=0 must be at least 1"),
        (fused, {"scales": ()}, "must not be empty"),
        (fused, {"keep_rates": (1.0, 2.0)}, "keep_rate=2"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(stage, **changes)
    weights = DomainProblems(environment="gates", levels=(2, 5), level_shares=(1.0, 3.0))
    assert weights.level_weights == {2: 1.0, 5: 3.0}
    assert DomainProblems(environment="gates", levels=(2, 5)).level_weights == {2: 1.0, 5: 1.0}


def test_what_stages_cannot_do_is_said_before_they_start():
    real = recipes.get_recipe("quickstart")()
    short = dataclasses.replace(real, engine=dataclasses.replace(real.engine, cache_length=48))
    with pytest.raises(ConfigError, match=r"cache_length=48 has no room .*max_new_tokens=48"):
        Session(short)
    astray = real.with_stage("rl_stem", domains=("stem", "art"))
    with pytest.raises(ConfigError, match=r"rl_stem\.domains=.* names \['art'\].*'stem', 'logic'"):
        Session(astray)


def test_prompts_describe_their_tools_where_the_recipe_says_so():
    plain = recipes.get_recipe("agentic-mini")()
    told = dataclasses.replace(plain, tools=dataclasses.replace(plain.tools, describe=True))
    problems = [demonstrations.held_out(recipe, "stem", "test", 3) for recipe in (plain, told)]
    pairs = [
        demonstrations.pairs_of(recipe, recipe.stages["sft"], TEXTS).pair_at(0)
        for recipe in (plain, told)
    ]
    prompts = [*((a.prompt, b.prompt) for a, b in zip(*problems, strict=True))]
    for short, long in (*prompts, (pairs[0][0], pairs[1][0])):
        assert long.endswith(f"## Messages\n{short}")
        assert "Tool name: prices" in long
        assert "Tool name" not in short
    assert [p.uid for p in problems[0]] == [p.uid for p in problems[1]]
    assert pairs[0][1] == pairs[1][1]


def test_a_source_that_no_stage_starts_from_and_a_rate_that_is_no_number_are_refused(tmp_path):
    source, real = tmp_path / "source", recipes.get_recipe("quickstart")()
    (source / "stages" / "sft").mkdir(parents=True)
    (source / "stages" / "sft" / "done.json").write_text("{}")
    configs.open_run(real, source)
    for only in (None, "sft"):
        with pytest.raises(ConfigError, match=f"--from {source} would go unused"):
            run.train(real, tmp_path / "run", only=only, source=source)
    with pytest.raises(ConfigError, match=r"rate=nan is not in \[0, inf\)"):
        dataclasses.replace(real.bias, rate=math.nan)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_over_another_mesh(tmp_path):
    recipe = recipes.get_recipe("quickstart")().with_stage("sft", rows=8)
    free = (*configs.FREE_ON_RESUME, *configs.FREE_MESHES)
    configs.open_run(recipe, tmp_path, free=free)
    other = dataclasses.replace(
        recipe, mesh=MeshSettings(fsdp=4), replica_mesh=MeshSettings(data=2)
    )
    allowed = configs.open_run(other, tmp_path, free=free)
    assert {difference.key for difference in allowed} == {"mesh.fsdp", "replica_mesh.data"}
    assert configs.load(tmp_path) == other


@pytest.mark.parametrize(
    ("mesh", "wanted"),
    [
        (MeshSettings(expert=3), r"mesh.expert=3 .* Use one of \[1, 2, 4\] for mesh.expert"),
        (MeshSettings(fsdp=256), r"hidden_size=.* mesh.fsdp=256 .* Use one of \[1, .*, 128\]"),
        (MeshSettings(data=3), r"rows=.* cannot be cut into mesh.data=3"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused_with_what_would(mesh, wanted):
    recipe = recipes.get_recipe("quickstart")()
    with pytest.raises(ConfigError, match=wanted):
        dataclasses.replace(recipe, mesh=mesh)
