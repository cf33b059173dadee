import json

import pytest

from loong_jax.errors import ConfigError
from loong_jax.synth.loongenv import candidates
from loong_jax.verifiers.loongbench.domains import DOMAINS


def row(domain, number, **changes):
    """A row in the published shape; domains are spelled as their files spell them."""
    metadata = {
        "license": "MIT", "source": "made", "domain": domain, "name": "made",
        "required_dependencies": ["sympy==1.13.3"], "contributor": "nobody",
    }  # fmt: skip
    return {
        "question": f"{domain}: what is {number} + 1?", "final_answer": str(number + 1),
        "rationale": f"print({number} + 1)", "metadata": metadata,
    } | changes  # fmt: skip


def test_the_twelve_published_domains_are_read(tmp_path):
    spelled = [
        "Advanced Math", "Advanced Physics", "chemistry", "computational biology", "Quant",
        "Loong_Game", "Loong_Graph_Discrete_Math", "Loong_Logic", "Mathematical Programming",
        "Medicine", "Security and Safety", "programming",
    ]  # fmt: skip
    for domain in spelled:
        directory = tmp_path / domain.replace(" ", "_")
        directory.mkdir()
        rows = [row(domain, n) for n in range(12)]
        (directory / "seed_dataset.json").write_text(json.dumps(rows))
    found = candidates.load_seeds([tmp_path])
    assert set(found.by_domain) == set(DOMAINS)
    for name, kept in found.by_domain.items():
        assert len(kept) == 12
        assert len(found.shown(name)) + len(found.held_out(name)) == 12
        assert kept[3].packages == ("sympy",)
        assert kept[3].licence == "MIT"
    assert sum(len(found.held_out(name)) for name in DOMAINS) > 0
    assert candidates.digest_of(found) == candidates.digest_of(candidates.load_seeds([tmp_path]))


def test_rows_that_are_no_seeds_are_counted(tmp_path):
    rows = [
        row("logic", 1), row("logic", 1), row("logic", 2, rationale=" "),
        row("logic", 3, question=""), row("alchemy", 4), row("logic", 5, final_answer=""), [],
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = candidates.load_seeds([path])
    assert [len(kept) for kept in found.by_domain.values()] == [1]
    assert found.skipped == {
        "asked before": 1, "no program": 1, "no question": 1, "domain": 1, "gold": 1, "no object": 1
    }  # fmt: skip


def test_a_line_ends_where_json_lines_do(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row("logic", 1, question="One\u2028two\u0085three?"), ensure_ascii=False)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert len(candidates.load_seeds([path]).by_domain["logic"]) == 1


def test_bad_paths_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        candidates.load_seeds([tmp_path / "none"])
    with pytest.raises(ConfigError, match="holds no seeds"):
        candidates.load_seeds([tmp_path])
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        candidates.load_seeds([tmp_path])
