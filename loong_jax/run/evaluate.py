"""`loong eval`: a model's answers to held-out problems, or to problems of one's own, counted."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress

from loong_jax import configs, options
from loong_jax.data import json_files, problem_files
from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.eval import evaluation, tables
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.own import absolute
from loong_jax.problems import response
from loong_jax.problems.problem import Problem, split_of
from loong_jax.recipes import FileProblems, MeshSettings, Recipe
from loong_jax.remote import AnyPath
from loong_jax.rollout import sampling
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.replica import EncodePrompt
from loong_jax.rollout.serving import request as requests
from loong_jax.run import demonstrations, devices, own_problems, places, serve, sources
from loong_jax.run.session import Judge
from loong_jax.run.texts import Texts, form_of, texts_with
from loong_jax.verifiers import own_table, try_all
from loong_jax.verifiers.pool import FormedPool, LocalVerifierPool
from loong_jax.verifiers.worker import WorkerConfig

DEFAULT = SamplingSettings(max_new_tokens=256)  # where no recipe says how answers are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Poses problems to a model, judges its answers, and prints Mean@n, pass@k and levels.

    RUN_DIR is a run (its last finished stage), a stage of one, what `loong import-hf` or `loong
    merge` made, or a directory or URL in the layout of Hugging Face. Without --problems the
    held-out test problems of the run's own recipe are posed, the same as after its stages; of a
    file that it was trained on, those that it held out. What such a file holds:
    docs/how-to/evaluation.md.

    Example: loong eval runs/quickstart --num-problems 64

    Example: loong eval checkpoints/chat --problems mine.jsonl --samples-per-problem 8 --k 1 4 8
    """

    run_dir: tyro.conf.Positional[AnyPath]
    problems: Path | None = None  # JSON lines of problems of your own
    # of your own, FILE.py:CLASS, that their lines may name; the first for lines that name none
    verifier: tuple[str, ...] = ()
    all_problems: bool = False  # those of a run's own file too that it was trained on
    # of each domain, the first ones; 128 of a recipe's, all of a file unless given
    num_problems: int | None = None
    samples_per_problem: Annotated[int, tyro.conf.arg(aliases=["--samples"])] = 4  # n
    k: tuple[int, ...] = (1, 4)  # of pass@k, each at most n
    greedy: bool = False  # one greedy answer to each problem besides
    temperature: float = 1.0  # of samples; lower keeps closer to the likeliest answer
    max_new_tokens: int | None = None  # of an answer; the recipe's, or 256
    seed: int = 0  # of samples and of the bootstrap
    # samples that are written at the same time
    slots_per_replica: Annotated[int, tyro.conf.arg(aliases=["--num-slots"])] = 32
    num_verifiers: int = 2  # processes that judge
    mesh: MeshSettings = MeshSettings()  # that the model is cut over; one device unless given
    tokenizer: AnyPath | None = None  # as of `loong serve`
    # of responses, as of `loong train`: longcat, think, think-answer, boxed, plain, completion,
    # tagged; that of the run or the model unless given
    form: str | None = None
    chat_style: requests.ChatStyle | None = None  # of prompts, instead of what the form says
    json: Path | None = None  # all figures, with the counts of every problem
    # what --json of another model wrote: the gain over it, paired by problem
    against: Path | None = None
    rollouts: Path | None = None  # JSON lines: a few samples of each domain to read

    def __post_init__(self):
        count = self.samples_per_problem
        if not self.k or not all(1 <= k <= count for k in self.k):
            raise ConfigError(
                f"k={self.k} must lie in 1..{count}, the samples of a problem. Draw more with "
                "--samples-per-problem, or lower --k."
            )
        refuse_below(self, 1, "num_problems")
        refuse_below(self, 0, "seed")
        if not self.temperature > 0:
            raise ConfigError(
                f"temperature={self.temperature} must be positive. Ask for --greedy besides."
            )
        if self.form is not None:
            response.form_named(self.form)


def main(arguments: Sequence[str]) -> int:
    return evaluate(options.parse(EvalOptions, "loong eval", arguments))


def evaluate(chosen: EvalOptions) -> int:
    """Prints the table and writes the files; the exit status is 0."""
    places.prepare_files(json=chosen.json, rollouts=chosen.rollouts)
    before = None if chosen.against is None else domains_of(chosen.against)
    console = Console()
    recipes = own_problems.recipes_of(chosen.run_dir)
    recipe = recipes[0] if recipes else None
    problems = choose_problems(chosen, recipes, console)
    table = own_table(own_verifiers(chosen, recipe))
    asked = {problem.verifier for posed in problems.values() for problem in posed}
    try_all({name: place for name, place in table.items() if name in asked})
    source = sources.find(chosen.run_dir)
    tokenizer = serve.find_tokenizer(source, chosen.tokenizer, where=chosen.run_dir)
    texts = find_texts(chosen, recipe, tokenizer)
    encode = prompt_encoder(chosen, texts)
    drawn = sampling_of(chosen, recipe)
    if chosen.form is not None or (recipe is None and chosen.chat_style is None):
        drawn = dataclasses.replace(drawn, stops=texts.form.stop)
    settings = configs.made_from(
        EvaluationSettings, chosen, sampling=drawn, pass_at=0, num_problems=1
    )
    room = room_for(problems, encode, drawn.max_new_tokens, source.config.max_position)
    shapes = serve.ServeOptions(
        run_dir=chosen.run_dir,
        slots_per_replica=chosen.slots_per_replica,
        cache_length=-(-room // 16) * 16,
    ).engine_config()
    console.print(f"loading {source.weights}")
    rules = devices.serving_rules(chosen.mesh, source.config)
    engine, weights = serve.load(source, tokenizer, shapes, rules)
    pool = LocalVerifierPool(chosen.num_verifiers, WorkerConfig(table=table))
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("sampling")
            sampler = sampling.ProblemSampler(
                engine,
                weights,
                seed=chosen.seed,
                encode_prompt=encode,
                agent=texts.agent,
                progress=evaluation.counted(
                    lambda done, total: progress.update(task, completed=done, total=total),
                    settings,
                    map(len, problems.values()),
                ),
            )
            result, samples = evaluation.evaluate(
                sampler,
                Judge(FormedPool(pool, texts.form)),
                problems,
                settings,
                stage=source.weights.name,
                form=texts.form,
            )
    finally:
        pool.close(timeout_s=10.0)
    domains = result.domains
    tables.print_whole(console, tables.overview(domains, chosen.k, seed=chosen.seed))
    if before is not None:
        title = f"gain over {chosen.against}, in points"
        tables.print_whole(console, tables.gains(domains, before, title, seed=chosen.seed))
    if chosen.json is not None:
        record = {
            "weights": str(source.weights),
            "problems": chosen.problems and str(chosen.problems),
            "samples": chosen.samples_per_problem,
            "temperature": drawn.temperature,
            "max_new_tokens": drawn.max_new_tokens,
            "seed": chosen.seed,
            "domains": tables.to_json(domains, chosen.k, seed=chosen.seed),
        }
        json_files.write_json(chosen.json, record)
    if chosen.rollouts is not None:
        json_files.write_jsonl(chosen.rollouts, samples)
    return 0


def domains_of(file: Path) -> Mapping[str, Any]:
    """By domain what `--json` wrote; ConfigError for another file."""
    try:
        found = json_files.read_json(file)["domains"]
        return {name: part for name, part in found.items() if part["correct_per_problem"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"against={file} is not what `loong eval --json` writes: {error!r}. Evaluate the other "
            "model on the same problems, with --json."
        ) from None


def choose_problems(
    chosen: EvalOptions, recipes: Sequence[Recipe], console: Console
) -> dict[str, list[Problem]]:
    """By domain, from the file or the first recipe. Raises ConfigError where there is neither.

    What any of the recipes trained on is left out.
    """
    recipe = recipes[0] if recipes else None
    if chosen.problems is not None:
        found = problem_files.read(chosen.problems, own_verifiers(chosen, recipe))
        if found.num_repeated:
            console.print(f"{found.num_repeated} lines repeat a problem and are left out")
        posed = found.problems
        for trained in () if chosen.all_problems else recipes:
            posed = held_out(posed, trained)
        if recipe is not None and len(posed) < len(found.problems):
            console.print(
                f"{len(found.problems) - len(posed)} problems are not on the "
                f"{recipe.evaluation.side} side of what the run was trained on, and are left "
                "out; --all-problems poses them"
            )
        if not posed:
            raise ConfigError(
                f"{chosen.problems} holds no problem but those that the run was trained or "
                "chosen on. Give others, or --all-problems."
            )
        by_domain: dict[str, list[Problem]] = {}
        for problem in posed:
            by_domain.setdefault(problem.domain, []).append(problem)
        return {name: p[: chosen.num_problems] for name, p in by_domain.items()}
    if recipe is None:
        raise ConfigError(
            f"{chosen.run_dir} is no run of a recipe with problems. Give some with --problems "
            "FILE.jsonl."
        )
    count = chosen.num_problems or 128
    return {
        name: posed
        for name in demonstrations.domains_of(recipe.problems)
        if (posed := demonstrations.held_out(recipe, name, "test", count))
    }


def own_verifiers(chosen: EvalOptions, recipe: Recipe | None) -> tuple[str, ...]:
    """The verifiers that the command names, and those of the run."""
    given = tuple(map(absolute, chosen.verifier))
    of_run = own_problems.verifiers_of(recipe.problems) if recipe is not None else {}
    named = own_table(given)
    return given + tuple(place for name, place in of_run.items() if name not in named)


def held_out(problems: Sequence[Problem], recipe: Recipe) -> tuple[Problem, ...]:
    """Without those of the run's own file that are not on the side it is evaluated on."""
    own = recipe.problems
    if not isinstance(own, FileProblems) or own.file is None:
        return tuple(problems)
    side = recipe.evaluation.side
    known = {one.canonical for one in own_problems.read(own).problems}
    known -= {name for name in known if split_of(name, own.held_out_share) == side}
    return tuple(problem for problem in problems if problem.canonical not in known)


def sampling_of(chosen: EvalOptions, recipe: Recipe | None) -> SamplingSettings:
    """The sampling of answers: at the temperature asked for, from the whole distribution."""
    usual = DEFAULT if recipe is None else recipe.evaluation.sampling
    return SamplingSettings(
        temperature=chosen.temperature,
        max_new_tokens=chosen.max_new_tokens or usual.max_new_tokens,
        stops=usual.stops,
    )


def room_for(
    problems: Mapping[str, Sequence[Problem]], encode: EncodePrompt, answer: int, limit: int
) -> int:
    """Tokens of the longest prompt and an answer; ConfigError where the model cannot hold them."""
    longest, uid = max((len(encode(p)), p.uid) for posed in problems.values() for p in posed)
    if longest + answer > limit:
        raise ConfigError(
            f"problem {uid} has a prompt of {longest} tokens, which with an answer of "
            f"max_new_tokens={answer} exceeds the model's max_position={limit}. Shorten or drop "
            "it, or lower --max-new-tokens."
        )
    return longest + answer


def find_texts(chosen: EvalOptions, recipe: Recipe | None, tokenizer: Tokenizer) -> Texts:
    """The texts of the recipe, or of the model where there is no recipe."""
    given = None if chosen.form is None else response.form_named(chosen.form)
    if recipe is None:
        return Texts(tokenizer=tokenizer, form=given or form_of(tokenizer))
    return texts_with(dataclasses.replace(recipe, form=given or recipe.form), tokenizer)


def prompt_encoder(chosen: EvalOptions, texts: Texts) -> EncodePrompt:
    """Prompts as the recipe poses them, or in the style asked for.

    The encoder raises ConfigError for text without tokens.
    """

    def encode(problem: Problem):
        try:
            if chosen.chat_style is None:
                return texts.prompt(problem)
            message = requests.Message("user", problem.prompt)
            return requests.chat_ids(texts.tokenizer, [message], chosen.chat_style)
        except ValueError as error:
            raise ConfigError(
                f"problem {problem.uid} has a prompt that the model cannot read: {error}"
            ) from None

    return encode
