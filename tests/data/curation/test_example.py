"""The example of docs/how-to/curation.md runs as it is printed, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/curation.md").read_text()


def test_the_example_runs_as_printed(tmp_path):
    script, said = re.search(r"```bash\n(.*?)```.*?```\n(.*?)```", PAGE, re.DOTALL).groups()
    command = f'loong() {{ {sys.executable} -m loong_jax.cli "$@"; }}\n{script}'
    ran = subprocess.run(
        ["bash", "-ec", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    printed = [re.sub(r"^(.{52}).{10}", r"\1", line) for line in ran.stdout.splitlines()]
    *table, last = said.splitlines()
    assert [line.rstrip() for line in printed[: len(table)]] == [line.rstrip() for line in table]
    assert ran.stdout.splitlines()[-1] == last
    files = re.findall(r"^\| `(\w+\.\w+)`(?:, `(\w+\.\w+)`)? \|", PAGE, re.MULTILINE)
    for name in filter(None, (name for pair in files for name in pair)):
        assert (tmp_path / "curated" / name).exists(), name


def test_every_stage_is_on_the_page():
    from loong_jax.data.curation import recipes

    given = recipes.Given(
        against=(Path("a"),), rollouts=Path("b"), rollouts_without_tools=Path("c"),
        embeddings=Path("d"), scorer=Path("e"))  # fmt: skip
    names = {stage.name for recipe in recipes.RECIPES.values() for stage in recipe(given)}
    assert not {name for name in names if f"`{name}`" not in PAGE}
    assert all(f"| `{name}` |" in PAGE for name in recipes.RECIPES)
