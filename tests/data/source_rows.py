"""Ten rows of each published set, in the schemas of their files, with a right and a wrong answer.

The texts are ours; keys, kinds of values and layouts are those of the published files.
"""

# ruff: noqa: E501, RUF001 - rows as they stand in the files

import base64
import json
import pickle
import zlib


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def gsm8k():
    for n in range(10):
        a, b = 1000 + n, 7 * n
        work = f"There are {a}+{b}=<<{a}+{b}={a + b}>>{a + b} eggs."
        row = {"question": f"A hen lays {a} eggs and then {b}. How many?",
               "answer": f"{work}\n#### {a + b:,}" if n % 2 else f"{work}\n#### {a + b}"}  # fmt: skip
        yield row, f"\\boxed{{{a + b}}}", str(a + b + 1)


SOLUTIONS = [
    ("So $\\boxed{\\frac{1}{2}}$.", "1/2", "2"),
    ("First $\\boxed{3}$ is tried. It fails.\n\nThe answer is $\\boxed{5}$.", "5", "3"),
    ("So $x=\\boxed{1}$ or $x=\\boxed{2}$.", "1 or 2", "2"),
    ("The primes are $\\boxed{3}$, $\\boxed{5}$ and $\\boxed{7}$.", "3, 5, 7", "7"),
    ("Thus $x=\\boxed{4}$ and $y=\\boxed{9}$.", "x=4, y=9", "x=9, y=4"),
    ("We find $\\boxed 7$ of them.", "7", "8"),
    ("It is \\fbox{12} by symmetry.", "12", "21"),
    ("The set is $\\boxed{\\{1, 2\\}}$.", "\\{2, 1\\}", "\\{1, 3\\}"),
    ("We get $\\boxed{6}$, which is $\\boxed{6}$ again.", "6", "66"),
    ("The area is $\\boxed{36\\pi}$ square units.", "36\\pi", "36"),
]


def math():
    for n, (solution, right, wrong) in enumerate(SOLUTIONS):
        row = {"problem": f"Solve number {n}.", "level": f"Level {n % 5 + 1}" if n < 9 else "Level ?",
               "type": "Algebra", "solution": solution}  # fmt: skip
        if n % 5 == 4:
            row |= {"subject": "Algebra", "unique_id": f"test/algebra/{n}.json", "level": 2}
            del row["type"]
        yield row, right, wrong


ANSWERS = [("3", "3", "4"), ("\\frac{1}{2}", "0.5", "2"), ("12\\sqrt{3}", "\\sqrt{432}", "12"),
           ("-7", "-7", "7"), ("2^{99}", "2^{99}", "2^{98}"), ("x^2+1", "1+x^2", "x^2"),
           ("1, 2", "2, 1", "1"), ("(3, 4)", "(3,4)", "(4,3)"), ("\\pi", "\\pi", "3"),
           ("1/3", "\\frac13", "1/4")]  # fmt: skip


def hmmt():
    for n, (gold, right, wrong) in enumerate(ANSWERS):
        yield {"problem_idx": n + 1, "problem": f"Find quantity {n}.", "answer": gold,
               "problem_type": ["Algebra", "Number Theory"][: 1 + n % 2]}, right, wrong  # fmt: skip


def big_math():
    for n, (gold, right, wrong) in enumerate(ANSWERS):
        yield {"problem": f"Find number {n}.", "answer": gold, "source": "cn_k12",
               "domain": ["Mathematics -> Algebra -> Other"],
               "llama8b_solve_rate": 0.5 if n % 2 else None}, right, wrong  # fmt: skip


def dapo():
    above = ("Solve the following math problem step by step. The last line of your response should "
             "be of the form Answer: $Answer (without quotes) where $Answer is the answer to the "
             "problem.\n\n")  # fmt: skip
    below = '\n\nRemember to put your answer on its own line after "Answer:".'
    for n in range(10):
        asked = f"How many of the first {n + 40} numbers are even?"
        row = {"data_source": "math_dapo", "ability": "MATH",
               "prompt": [{"content": above + asked + below, "role": "user"}],
               "reward_model": {"ground_truth": str(n // 2 + 20), "style": "rule-lighteval/MATH_v2"},
               "extra_info": {"index": f"9a9b6eb4-{n}"}}  # fmt: skip
        if n % 3 == 2:  # as it was processed later
            row |= {"prompt": asked, "solution": str(n // 2 + 20), "source_prompt": row["prompt"]}
            del row["reward_model"]
        yield row, f"Answer: {n // 2 + 20}", f"{n // 2 + 21}"


def aime():
    yield {"ID": "2024-I-1", "Year": 2024, "Problem Number": 1, "Part": "I", "Question": "Find n.",
           "Answer": "073"}, "73", "37"  # fmt: skip
    yield {"ID": "2023-II-4", "Year": "2023", "Problem Number": "4", "Part": "II",
           "Question": "Find m.", "Answer": "49"}, "049", "50"  # fmt: skip
    yield {"id": 60, "problem": "P", "solution": "So $\\boxed{204}$.", "answer": "204",
           "url": "https://example.org/1", "year": "2024"}, "204", "240"  # fmt: skip
    yield {"problem_idx": 1, "problem": "P", "answer": 70, "problem_type": ["Algebra"]}, "70", "7"
    yield {"question": "Find the angle in degrees.", "answer": "336^\\circ"}, "336", "24"
    yield {"problem": "P", "answer": 27.0, "id": 3, "url": "u"}, "27", "28"
    yield {"problem": "Of AMC.", "answer": 1350.0}, "1350", "350"
    yield {"problem": "Of AMC.", "answer": "-4"}, "-4", "4"
    yield {"problem": "Of AMC.", "answer": "\\frac{3}{4}"}, "0.75", "0.7"
    yield {"question": "P", "answer": "$\\boxed{16,384}$"}, "16384", "16"


def minif2f():
    goal = "theorem t{n} (x : ℝ) (h : x = {n}) : x + 1 = {m}"
    for n in range(10):
        theorem = goal.format(n=n, m=n + 1)
        end = (" := by sorry", " := sorry", " := by\n  sorry", " := by", "")[n % 5]
        row = {"name": f"t{n}", "split": "test", "header": "import Mathlib\n\nopen Real\n\n",
               "informal_prefix": "/-- Show it. -/\n", "formal_statement": theorem + end}  # fmt: skip
        if n in (3, 4):
            row["id"] = row.pop("name")
            row["informal_stmt"] = row.pop("informal_prefix")
        if n in (5, 6, 7):
            above = (
                "import Mathlib\nimport Aesop\n\nset_option maxHeartbeats 400000\n\nopen Real\n\n"
            )
            row["formal_statement"] = above + row["informal_prefix"] + theorem + end
            del row["header"]
        if n == 8:
            row |= {"goal": "x + 1 = 9", "header": None}
        if n == 9:
            row["formal_statement"] = theorem.replace("theorem", "lemma") + end
        yield row, f"by\n  rw [h]\n  norm_num -- {n}", f"by\n  wrong_tactic -- {n}"


PLUS = "class Solution:\n    def plus(self, xs: List[int], n: int) -> List[int]:\n        {}\n"
STARTERS = [
    "class Solution:\n    def plus(self, xs: List[int], n: int) -> List[int]:\n        ",
    "# Definition for a node.\nclass Solution:\n    def plus(self, xs: List[int], n: int) -> List[int]:\n        ",
    "from typing import List\n\nclass Solution:\n    def plus(self, xs, n):\n        ",
]  # fmt: skip


def livecodebench():
    for n in range(10):
        row = {"question_title": f"T{n}", "question_content": f"Add {n} to all.", "platform": "leetcode",
               "question_id": str(3000 + n), "contest_id": "biweekly-1", "starter_code": STARTERS[n % 3],
               "contest_date": "2024-08-01T00:00:00", "difficulty": ("easy", "medium", "hard")[n % 3],
               "metadata": '{"func_name": "plus"}'}  # fmt: skip
        tests = [{"input": f"[1, 2]\n{k}", "output": str([1 + k, 2 + k]), "testtype": "functional"}
                 for k in range(n, n + 2)]  # fmt: skip
        right, wrong = (PLUS.format(f"return [x {sign} n for x in xs]") for sign in "+*")
        if n % 2:
            row |= {"platform": "atcoder", "starter_code": "", "metadata": "{}"}
            tests = [
                {"input": f"{k}\n", "output": f"{k + n}\n", "testtype": "stdin"} for k in (1, 2)
            ]
            right, wrong = f"print(int(input()) + {n})", "print(int(input()) - 1)"
        row["public_test_cases"] = json.dumps(tests[:1])
        row["private_test_cases"] = packed(tests[1:]) if n < 5 else json.dumps(tests[1:])
        yield row, f"```python\n{right}\n```", f"```python\n{wrong}\n```"


def apps():
    for n in range(10):
        given = {"inputs": [f"{k}\n" for k in (1, 2)], "outputs": [f"{k * n}\n" for k in (1, 2)]}
        right, wrong, starter = f"print(int(input()) * {n})", "print(input() + '7')", ""
        if n % 3 == 1:
            given = {"fn_name": "times", "inputs": [[1, n], [2, n]], "outputs": [[n], [2 * n]]}
            right, wrong = (
                "def times(a, b):\n    return a * b",
                "def times(a, b):\n    return [a + b + 1]",
            )
            starter = "def times(a, b):\n\t"
        if n == 5:
            given = {"fn_name": "times", "inputs": [["ab", 2]], "outputs": ["abab"]}
            right, wrong = (f"class Solution:\n    def times(self, a: str, b: int) -> str:\n"
                            f"        return a {sign}" for sign in ("* b", "+ a + a"))  # fmt: skip
            starter = "class Solution:\n    def times(self, a: str, b: int) -> str:\n        "
        if n == 8:  # lines of a text
            given = {"inputs": [["1", "2"]], "outputs": [["3"]]}
            right, wrong = "print(int(input()) + int(input()))", "print(4)"
        yield ({"problem_id": n, "question": f"Multiply by {n}.", "solutions": json.dumps([right]),
                "input_output": json.dumps(given), "starter_code": starter, "url": "https://example.org",
                "difficulty": ("introductory", "interview", "competition")[n % 3]}, right, wrong)  # fmt: skip


def taco():
    for n, (row, right, wrong) in enumerate(apps()):
        row["question"] += " Be quick."
        row |= {"difficulty": ("EASY", "MEDIUM", "MEDIUM_HARD", "HARD", "VERY_HARD")[n % 5], "name": None,
                "raw_tags": "['Maths']", "source": "codechef", "tags": "[]", "skill_types": "[]",
                "time_limit": "2.0 seconds" if n % 2 else None, "date": None, "picture_num": None,
                "memory_limit": "256.0 megabytes" if n % 3 else None,
                "Expected Auxiliary Space": None, "Expected Time Complexity": None}  # fmt: skip
        del row["problem_id"]
        yield row, right, wrong


def codecontests():
    for n in range(10):
        pairs = [(f"{k}\n", f"{k + n}\n") for k in range(3)]

        def tests(some, n=n):
            if n == 9:
                return [{"input": put, "output": out} for put, out in some]
            return {"input": [put for put, _ in some], "output": [out for _, out in some]}

        yield {"name": f"{1500 + n}_A. Sum", "description": f"Add {n}.", "source": 2, "difficulty": 7,
               "public_tests": tests(pairs[:1]), "private_tests": tests(pairs[1:2]),
               "generated_tests": tests(pairs[2:] if n % 2 else []), "is_description_translated": False,
               "solutions": {"language": [3], "solution": ["print(1)"]}, "cf_rating": 800, "cf_tags": [],
               "time_limit": {"seconds": 2, "nanos": 500_000_000} if n else None,
               "memory_limit_bytes": 256_000_000, "input_file": "", "output_file": "",
               }, f"print(int(input()) + {n})", "print(input() + '1')"  # fmt: skip


def arc_agi():
    for n in range(10):

        def grid(k, wide=n + 2):
            return [[(k * i + j) % 10 for j in range(wide)] for i in range(2)]

        pairs = [{"input": grid(k), "output": grid(k)[::-1]} for k in range(3 + (n == 4))]
        num_tests = 2 if n == 4 else 1
        gold = [pair["output"] for pair in pairs[-num_tests:]]
        gold = gold if n == 4 else gold[0]
        row = {"train": pairs[:-num_tests], "test": pairs[-num_tests:]}
        yield row | ({"id": f"{n:08x}"} if n % 2 else {}), json.dumps(gold), json.dumps(gold[::-1])


def zebralogic():
    for n in range(10):
        header = ["House", "Name", "Pet"][: 2 + n % 2]
        rows = [[str(k + 1), ("Ada", "Bo", "Cy")[(k + n) % 3], ("cat", "dog", "emu")[k]][: len(header)]
                for k in range(2 + n % 2)]  # fmt: skip
        answers = [
            json.dumps({f"House {row[0]}": dict(zip(header[1:], row[1:], strict=True)) for row in some})
            for some in (rows, [[a[0], *b[1:]] for a, b in zip(rows, rows[1:] + rows[:1], strict=True)])
        ]  # fmt: skip
        yield {"id": f"lgp-test-{n}", "size": f"{len(rows)}*{len(header) - 1}", "puzzle": f"Houses, {n}.",
               "solution": {"header": header, "rows": rows}, "created_at": "2024-07-03"}, *answers  # fmt: skip


def sudoku_bench():
    whole = "1234341221434321"
    for n in range(10):
        board = "".join("." if k % (n + 2) == 0 else c for k, c in enumerate(whole))
        board = board.replace(".", "0") if n == 3 else board
        row = {"puzzle_id": f"s{n}", "title": "T", "author": "Euler", "rules": "Normal rules." * (n % 2),
               "rows": 4, "cols": 4, "initial_board": board, "solution": whole,
               "visual_elements": [{"shape": "circle"}] if n == 5 else ""}  # fmt: skip
        yield row, whole, whole[::-1][:-1] + "4"


def problems():
    for n in range(10):
        row = {"id": f"p{n}", "prompt": f"What is {n} + 1?", "gold": str(n + 1), "verifier": "math"}
        yield row, str(n + 1), str(n + 2)


ROWS = {
    "problems": problems, "gsm8k": gsm8k, "math": math, "big-math": big_math, "dapo": dapo, "hmmt": hmmt,
    "aime": aime, "minif2f": minif2f, "livecodebench": livecodebench, "apps": apps, "taco": taco,
    "codecontests": codecontests, "arc-agi": arc_agi, "zebralogic": zebralogic,
    "sudoku-bench": sudoku_bench,
}  # fmt: skip
