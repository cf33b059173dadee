"""Published problem sets from their files, in the form of `loong curate` and of `--problems`.

Each reader makes a record of one row in the published schema. Files are JSON, JSON lines or CSV
from a local path; sets that TensorFlow Datasets prepared are read without TensorFlow. Nothing is
downloaded. Where a publisher states no licence it is "unknown", and finding out is the user's.
"""

import base64
import csv
import io
import json
import logging
import pickle
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.errors import ConfigError
from loong_jax.problems import response

logger = logging.getLogger(__name__)
Row = Mapping[str, Any]
MAX_NAMED = 8  # rows that cannot be read, of which one message speaks
_BAD = (LookupError, TypeError, ValueError, AttributeError, RecursionError, zlib.error)
_BLANK = re.compile(r"[_?*.\s\u2026]*|\[?(?:masked|hidden|redacted|tbd|n/?a)\]?", re.IGNORECASE)
_VERL = re.compile(r"\ASolve the following math problem step by step\. The last line[^\n]*\n\n"
                   r"|\n\nRemember to put your answer on its own line after \S+\s*\Z")  # fmt: skip
_BOX = re.compile(r"\\(?:boxed|fbox)")
_LISTED = re.compile(r"[\s$,;]*(?:\\text\{)?\s*(?:and|or)?[\s$,}]*(?:[A-Za-z]\w*\s*=)?[\s$]*")
_INTEGER = re.compile(r"\$?\s*(-?\d[\d,]*)(?:\.0+)?\s*(?:\^?\{?\\circ\}?|\u00b0|degrees?)?\s*\$?")
_LEVELS = {"introductory": 1, "easy": 1, "medium": 2, "interview": 2, "hard": 3, "competition": 3}
_PARSED: dict[str, Callable[[str], Any]] = {
    ".jsonl": lambda text: [line for line in text.split("\n") if line.strip()],
    ".json": json.loads, ".csv": lambda text: csv.DictReader(io.StringIO(text)),
}  # fmt: skip


class Format(NamedTuple):
    """A published schema. `read` gives what of a record is the row's own, or None for no value."""

    summary: str
    licence: str
    verifier: str
    domain: str
    read: Callable[[Row], dict[str, Any]]


def find(name: str) -> Format:
    """The format of this name, however it is spelt; ConfigError for an unknown one."""
    spelt = {known.replace("-", ""): of for known, of in FORMATS.items()}
    if of := spelt.get(re.sub(r"[\W_]", "", name.lower())):
        return of
    raise ConfigError(f"{name!r} is no format. Choose one of: {', '.join(FORMATS)}.")


def load(path: Path, name: str, left_out: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Records of a file or of a directory of files in the format `name`.

    A row that does not have it is left out, and named in `left_out`, else in the log. Raises
    ConfigError for an unknown format, and where no row has it.
    """
    of, bad, number = find(name), [] if left_out is None else left_out, 0
    for number, (place, row) in enumerate(_rows(path), 1):
        known: Any = {"id": f"{name}-{number}", "origin": name, "licence": of.licence}
        known |= {"verifier": of.verifier, "domain": of.domain} if of.verifier else {}
        try:
            row: Any = json.loads(row) if isinstance(row, str) else row
            if of.verifier:
                row = {str(key).lower().replace(" ", "_"): value for key, value in row.items()}
            record = known | {k: v for k, v in of.read(row).items() if v is not None}
            if not isinstance(record.get("prompt", record.get("messages")), str | list):
                raise ValueError("it has no prompt")
            if _BLANK.fullmatch(str(record.get("gold", "given"))):
                raise ValueError("its gold is masked")
            if not record.get("arguments", {}).get("tests", True):
                raise ValueError("it has no tests")
        except _BAD as error:
            keys = sorted(map(str, row))[:12] if isinstance(row, dict) else f"{row!r:.40}"
            bad.append(f"{place} is not in the format {name!r} ({error!r}): it has {keys}.")
            continue
        yield record
    said = "\n".join([*bad[:MAX_NAMED], f"{len(bad)} rows of {path} are left out."])
    if len(bad) == number:
        raise ConfigError(f"no row of {path} is in the format {name!r}.\n{said}")
    if bad and left_out is None:
        logger.warning(said)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows and their places in JSON, JSON-lines and CSV files, a directory of them, a TFDS set."""
    if (path / "dataset_info.json").exists():
        import tensorflow_datasets as tfds

        builder: Any = tfds.builder_from_directory(str(path))
        for split in builder.info.splits:
            for number, row in enumerate(builder.as_data_source(split=split), 1):
                row = json.dumps(
                    row, default=lambda x: x.decode() if type(x) is bytes else x.tolist()
                )
                yield f"row {number} of {split} of {path}", {"_split": split, **json.loads(row)}
        return
    files = sorted(p for p in path.rglob("*") if p.suffix in _PARSED) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} holds no .json, .jsonl or .csv. Name another directory.")
    for file in files:
        try:
            found = _PARSED.get(file.suffix, _PARSED[".jsonl"])(
                file.read_text(encoding="utf-8-sig")
            )
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}. Name another file.") from None
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON ({error}). Convert it first.") from None
        found = found.get("rows", [found]) if isinstance(found, dict) else found
        for number, row in enumerate(found, 1):
            if isinstance(row, dict) and "row" in row:  # as a server of rows says
                row = row["row"]
            named = {"_file": file.relative_to(path).as_posix()} if file != path else {}
            yield f"row {number} of {file}", named | row if isinstance(row, dict) else row


def _maths(row: Row) -> dict[str, Any]:
    """Problem and answer under any of their published names, or an answer in a solution's boxes."""
    prompt = row.get("problem") or row.get("question") or row["prompt"]
    solution = row.get("solution")
    if isinstance(prompt, list):
        prompt = "\n".join(message["content"] for message in prompt)
    given = [row.get("answer"), row.get("final_answer"), row.get("expected_answer")]
    given += [(row.get("reward_model") or {}).get("ground_truth"), boxed(solution or "")]
    gold = next((one for one in given if one not in (None, "")), solution)
    if gold is None or (gold is solution and len(gold.split()) > 1):  # else it is the answer alone
        raise ValueError("there is no answer, and the solution has no box")
    gold = [int(gold)] if isinstance(gold, float) and gold.is_integer() else gold
    level = str(row.get("level") or "").removeprefix("Level ")
    kind = row.get("type") or row.get("subject") or row.get("problem_type") or row.get("domain")
    return {"id": row.get("unique_id"), "prompt": _VERL.sub("", prompt), "rationale": solution,
            "gold": ", ".join(map(str, gold)) if isinstance(gold, list) else str(gold).strip(),
            "tags": kind if isinstance(kind, list) else [kind or "unknown"],
            "level": int(level) if level.isdigit() else 0}  # fmt: skip


def boxed(text: str) -> str | None:
    r"""The last `\boxed{}` (or `\boxed `) of a text; None without one, or where it does not end.

    Boxes that a sentence lists, as in `x=\boxed{1}` or `x=\boxed{2}`, are one answer: `1, 2`.
    """
    found: list[tuple[str, str]] = []  # the name before a box, and what it holds
    last = 0
    for box in response.boxes(text):
        if not _LISTED.fullmatch(text, last, box.start):
            found = []
        name = re.search(r"(\w+)\s*=\s*\$?\Z", text[max(0, box.start - 40) : box.start])
        found, last = [*found, (name[1] if name else "", box.content)], box.end
    if _BOX.search(text, last):
        return None
    are_told = len({name for name, _ in found if name}) == len(found) > 1
    said = [f"{name}={held}" if are_told else held for name, held in found]
    return ", ".join(dict.fromkeys(said)) or None


def _gsm8k(row: Row) -> dict[str, Any]:
    """question, answer: reasoning with `<<3+4=7>>` marks and the number after `####`."""
    reasoning, gold = row["answer"].rsplit("####", 1)
    return {"prompt": row["question"], "gold": gold.strip().replace(",", ""),
            "rationale": reasoning.strip()}  # fmt: skip


def _aime(row: Row) -> dict[str, Any]:
    """problem (or Question) and answer; with a year and a number an integer from 0 to 999."""
    answer = boxed(str(row["answer"])) or str(row["answer"]).strip()
    if whole := _INTEGER.fullmatch(answer):
        answer = str(int(whole[1].replace(",", "")))
    name, number = row.get("id"), row.get("problem_number", row.get("problem_idx"))
    if row.get("year") and number:
        name = f"aime-{row['year']}-{row.get('part') or 'I'}-{number}"
        if not (answer.isdecimal() and int(answer) <= 999):  # others, such as AMC's, may be
            raise ValueError(f"answer {answer} is not in 0 to 999")
    return _maths({**row, "answer": answer}) | {"id": None if name is None else str(name)}


def _minif2f(row: Row) -> dict[str, Any]:
    """name or id, informal_prefix or informal_stmt, formal_statement, header (Lean 4)."""
    theorem = r"(?m)^[ \t]*((?:theorem|lemma)\b)"
    above, found, stated = re.split(theorem, row["formal_statement"], maxsplit=1)
    stated = re.sub(r"\s*:=\s*(?:by\s*)?(?:sorry\s*)?\Z", "", found + stated)
    header, *comments = re.split(r"(?s)(/--.*?-/\n?)", (row.get("header") or "") + above)
    informal = row.get("informal_stmt") or row.get("informal_prefix") or "".join(comments)
    return {"id": row["name"] if "name" in row else row["id"], "split": row.get("split") or "",
            "prompt": f"Complete the proof in Lean 4.\n\n{header}{informal}{stated} := by",
            "arguments": {"statement": f"{stated} := by sorry", "header": header}}  # fmt: skip


class _TextUnpickler(pickle.Unpickler):
    """Reads texts, numbers and containers of them; any class in the file is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ValueError(f"the pickle asks for {module_name}.{global_name}; only texts are read")


def _json(value: Any) -> Any:
    """Decodes a text: JSON, or base64 of a zlib-compressed pickle of JSON."""
    if not isinstance(value, str) or not value.strip():
        return value or {}
    if value.strip()[0] in "[{":
        return json.loads(value)
    return json.loads(_TextUnpickler(io.BytesIO(zlib.decompress(base64.b64decode(value)))).load())


def _program(row: Row) -> dict[str, Any]:
    """A statement, perhaps with starter code, and tests, as one of four sets has them."""
    given, starter = _json(row.get("input_output")), row.get("starter_code") or ""
    name = given.get("fn_name") or _json(row.get("metadata")).get("func_name")
    if name and "." not in name and re.search(r"(?m)^class Solution\b", starter):
        name = f"Solution.{name}"
    tests = []
    for some in (given, *(_json(row[key]) for key in row if re.search("_test(s|_cases)$", key))):
        if isinstance(some, dict):
            puts, outs = (some.get(f"{k}s", some.get(k, [])) for k in ("input", "output"))
            some = [{"input": a, "output": b} for a, b in zip(puts, outs, strict=True)]
        for put, out, kind in ((t["input"], t["output"], t.get("testtype")) for t in some):
            if kind != "functional" and "fn_name" not in given:
                lines = ["\n".join(map(str, x)) if isinstance(x, list) else x for x in (put, out)]
                tests.append({"stdin": lines[0], "stdout": lines[1]})
                continue
            if name is None:
                raise ValueError("functional tests without func_name in metadata")
            args = map(json.loads, re.findall(".*\\S.*", put)) if isinstance(put, str) else put
            may = [out, out[0]] if isinstance(out, list) and len(out) == 1 else [out]
            value = {"returns": json.loads(str(out))} if kind else {"returns_any": may}
            tests.append({"call": name, "args": [*args], **value})
    if isinstance(limit := row.get("time_limit"), dict):
        limit = limit.get("seconds", 0) + limit.get("nanos", 0) / 1e9
    memory = row.get("memory_limit", (row.get("memory_limit_bytes") or 0) / 2**20)
    limits = {key: float(found[0]) for key, one in (("time_limit_s", limit), ("memory_mb", memory))
              if (found := re.match(r"\d+(?:\.\d+)?", str(one))) and float(found[0])}  # fmt: skip
    name = row.get("question_id", row.get("problem_id", row.get("name")))
    prompt = row.get("question_content") or row.get("question") or row["description"]
    prompt += f"\n\nStart from this code:\n```python\n{starter}\n```" if starter.strip() else ""
    return {"id": None if name is None else str(name), "prompt": prompt,
            "arguments": {"language": "python", "tests": tests[:2000]} | limits,
            "level": _LEVELS.get(str(row.get("difficulty")).lower().split("_")[-1], 0),
            "released": row.get("contest_date"),
            "tags": [str(row.get("platform") or row.get("source") or "unknown")]}  # fmt: skip


def _arc(row: Row) -> dict[str, Any]:
    """train and test: pairs of grids, input and output; the outputs of the tests are the gold."""
    train, gold = row["train"], [one["output"] for one in row["test"]]
    if not gold or not all(cell in range(10) for grid in gold for line in grid for cell in line):
        raise ValueError("an output of the tests is no grid of digits")
    parts = ["Find the rule that makes each output of its input."]
    for number, one in enumerate([*train, *row["test"]], 1):
        for side in ("input", "output")[: 2 if number <= len(train) else 1]:
            lines = "\n".join(" ".join(map(str, line)) for line in one[side])
            parts.append(f"{side.capitalize()} {number}:\n{lines}")
    parts.append("Answer with the output of the last input as a list of rows: [[1, 0], [0, 1]].")
    if len(gold) > 1:
        parts[-1] = f"Answer with a list of the outputs of the last {len(gold)} inputs, as rows."
    name = row.get("id") or row.get("task_id") or row.get("_file", "").removesuffix(".json")
    return {"id": str(name) if name else None, "prompt": "\n\n".join(parts),
            "gold": json.dumps(gold if len(gold) > 1 else gold[0]),
            "arguments": {"domain": "logic"}}  # where literals are compared exactly  # fmt: skip


def _zebralogic(row: Row) -> dict[str, Any]:
    """id, size ("3*4"), puzzle, solution: header and rows. Its clues are prose: for a judge."""
    header, cells = row["solution"]["header"], row["solution"]["rows"]
    if not cells or any(_BLANK.fullmatch(str(cell)) for one in cells for cell in one):
        raise ValueError("the solution is masked")
    gold = {f"House {number}": dict(zip(header[1:], map(str, one[1:]), strict=True))
            for number, one in enumerate(cells, 1)}  # fmt: skip
    houses, _, attributes = str(row["size"]).partition("*")
    form = "\n\nAnswer with one JSON object that gives each house its attributes."
    return {"id": row["id"], "prompt": row["puzzle"] + form, "level": int(houses) * int(attributes),
            "gold": json.dumps(gold, sort_keys=True)}  # fmt: skip


def _sudoku(row: Row) -> dict[str, Any]:
    """puzzle_id, title, author, rules, initial_board, solution, rows, cols, visual_elements."""
    board, solution = row["initial_board"], row.get("solution") or ""
    num_rows, num_cols = (int(row.get(side, 9)) for side in ("rows", "cols"))
    pairs = zip(board, solution or board, strict=True)
    if len(board) != num_rows * num_cols or any(a not in ".0" and a != b for a, b in pairs):
        raise ValueError(f"no board of {num_rows} x {num_cols}, or its solution differs from it")
    lines = "\n".join(board[i : i + num_cols] for i in range(0, len(board), num_cols))
    extra = row.get("visual_elements")
    parts = ["Solve the puzzle.", row.get("rules") or "Normal sudoku rules apply.",
             json.dumps(extra) if extra and not isinstance(extra, str) else extra, lines,
             "Answer with the digits of all rows, one after another, without spaces."]  # fmt: skip
    return {"id": str(row["puzzle_id"]), "prompt": "\n\n".join(filter(None, parts)),
            "gold": solution or None, "verifier": "math" if solution else "judge",
            "author": str(row.get("author", ""))}  # fmt: skip


_M, _C, _L = ("math", "stem"), ("code", "code"), ("judge", "logic")
FORMATS: dict[str, Format] = {
    "problems": Format("our own: prompt, gold, ...", "unknown", "", "", dict),
    "gsm8k": Format("question, answer with ####", "MIT", *_M, _gsm8k),
    "math": Format("problem, level, type, answer or boxed solution", "MIT", *_M, _maths),
    "big-math": Format("problem, answer, source, domain", "Apache-2.0", *_M, _maths),
    "dapo": Format("messages, reward_model with ground_truth", "Apache-2.0", *_M, _maths),
    "hmmt": Format("problem_idx, problem, answer", "CC-BY-NC-SA-4.0", *_M, _maths),
    "aime": Format("problem, answer from 0 to 999, and their like", "unknown", *_M, _aime),
    "minif2f": Format("formal_statement, header", "Apache-2.0", "lean", "stem", _minif2f),
    "livecodebench": Format("public and private tests", "unknown", *_C, _program),
    "apps": Format("question, starter_code, input_output", "MIT", *_C, _program),
    "taco": Format("question, input_output, limits", "Apache-2.0", *_C, _program),
    "codecontests": Format("description, three kinds of tests", "CC-BY-4.0", *_C, _program),
    "arc-agi": Format("train, test: grids", "Apache-2.0", "loongbench", "logic", _arc),
    "zebralogic": Format("size, puzzle, solution (grid)", "unknown", *_L, _zebralogic),
    "sudoku-bench": Format("rules, initial_board, solution", "MIT", *_L, _sudoku),
}
