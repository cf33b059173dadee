"""Published problem sets from small files made in their schemas."""

import base64
import csv
import json
import pickle
import time
import zlib

import pytest

from loong_jax.data import problem_files, sources
from loong_jax.errors import ConfigError
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.formal import lean
from tests.data import source_rows
from tests.verifiers.formal import fake_lean
from tests.verifiers.judge.endpoint import ScriptedEndpoint

GSM8K, MATH, AIME, MINIF2F, SUDOKU, CODE = (
    next(source_rows.ROWS[name]())[0]
    for name in ("gsm8k", "math", "aime", "minif2f", "sudoku-bench", "livecodebench")
)
ZEBRA = {"id": "lgp-2x2-1", "size": "2*2", "puzzle": "Two houses. Ada is in the first.",
         "solution": {"header": ["House", "Name", "Pet"],
                      "rows": [["1", "Ada", "cat"], ["2", "Bo", "dog"]]}}  # fmt: skip


def read(tmp_path, name, row, file="a.jsonl"):
    (tmp_path / file).write_text(json.dumps(row) + "\n")
    return next(sources.load(tmp_path / file, name))


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("gsm8k", GSM8K, {"gold": "1000", "id": "gsm8k-1", "licence": "MIT", "verifier": "math"}),
        ("math", MATH, {"gold": "\\frac{1}{2}", "level": 1, "tags": ["Algebra"]}),
        ("aime", AIME, {"gold": "73", "id": "aime-2024-I-1", "prompt": "Find n."}),
        ("minif2f", MINIF2F, {"id": "t0", "verifier": "lean", "split": "test"}),
        ("zebralogic", ZEBRA, {"level": 4, "domain": "logic"}),
        ("sudoku-bench", SUDOKU, {"gold": "1234341221434321", "id": "s0"}),
        ("livecodebench", CODE, {"id": "3000", "level": 1, "domain": "code"}),
    ],
)
def test_published_rows_become_problems(tmp_path, name, row, expected):
    record = read(tmp_path, name, row)
    assert {key: record[key] for key in expected} == expected
    assert problem_files.from_record(record) is not None
    assert read(tmp_path, name, [row], "b.json") == record
    with pytest.raises(ConfigError, match="row 1"):
        read(tmp_path, name, {key: value for key, value in row.items() if key != list(row)[-1]}
             if name not in ("livecodebench", "sudoku-bench", "minif2f") else {"x": 1})  # fmt: skip


class Trap:
    def __reduce__(self):
        return (print, ("executed",))


def test_pickles_run_nothing(tmp_path, capsys):
    trap = base64.b64encode(zlib.compress(pickle.dumps(Trap()))).decode()
    with pytest.raises(ConfigError, match="only texts"):
        read(tmp_path, "livecodebench", CODE | {"private_test_cases": trap})
    assert "executed" not in capsys.readouterr().out


def test_a_line_ends_where_json_lines_do(tmp_path):
    row = GSM8K | {"question": "How many\u2028apples\u0085are left?"}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert next(sources.load(path, "gsm8k"))["prompt"] == row["question"]


def test_tables_directories_and_tfds(tmp_path):
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*AIME])
        writer.writeheader()
        writer.writerow(AIME)
    assert next(sources.load(tmp_path / "a.csv", "aime"))["gold"] == "73"
    (tmp_path / "math/algebra").mkdir(parents=True)
    for i in range(3):
        (tmp_path / f"math/algebra/{i}.json").write_text(json.dumps(MATH))
    assert [r["id"] for r in sources.load(tmp_path / "math", "math")] == [
        "math-1", "math-2", "math-3"]  # fmt: skip
    with pytest.raises(ConfigError, match="no format"):
        next(sources.load(tmp_path, "nothing"))
    with pytest.raises(ConfigError, match="cannot be read"):
        next(sources.load(tmp_path / "none.json", "math"))


def test_prepared_tfds_sets_are_read(tmp_path):
    import tensorflow_datasets as tfds

    class Gsm8k(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        code_path = None

        def _info(self):
            features = {key: tfds.features.Text() for key in GSM8K}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate([GSM8K] * 3)

    builder = Gsm8k(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare()
    from pathlib import Path

    found = list(sources.load(Path(builder.data_dir), "gsm8k"))
    assert [record["gold"] for record in found] == ["1000"] * 3


def test_last_boxes():
    for text in ("\\boxed{1", "\\boxed{}", "none"):
        assert sources.boxed(text) is None
    for text in ("\\boxed{" * 20_000, "\\boxed{1}, " * 20_000, "\\boxed{" + "{" * 200_000):
        start = time.thread_time()
        sources.boxed(text)
        assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("So $\\boxed{\\left\\{\\frac{1}{2}\\right.}$ ok", "\\left\\{\\frac{1}{2}\\right."),
        ("$\\boxed{1}$ or $\\boxed{2}$", "1, 2"),
        ("$\\boxed{1}$ and so the total is $\\boxed{2}$", "2"),
        ("$x=\\boxed{1}$, $x=\\boxed{-1}$", "1, -1"),
        ("$a=\\boxed{1}$, $b=\\boxed{2}$", "a=1, b=2"),
        ("\\boxed{2}. Check: \\boxed{2}", "2"),
        ("\\boxed{2}\n\nOr rather \\boxed{3}", "3"),
        ("$\\boxed{5}\\text{ and }\\boxed{6}$", "5, 6"),
        ("\\boxed{\\text{(A)}}", "\\text{(A)}"),
        ("\\boxed {8}", "8"),
        ("\\boxed{a_{\\{1\\}}}", "a_{\\{1\\}}"),
    ],
)
def test_boxes_that_are_listed_are_one_answer(tmp_path, solution, gold):
    assert read(tmp_path, "math", MATH | {"solution": solution})["gold"] == gold


def posed(tmp_path, record):
    """The problem of a record as a run reads it: a file of problems with the keys that it knows."""
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(problem_files.from_record(record)))
    return problem_files.read(path).problems[0]


@pytest.fixture(scope="module")
def verifiers():
    """Those of the sets; prover and judge are scripted servers of this machine."""
    endpoint = ScriptedEndpoint()
    asked = {"base_url": endpoint.url, "model": "scripted"}
    with fake_lean.running() as server:
        lean = f"http://127.0.0.1:{server.server_port}"
        made = {
            "math": get_verifier("math"),
            "loongbench": get_verifier("loongbench"),
            "code": get_verifier("code", min_tier="none", num_boxes=1),
            "judge": get_verifier("judge", endpoint=asked),
            "lean": get_verifier("lean", url=lean),
        }
        yield made
        for one in made.values():
            one.close()
    endpoint.close()


@pytest.mark.parametrize("name", sources.FORMATS)
def test_ten_rows_of_each_set_are_read_and_posed(tmp_path, verifiers, name):
    rows = list(source_rows.ROWS[name]())
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row, _, _ in rows))
    records = list(sources.load(path, name))
    assert len(records) == len(rows) == 10
    assert len({record["id"] for record in records}) == 10
    for record, (row, right, wrong) in zip(records, rows, strict=True):
        problem = posed(tmp_path, record)
        assert problem.uid == record["id"]
        if record["verifier"] == "lean":
            assert lean.read_statement(**record["arguments"]) is not None
            assert record["prompt"].count("import Mathlib") <= 1
        assert (row.get("starter_code") or "").strip() in record["prompt"]
        verifier = verifiers[problem.verifier]
        for answer, outcome in ((right, "correct"), (wrong, "wrong")):
            judged = verifier.verify(problem, answer)
            assert judged.outcome == outcome, (row, answer, judged)


def test_a_bad_row_is_counted_and_named(tmp_path, caplog):
    good = [json.dumps(GSM8K), json.dumps(GSM8K | {"question": "Another?"})]
    bad = ["{", "5", '"text"', "[1]", json.dumps({"x": 1}), json.dumps(GSM8K | {"answer": "12"}),
           json.dumps(GSM8K | {"answer": "so\n#### ___"})]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join([good[0], *bad, "", good[1]]))
    left_out = []
    found = list(sources.load(tmp_path / "a.jsonl", "gsm8k", left_out))
    assert [record["id"] for record in found] == ["gsm8k-1", "gsm8k-9"]
    assert [f"row {n} of" in said for n, said in enumerate(left_out, 2)] == [True] * len(bad)
    assert "masked" in left_out[-1]
    assert list(sources.load(tmp_path / "a.jsonl", "gsm8k")) == found
    assert "7 rows" in caplog.text
    (tmp_path / "b.jsonl").write_text("\n".join(bad))
    with pytest.raises(ConfigError, match=r"row 1 of(.|\n)*7 rows"):
        list(sources.load(tmp_path / "b.jsonl", "gsm8k"))
    assert len(list(sources.load(tmp_path / "a.jsonl", "GSM_8k", []))) == 2
    rows = {"rows": [{"row_idx": 0, "row": GSM8K}], "num_rows_total": 1}
    (tmp_path / "c.json").write_text(json.dumps(rows))
    assert next(sources.load(tmp_path / "c.json", "gsm8k"))["gold"] == "1000"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("aime", AIME | {"Answer": "1000"}),
        ("gsm8k", GSM8K | {"answer": "12"}),
        ("math", MATH | {"solution": "It is 3."}),
        ("sudoku-bench", SUDOKU | {"solution": "2" * 16}),
        ("sudoku-bench", SUDOKU | {"initial_board": "1.3"}),
        ("zebralogic", ZEBRA | {"solution": {"header": ["House"], "rows": [["1", "Ada"]]}}),
        ("minif2f", MINIF2F | {"formal_statement": "2 + 2 = 4"}),
        ("problems", {"question": "x"}),
        ("zebralogic", ZEBRA | {"solution": {"header": ["House", "A"], "rows": [["___", "___"]]}}),
        ("zebralogic", ZEBRA | {"solution": {"header": ["House", "A"], "rows": [["1", ""]]}}),
        ("math", MATH | {"answer": "?"}),
        ("math", MATH | {"answer": "[masked]"}),
        ("hmmt", {"problem": "P", "answer": None}),
        ("hmmt", {"problem": "P", "answer": "N/A"}),
        ("dapo", {"prompt": "P", "reward_model": {"ground_truth": ""}}),
        ("big-math", {"problem": "P", "answer": ""}),
        ("apps", {"question": "P", "input_output": ""}),
        ("apps", {"question": "P", "input_output": '{"inputs": ["1"], "outputs": []}'}),
        ("taco", {"question": "P", "input_output": '{"inputs": [], "outputs": []}'}),
        ("codecontests", {"name": "n", "description": "d", "public_tests": {"input": [],
                                                                            "output": []}}),
        ("arc-agi", {"train": [], "test": [{"input": [[1]]}]}),
        ("arc-agi", {"train": [], "test": [{"input": [[1]], "output": [[11]]}]}),
        ("livecodebench", CODE | {"public_test_cases": "[]", "private_test_cases": ""}),
        ("minif2f", {"name": "x", "formal_statement": "example : 1 = 1 := by sorry"}),
        ("sudoku-bench", SUDOKU | {"solution": "." * 16}),
    ],
)  # fmt: skip
def test_rows_without_what_is_asked_for_are_refused(tmp_path, name, row):
    with pytest.raises(ConfigError, match="row 1"):
        read(tmp_path, name, row)
