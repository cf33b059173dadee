import json
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "loongbench"


@pytest.fixture
def shared_seeds():
    """Rows of a domain of LoongBench, where the corpus is at hand."""

    def rows(domain):
        path = SHARED / f"{domain}.jsonl"
        if not path.exists():
            pytest.skip("the corpus of LoongBench is not on this machine")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return rows
