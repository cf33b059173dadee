"""What is released holds what it needs. `make release` also installs it in a fresh environment."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.docs.reading import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return place


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_the_package_and_its_data(dist):
    (wheel,) = dist.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == tracked("loong_jax")
    assert any(name.endswith(".toml") for name in held)


def test_the_wheel_works_where_nothing_else_of_us_is(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    (tmp_path / "cases.jsonl").write_text(json.dumps({"gold": "1/2", "answer": "0.5"}) + "\n")
    code = (
        "import sys; from loong_jax import cli; assert 'installed' in cli.__file__\n"
        "sys.exit(cli.main('verify math --input cases.jsonl --output out.jsonl'.split()))"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert json.loads((tmp_path / "out.jsonl").read_text())["verdict"] == "correct"


def test_the_sdist_holds_what_a_checkout_is_worked_with(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked("loong_jax", "tests", "tools", "docs", "launch") <= held
    assert {"Makefile", "README.md", "CHANGELOG.md", "pyproject.toml", "mkdocs.yml"} <= held
