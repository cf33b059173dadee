"""Published problem sets from their files, in the form of `loong curate` and of `--problems`.

Each reader takes one row of a file in the published schema and gives a record: `id`, `prompt`,
`gold`, `verifier`, `arguments`, `domain`, `level`, `origin`, `licence`. Files are JSON, JSON lines
or CSV from a local path; sets that TensorFlow Datasets prepared are read from their directory
without TensorFlow. Nothing is downloaded here. A licence is what the publisher states; where none
is stated it is "unknown", and finding out is the user's.
"""

import base64
import csv
import dataclasses
import io
import json
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import ConfigError

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A published schema. `read` gives a record, without `id` where the set has none."""

    summary: str
    licence: str
    read: Callable[[Row], dict[str, Any]]


def load(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Records of a file or of a directory of files in the format `name`.

    Raises ConfigError for an unknown format, and with the row for one that does not have it.
    """
    if name not in FORMATS:
        raise ConfigError(f"{name!r} is no format. Choose one of: {', '.join(FORMATS)}.")
    of = FORMATS[name]
    for number, row in enumerate(rows(path), 1):
        try:
            record = of.read(row)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"row {number} of {path} is not in the format {name!r} ({error!r}). It has the "
                f"keys {sorted(map(str, row))[:12]}."
            ) from error
        known = {"id": f"{name}-{number}", "origin": name, "licence": of.licence}
        yield {**known, **record}


def rows(path: Path) -> Iterator[Row]:
    """Rows of JSON, JSON-lines and CSV files, of a directory of them, or of a prepared TFDS set."""
    if path.is_dir():
        if (path / "dataset_info.json").exists():
            yield from _tfds_rows(path)
            return
        files = sorted(p for p in path.rglob("*") if p.suffix in (".json", ".jsonl", ".csv"))
        if not files:
            raise ConfigError(f"{path} holds no .json, .jsonl or .csv. Name another directory.")
        for file in files:
            for row in rows(file):
                yield {"_file": file.relative_to(path).as_posix(), **row}
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Name another file.") from None
    if path.suffix == ".csv":
        yield from csv.DictReader(io.StringIO(text))
        return
    try:
        if path.suffix == ".json":
            value = json.loads(text)
            found = value if isinstance(value, list) else value.get("rows", [value])
        else:
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not JSON ({error}). Convert it first.") from None
    for row in found:
        if not isinstance(row, dict):
            raise ConfigError(f"{path} has a row {row!r:.60}, which is no object.")
        yield row


def _tfds_rows(path: Path) -> Iterator[Row]:
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(str(path))
    for split in builder.info.splits:
        source = builder.as_data_source(split=split)
        for number in range(len(source)):
            yield {"_split": split, **{k: _plain(v) for k, v in source[number].items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value


# ---- schemas


def _gsm8k(row: Row) -> dict[str, Any]:
    """question, answer: reasoning with `<<3+4=7>>` marks and the number after `####`."""
    reasoning, mark, gold = row["answer"].rpartition("####")
    if not mark or not gold.strip():
        raise ValueError("the answer has no ####")
    return {
        "prompt": row["question"],
        "gold": gold.strip().replace(",", ""),
        "rationale": reasoning.strip(),
        "domain": "stem",
        "verifier": "math",
    }


def _math(row: Row) -> dict[str, Any]:
    """problem, level ("Level 3"), type, solution with the answer in its last box."""
    gold = row.get("answer") or last_box(row["solution"])
    if gold is None:
        raise ValueError("the solution has no box")
    level = str(row.get("level", "")).removeprefix("Level ")
    return {
        "prompt": row["problem"],
        "gold": gold,
        "rationale": row["solution"],
        "tags": [row.get("type") or row.get("subject") or "unknown"],
        "level": int(level) if level.isdigit() else 0,
        "domain": "stem",
        "verifier": "math",
    } | ({"id": row["unique_id"]} if "unique_id" in row else {})


def _aime(row: Row) -> dict[str, Any]:
    """problem (or Question) and answer, an integer from 0 to 999; perhaps id, year, number."""
    low = {str(key).lower().replace(" ", "_"): value for key, value in row.items()}
    prompt = low["problem"] if "problem" in low else low["question"]
    answer = int(str(low["answer"]).strip())
    if not 0 <= answer <= 999:
        raise ValueError(f"answer {answer} is not in 0 to 999")
    year, number = low.get("year"), low.get("problem_number", low.get("problem_idx"))
    name = f"aime-{year}-{low.get('part') or 'I'}-{number}" if year and number else low.get("id")
    record = {"prompt": prompt, "gold": str(answer), "domain": "stem", "verifier": "math"}
    return record | ({"id": str(name)} if name is not None else {})


def _minif2f(row: Row) -> dict[str, Any]:
    """name, split, informal_prefix or informal_stmt, formal_statement, header (Lean 4)."""
    statement = row["formal_statement"]
    if not statement.strip().startswith(("theorem", "lemma", "example")):
        raise ValueError("formal_statement begins with no theorem")
    informal = row.get("informal_stmt") or row.get("informal_prefix", "")
    header = row.get("header", "")
    proved = statement.rstrip().removesuffix("sorry").rstrip()
    return {
        "id": row["name"],
        "prompt": "Complete the proof in Lean 4.\n\n" + header + informal + proved,
        "verifier": "lean",
        "arguments": {"statement": statement, "header": header},
        "domain": "stem",
        "split": row.get("split", ""),
    }


def _livecodebench(row: Row) -> dict[str, Any]:
    """question_content, starter_code, public_test_cases and private_test_cases, metadata.

    Private tests come as JSON, or as base64 of a zlib-compressed pickle of JSON text; the pickle is
    read by a reader that knows texts only, since a pickle can otherwise run code.
    """
    tests = [*_lcb_tests(row["public_test_cases"]), *_lcb_tests(row.get("private_test_cases"))]
    metadata = row.get("metadata") or "{}"
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    name = metadata.get("func_name")
    starter = row.get("starter_code") or ""
    if starter.lstrip().startswith("class Solution") and name and "." not in name:
        name = f"Solution.{name}"
    levels = {"easy": 1, "medium": 2, "hard": 3}
    prompt = row["question_content"]
    prompt += f"\n\nStart from this code:\n```python\n{starter}\n```" if starter else ""
    return {
        "id": str(row["question_id"]),
        "prompt": prompt,
        "verifier": "code",
        "arguments": {"language": "python", "tests": [_as_test(test, name) for test in tests]},
        "domain": "code",
        "level": levels.get(str(row.get("difficulty")), 0),
        "released": str(row.get("contest_date", "")),
        "tags": [str(row.get("platform", "unknown"))],
    }


def _lcb_tests(value: Any) -> list[dict[str, Any]]:
    if not value:
        return []
    if isinstance(value, list):
        return value
    try:
        return json.loads(value)
    except ValueError:
        packed = zlib.decompress(base64.b64decode(value))
        return json.loads(_TextUnpickler(io.BytesIO(packed)).load())


class _TextUnpickler(pickle.Unpickler):
    """Reads texts, numbers and containers of them; any class in the file is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ValueError(f"the pickle asks for {module_name}.{global_name}; only texts are read")


def _as_test(test: Mapping[str, Any], function: str | None) -> dict[str, Any]:
    if test.get("testtype") != "functional":
        return {"stdin": test["input"], "stdout": test["output"]}
    if function is None:
        raise ValueError("functional tests without func_name in metadata")
    args = [json.loads(line) for line in test["input"].split("\n") if line.strip()]
    return {"call": function, "args": args, "returns": json.loads(test["output"])}


def _zebralogic(row: Row) -> dict[str, Any]:
    """id, size ("3*4"), puzzle, solution: header and rows of a table (grid mode).

    The clues are prose, so the task "zebra" of our own cannot check them: the gold is compared by
    the judge.
    """
    header, cells = row["solution"]["header"], row["solution"]["rows"]
    if not cells or any(len(one) != len(header) for one in cells):
        raise ValueError("solution has rows of another length than its header")
    gold = {
        f"House {number}": {h: str(c) for h, c in zip(header[1:], one[1:], strict=True)}
        for number, one in enumerate(cells, 1)
    }
    houses, _, attributes = str(row["size"]).partition("*")
    form = "Answer with one JSON object that gives each house its attributes."
    return {
        "id": row["id"],
        "prompt": f"{row['puzzle']}\n\n{form}",
        "gold": json.dumps(gold, sort_keys=True),
        "verifier": "judge",
        "domain": "logic",
        "level": int(houses) * int(attributes),
    }


def _sudoku(row: Row) -> dict[str, Any]:
    """puzzle_id, title, author, rules, initial_board, solution, rows, cols, visual_elements."""
    board, solution = row["initial_board"], row.get("solution") or ""
    num_rows, num_cols = int(row.get("rows", 9)), int(row.get("cols", 9))
    if len(board) != num_rows * num_cols or len(solution) not in (0, len(board)):
        raise ValueError(f"a board of {len(board)} cells is not {num_rows} x {num_cols}")
    if any(a not in ".0" and solution and a != b for a, b in zip(board, solution, strict=False)):
        raise ValueError("the solution differs from the board")
    lines = "\n".join(board[i : i + num_cols] for i in range(0, len(board), num_cols))
    extra = row.get("visual_elements") or ""
    extra = json.dumps(extra) if not isinstance(extra, str) else extra
    form = "Answer with the digits of all rows, one row after another, without spaces."
    parts = [row.get("rules") or "Normal sudoku rules apply.", extra, lines, form]
    return {
        "id": str(row["puzzle_id"]),
        "prompt": "Solve the puzzle.\n\n" + "\n\n".join(part for part in parts if part),
        **({"gold": solution} if solution else {}),
        "verifier": "math" if solution else "judge",  # a whole number of so many digits
        "domain": "logic",
        "author": str(row.get("author", "")),
    }


def _problems(row: Row) -> dict[str, Any]:
    """Records that are in our form already."""
    if not isinstance(row.get("prompt"), str) and not isinstance(row.get("messages"), list):
        raise ValueError("a record has a prompt or messages")
    return dict(row)


def last_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{}` (or after `\boxed `) of a text; None without one."""
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix(r"\boxed").removeprefix(r"\fbox")
    if not rest.startswith("{"):
        return rest.strip().split("$")[0].split()[0] if rest.strip() else None
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:place].strip()
    return None


FORMATS: dict[str, Format] = {
    "problems": Format(summary="our own: prompt, gold, ...", licence="unknown", read=_problems),
    "gsm8k": Format(summary="question, answer with ####", licence="MIT", read=_gsm8k),
    "math": Format(summary="problem, level, type, boxed solution", licence="MIT", read=_math),
    "aime": Format(summary="problem, answer from 0 to 999", licence="unknown", read=_aime),
    "minif2f": Format(
        summary="name, formal_statement, header (Lean 4)", licence="Apache-2.0", read=_minif2f
    ),
    "livecodebench": Format(
        summary="question_content, public and private tests", licence="unknown", read=_livecodebench
    ),
    "zebralogic": Format(
        summary="size, puzzle, solution (grid)", licence="unknown", read=_zebralogic
    ),
    "sudoku-bench": Format(
        summary="puzzle_id, rules, initial_board, solution", licence="MIT", read=_sudoku
    ),
}
