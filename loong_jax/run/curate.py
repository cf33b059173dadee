"""`loong curate RECIPE --input ... --output DIR`, and three words for what lies around it."""

import dataclasses
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax import options
from loong_jax.data import corpus, json_files, problem_files, sources
from loong_jax.data.curation import chain, datasheet, recipes
from loong_jax.data.curation.chain import Chain
from loong_jax.errors import ConfigError
from loong_jax.report import synthesis, theme


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Runs a corpus through a recipe of filters. Run it again and it goes on where it stopped.

    OUTPUT gets kept.jsonl (records with notes), dropped.jsonl (records with stage and reason),
    problems.jsonl (the kept ones as `--problems` reads them), funnel.json and funnel.png,
    DATASHEET.md and datasheet.json. A record is a JSON object with a `prompt`;
    docs/how-to/curation.md says what else the stages read. Example:
    loong curate problems --input raw.jsonl --against aime.jsonl --output curated
    """

    input: tuple[Path, ...]  # JSON-lines or array_record files, or directories of them
    output: Path  # a new directory, or one to go on with
    given: Annotated[recipes.Given, tyro.conf.arg(name="")] = recipes.Given()
    skip: tuple[str, ...] = ()  # names of stages to leave out
    chunk_records: int = 10_000  # records in memory at a time
    keep_work: bool = False  # keep OUTPUT/work, which a finished run no longer needs


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScorerOptions:
    """Trains a scorer on records with `difficulty` (or `level`) and `tags`, any of them absent.

    Prints how it ranks a tenth of them that it has not seen. Example:
    loong curate train-scorer --input labelled.jsonl --output scorer
    """

    input: tuple[Path, ...]  # labelled records
    output: Path  # scorer.json and weights.npz
    epochs: int = 30
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Turns a published problem set into records: JSON, JSON lines, CSV or a prepared TFDS set.

    Example: loong curate convert gsm8k --input gsm8k/train.jsonl --output gsm8k.jsonl
    """

    input: Path  # a file, or a directory of files
    output: Path  # JSON lines; replaced when all is read


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Writes records as a data set in array_record files; `loong_jax.data.corpus` reads it.

    Copies that a mixture asks for are written. Example:
    loong curate corpus --input curated/kept.jsonl --output datasets --name curated
    """

    input: tuple[Path, ...]
    output: Path  # where data sets live; this one becomes OUTPUT/NAME/VERSION
    name: str  # small letters, digits and _
    version: str = "1.0.0"
    split: str = "train"


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text())
        return 0
    name, *rest = arguments
    around = {"train-scorer": train_scorer, "convert": convert, "corpus": build_corpus}
    if name in around:
        around[name](rest)
        return 0
    recipe = recipes.get(name)
    text = f"{inspect.cleandoc(recipe.__doc__ or '')}\n\n{inspect.cleandoc(Options.__doc__ or '')}"
    chosen = options.parse(Options, f"loong curate {name}", rest, description=text)
    counts = curate(name, chosen)
    print(counts.as_text())
    print(f"{counts.num_kept:,} of {counts.num_records:,} records kept: {chosen.output}/kept.jsonl")
    return 0


def curate(name: str, chosen: Options) -> chain.Funnel:
    """Carries a recipe out and writes everything that is to lie beside the corpus."""
    from rich.console import Console
    from rich.progress import Progress

    named = {stage.name: stage for stage in recipes.get(name)(chosen.given)}
    if unknown := sorted(set(chosen.skip) - set(named)):
        raise ConfigError(f"{name} has no stages {unknown} to skip. It has {', '.join(named)}.")
    stages = tuple(stage for name, stage in named.items() if name not in chosen.skip)
    config = Chain(stages=stages, chunk_records=chosen.chunk_records)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def advance(names: str, done: int, total: int) -> None:
            if names not in tasks:
                tasks[names] = bar.add_task(names[:50], total=total)
            bar.update(tasks[names], completed=done)

        counts = chain.run(config, chosen.input, chosen.output, progress=advance)
    kept = chosen.output / "kept.jsonl"
    write_problems(kept, chosen.output / "problems.jsonl")
    datasheet.write(chosen.output, datasheet.describe(chosen.output.name, kept, counts, stages))
    shown = [(one.name.replace("_", " "), one.num_kept, one.reasons) for one in counts.stages]
    with theme.style(theme.LIGHT):
        figure = synthesis.funnel(shown, counts.num_records, "records", theme.LIGHT)
        (chosen.output / "funnel.png").write_bytes(theme.to_png(figure))
    if not chosen.keep_work:
        chain.clean(chosen.output)
    return counts


def write_problems(kept: Path, path: Path) -> int:
    """Kept records that can be posed and checked, with the keys of problem files alone."""
    num, partial = 0, path.with_suffix(".partial")
    with open(kept, encoding="utf-8") as lines, open(partial, "w", encoding="utf-8") as file:
        for record in filter(None, map(problem_files.from_record, map(json.loads, lines))):
            file.write(json_files.json_line(record))
            num += 1
    partial.replace(path)
    return num


def train_scorer(arguments: Sequence[str]) -> None:
    from loong_jax.data.curation import scorer

    chosen = options.parse(ScorerOptions, "loong curate train-scorer", arguments)
    config = scorer.ScorerConfig(epochs=chosen.epochs, seed=chosen.seed)
    trained, measured = scorer.train(list(corpus.read_all(chosen.input)), config)
    trained.save(chosen.output)
    json_files.write_json(chosen.output / "measured.json", measured)
    print(f"{chosen.output}: on records held out, {json.dumps(measured)}")


def convert(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: loong curate convert FORMAT --input PATH --output FILE.jsonl\n\nformats:")
        for name, of in sources.FORMATS.items():
            print(f"  {name:14}{of.summary}")
        return
    name, *rest = arguments
    sources.find(name)
    chosen = options.parse(ConvertOptions, f"loong curate convert {name}", rest)
    left_out: list[str] = []
    found = list(sources.load(chosen.input, name, left_out))
    json_files.write_jsonl(chosen.output, found)
    print(f"{len(found):,} records: {chosen.output}")
    if left_out:
        shown = left_out[: sources.MAX_NAMED]
        print(f"{len(left_out):,} rows are left out:", *shown, sep="\n  ")


def build_corpus(arguments: Sequence[str]) -> None:
    chosen = options.parse(CorpusOptions, "loong curate corpus", arguments)
    directory = corpus.build(
        chosen.input, chosen.output, name=chosen.name, version=chosen.version, split=chosen.split
    )
    print(f"{len(corpus.read(directory, chosen.split)):,} examples: {directory}")


def help_text() -> str:
    width = max(map(len, recipes.RECIPES)) + 2
    summaries = "\n".join(
        f"  {name:<{width}}{(recipe.__doc__ or '').splitlines()[0]}"
        for name, recipe in recipes.RECIPES.items()
    )
    return f"""\
usage: loong curate RECIPE --input FILE ... --output DIR [options]
       loong curate convert FORMAT --input PATH --output FILE.jsonl
       loong curate train-scorer --input FILE ... --output DIR
       loong curate corpus --input FILE ... --output DIR --name NAME

Filters a corpus: every record ends in exactly one bin, and the counts add up.
Stopped or killed, the same command goes on where it was. `convert` reads published
sets, `train-scorer` learns difficulty and tags, `corpus` writes array_record files.

recipes:
{summaries}

example:
  loong curate convert gsm8k --input train.jsonl --output raw.jsonl
  loong curate problems --input raw.jsonl --against aime.jsonl --output curated
  loong eval runs/quickstart --problems curated/problems.jsonl

`loong curate RECIPE --help` lists the options. docs/how-to/curation.md says
what each stage does, how well it does it, and how to write a chain of one's own."""
