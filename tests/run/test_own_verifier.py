"""A verifier of your own, as docs/how-to/add_verifier.md has it: admitted, named by problems, run.

A file of problems alone runs no program, however it names one.
"""

import dataclasses
import json
import re
import types

import pytest

from loong_jax import cli, configs, recipes, verifiers
from loong_jax.data import json_files, problem_files
from loong_jax.errors import CheckpointError, ConfigError, VerifierError
from loong_jax.recipes import FileProblems
from loong_jax.run import evaluate, named, own_admission, own_problems
from loong_jax.run.session import Judge
from loong_jax.verifiers.pool import LocalVerifierPool, VerifierRequest
from loong_jax.verifiers.worker import WorkerConfig
from tests.docs import reading

PAGE = "how-to/add_verifier.md"
NAME = "json_value.py:JsonVerifier"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with the files of the page."""
    reading.run(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(place, **changes):
    given = {"verifiers": (NAME,), "file": place / "pairs.jsonl"}
    return FileProblems(**given | changes)


def test_it_is_admitted_by_the_cases_of_its_class(place, capsys):
    assert cli.main(["verify", "admission", NAME]) == 0
    assert f"verifier '{NAME}': admitted" in capsys.readouterr().out
    text = (place / "json_value.py").read_text()
    for name, old, new, said in (
        ("bare", "cases", "others", "its class has no cases"),
        ("single", "def verify(", "cases = {'gold': '1'}\n\n    def verify(", "or not as a list"),
        (
            "timid",
            'verdict.wrong("format"',
            'verdict.ungradable("format"',
            "malformed answers are ungr",
        ),
        ("shut", '"""Holds nothing."""', "self.holds()", "raised AttributeError"),
        ("odd", '"question": "As JSON?"', '"asked": ""', "Give question and answer"),
        ("typed", '"gold": "417"', '"gold": 417', "all others are strings"),
        ("letters", '"gold": "417"', '"gold": "417", "perturbed": "418"', "is a list of strings"),
        ("lax", "if same else", "if True else", "constant"),
        ("open", "def close", "def end", "open.py:JsonVerifier: its class JsonVerifier lacks cl"),
        ("none", "return verdict.wrong", "verdict.wrong", "more like it)\n  Mend it before"),
    ):
        (place / f"{name}.py").write_text(text.replace(old, new))
        assert cli.main(["verify", "admission", f"{name}.py:JsonVerifier"]) == 1
        assert said in "".join(capsys.readouterr())
    (place / "open.py").write_text("def value(text): ...")
    for words, said in (
        (["admission", "open.py"], "verifier='open.py' is not of the form FILE.py:CLASS."),
        (["open.py", "--input", "open.py"], "verifier='open.py' is not of the form"),
        (["admission", "open.py:value"], "Name a class of the file, or a function that takes no"),
    ):
        assert cli.main(["verify", *words]) == 1
        assert said in capsys.readouterr().err


def test_records_are_judged(place):
    records = [{"answer": "[1, 2]", "gold": "[1,2]"}, {"answer": "[2]", "gold": "[1]"}]
    json_files.write_jsonl(place / "cases.jsonl", records)
    words = ["--input", "cases.jsonl", "--output", "verdicts.jsonl"]
    assert cli.main(["verify", NAME, *words]) == 0
    found = [json.loads(line) for line in (place / "verdicts.jsonl").read_text().splitlines()]
    assert [one["verdict"] for one in found] == ["correct", "wrong"]


def test_lines_name_it_by_the_end_of_its_path_where_the_command_does_too(place):
    line = {"prompt": "?", "gold": "1"}
    written = (None, NAME, f"./{NAME}", f"../{place.name}/{NAME}", f"{place}/{NAME}")
    lines = [{**line, "prompt": str(n)} | ({"verifier": name} if name else {})
             for n, name in enumerate(written)]  # fmt: skip
    file = json_files.write_jsonl(place / "lines.jsonl", [*lines, {**line, "verifier": "math"}])
    found = problem_files.read(file, [f"{place}/{NAME}"]).problems
    assert [problem.verifier for problem in found] == [NAME] * 5 + ["math"]
    for name in (NAME, f"elsewhere/{NAME}", "json_value.py:Other", f"/{NAME}"):
        json_files.write_jsonl(file, [line, {**line, "verifier": name}, {"verifier": name}])
        with pytest.raises(
            ConfigError,
            match=r"^\S+ names .*no file of data may start(; given is \S+)?\. .*: --verifier \S+$",
        ):
            problem_files.read(file, () if name == NAME else [f"{place}/{NAME}"])
    assert problem_files.from_record({**line, "verifier": NAME}) is None
    with pytest.raises(ConfigError, match=r"two verifiers are named \S+: \S+ and \S+other/"):
        problems(place, verifiers=(NAME, f"other/{NAME}"))
    with pytest.raises(
        ConfigError, match=r"^verifier='roman\.py' is not .*Name both, with \.py\.$"
    ):
        problems(place, verifiers=("roman.py",))


def test_a_worker_builds_what_its_config_names_and_nothing_that_a_problem_does(place):
    marker = place / "ran"
    (place / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: ...\n")
    (posed, *_) = own_problems.read(problems(place)).posed
    kinds = [NAME, "evil.py:Evil", f"{place}/evil.py:Evil"]
    table = own_problems.verifiers_of(problems(place))
    pool = LocalVerifierPool(1, WorkerConfig(table=table))
    try:
        asked = [
            VerifierRequest(
                key=kind + text,
                problem=type(posed.problem)(**vars(posed.problem) | {"verifier": kind}),
                response_text=text,
            )
            for kind in kinds
            for text in (posed.problem.gold, "[]")
        ]
        found = [future.result(60) for future in pool.submit(asked)]
    finally:
        pool.close()
    assert [one.outcome for one in found] == ["correct", "wrong", *["ungradable"] * 4]
    assert not marker.exists()


def test_a_run_admits_it_and_finds_it_again(place, monkeypatch):
    words = ["--problems", "pairs.jsonl", "--verifier", NAME, "--run-dir", "runs/x"]
    from loong_jax import options
    from loong_jax.run import choosing

    found = choosing.to_run("problems", words)
    chosen = options.parse_train("problems", "", found.config, words).config
    again = configs.from_json(json.loads(json.dumps(configs.to_json(chosen))))
    monkeypatch.chdir("/")
    assert again.problems.verifiers == (f"{place}/{NAME}",)
    named.try_own_parts(again)
    given = problems(place, verifiers=again.problems.verifiers)
    pool = LocalVerifierPool(1, WorkerConfig(table=own_problems.verifiers_of(given)))
    try:
        own_admission.require(given, Judge(pool), place)
    finally:
        pool.close()
    admitted = json.loads((place / "admission.json").read_text())
    assert admitted["num_answers_judged"] == 400
    assert admitted["verdicts_by_verifier"][NAME] > 100
    (place / "json_value.py").write_text("class JsonVerifier:\n    broken\n")
    with pytest.raises(ConfigError, match=r"json_value\.py, line 2, raised NameError"):
        named.try_own_parts(again)


RAISING = """
from loong_jax.verifiers import verdict
class Raising:
    def verify(self, problem, response_text):
        if problem.gold.startswith("[1"):
            raise SystemExit(3)
        if problem.gold.startswith("[2"):
            return True
        return {problem.gold: verdict.correct()}[""]
    def close(self): ...
"""


def test_what_it_raises_is_told_of_by_line_once_per_kind(place, caplog):
    (place / "raising.py").write_text(RAISING)
    name = f"{place}/raising.py:Raising"
    records = [json.loads(line) for line in (place / "pairs.jsonl").read_text().splitlines()]
    file = json_files.write_jsonl(place / "few.jsonl", [{**r, "verifier": name} for r in records])
    given = problems(place, verifiers=(name,), file=file)
    pool = LocalVerifierPool(1, WorkerConfig(table=own_problems.verifiers_of(given)))
    judge = Judge(pool)
    posed = [one.problem for one in own_problems.read(given).posed]
    try:
        with pytest.raises(VerifierError) as failed:
            own_admission.require(given, judge, place)
        with caplog.at_level("WARNING"):
            rollouts = [types.SimpleNamespace(text="x")] * len(posed)
            judge(posed, rollouts)
            judge(posed, rollouts)
    finally:
        pool.close()
    first, *others, remedy = str(failed.value).splitlines()
    assert (
        first == f"{name}, line 9, raised KeyError: '' (160 of 400 answers that are to be right)."
    )
    assert [re.sub(r".*(?:raised|returned) (\w+).*\((\d+) of .*", r"\1 \2", o) for o in others] == [
        "SystemExit 220", "True 20",
    ]  # fmt: skip
    assert f"{name}: `verify` returned True, which is no Verdict (20 of 400" in others[1]
    assert "`verify` returns verdict.correct()" in remedy
    assert len(caplog.records) == 3  # twice as many are no news
    assert "So far 160 of 400 answers could not be judged" in caplog.messages[0]
    cases = json_files.write_jsonl(place / "cases.jsonl", [{"answer": "1", "gold": "[1]"}] * 20)
    assert cli.main(["verify", name, "--input", str(cases), "--output", "verdicts.jsonl"]) == 0
    assert [re.findall(r"(So far|In all) (\d+ of \d+)", m)[0] for m in caplog.messages[3:]] == [
        ("So far", "1 of 1"), ("So far", "10 of 10"), ("In all", "20 of 20"),
    ]  # fmt: skip
    with pytest.raises(VerifierError, match=r"raising.py:Raising, line 9, raised KeyError"):
        own_admission._admit(
            "raising.py:Raising", own_problems.read(given).posed, own_problems.verifiers_of(given)
        )


def test_an_evaluation_needs_its_file_where_its_problems_do(place):
    moved = (place / "json_value.py").rename(place / "gone.py")
    given = problems(place, verifiers=(f"{place}/{NAME}",))
    recipe = dataclasses.replace(recipes.get_recipe("problems")(), problems=given)
    run_dir = place / "run"
    configs.open_run(recipe, run_dir)
    (run_dir / "stages/rl").mkdir(parents=True)
    options = evaluate.EvalOptions(run_dir=run_dir)
    with pytest.raises(ConfigError, match=f"{place}/json_value.py is missing"):
        evaluate.evaluate(options)
    moved.rename(place / "json_value.py")
    with pytest.raises(CheckpointError):  # the weights, which this test does without
        evaluate.evaluate(options)
    (place / "json_value.py").unlink()
    json_files.write_jsonl(
        place / "sums.jsonl", [{"prompt": "1+1=", "gold": "2", "verifier": "math"}]
    )
    with pytest.raises(CheckpointError):
        evaluate.evaluate(dataclasses.replace(options, problems=place / "sums.jsonl"))


def test_ray_workers_read_it(place, monkeypatch):
    from loong_jax.verifiers.ray_pool import RayVerifierPool

    (posed, *_) = own_problems.read(problems(place)).posed
    table = verifiers.own_table([f"{place}/{NAME}"])
    monkeypatch.chdir("/")
    pool = RayVerifierPool(1, WorkerConfig(table=table))
    try:
        (future,) = pool.submit(
            [VerifierRequest(key="1", problem=posed.problem, response_text=posed.problem.gold)]
        )
        assert future.result(120).is_correct
    finally:
        pool.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_train_by_it(place):
    short = [*reading.LITTLE, "--sft.num-steps", "2", "--sft.rows", "4", *reading.RL]
    reading.run(PAGE, place, {"train problems": short, "eval": reading.EVAL})
    run_dir = place / "runs/pairs"
    lines = (run_dir / "stages/rl/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["judged/verdicts"].get("ungradable", 0) == 0
    assert recipes.FileProblems is type(configs.load(run_dir).problems)
