"""The page: whole, self-contained, safe, honest, and drawn from whatever is there."""

import html.parser
import json
import re
import shutil

import pytest

from loong_jax.data import json_files
from loong_jax.errors import LoongError
from loong_jax.eval import compare
from loong_jax.report import html_parts, page, results, training
from loong_jax.report.run_record import label_of, read_run

VOID = {"meta", "br", "link", "path", "use", "rect", "line"}


class Checker(html.parser.HTMLParser):
    """Every element is closed in order, and nothing points outside the page."""

    def __init__(self):
        super().__init__()
        self.open, self.anchors, self.links, self.text = [], set(), set(), []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "iframe", "img", "link")
        for name, value in attributes:
            if name in ("href", "src", "xlink:href"):
                assert value.startswith("#"), (tag, name, value)
                if tag == "a":
                    self.links.add(value[1:])
            if name == "id":
                self.anchors.add(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check(text):
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert checker.links <= checker.anchors
    assert "nan" not in re.findall(r"\b\w+\b", " ".join(checker.text).lower())
    assert not re.search(r"url\((?!#)", text)
    return checker


@pytest.fixture(scope="module")
def written(synthetic_run, tmp_path_factory):
    """A run whose report has been written once."""
    run_dir = shutil.copytree(synthetic_run, tmp_path_factory.mktemp("written") / "run")
    assert page.write_report(run_dir, wall_s=754.0, peak_gb=3.21) == run_dir / "report.html"
    return run_dir


def test_the_whole_page(written):
    run_dir = written
    text = (run_dir / "report.html").read_text()
    checker = check(text)
    assert checker.anchors >= {
        "recipe", "models", "gains", "learning", "asynchrony", "fusion", "rollouts", "tickets",
        "run", "reading",
    }  # fmt: skip
    assert text.count('<article class="rollout"') == 10
    assert "what is 3 + 5 &lt;b&gt;?&lt;/b&gt;" in text  # a prompt cannot write HTML
    words = " ".join(checker.text)
    for piece in ("12\u202fmin 34\u202fs", "3.21 GB", "namespaces", "Every expert gained"):
        assert piece in words
    assert str(run_dir) not in text
    assert (run_dir / "headline.png").read_bytes().startswith(b"\x89PNG")
    assert len(text) < 3_000_000


def test_figures_on_the_page_are_those_of_the_summary(written):
    text = (written / "report.html").read_text()
    figures = json.loads((written / "summary.json").read_text())
    for domain in ("stem", "logic", "code"):
        gain = figures["gains"]["over_sft"][f"rl_{domain}"][domain]
        assert f"{100 * gain['gain']:+.1f}" in text
        assert f"{100 * figures['stages']['fused'][domain]['pass@1']:.1f}" in text


def test_the_fusion_shows_what_was_measured_and_which_setting_was_chosen(written):
    record = json_files.read_json(written / "stages" / "fused" / "fusion.json")
    table, grid = re.findall(r"<table.*?</table>", str(training.fusion_report(read_run(written))))
    for name in ("rl_stem", "rl_logic", "rl_code"):
        assert label_of(name) in table
        assert html_parts.percent(record["global"]["erased"][name]) in table
        assert html_parts.number(record["global"]["norm"][name]) in table
    assert html_parts.number(record["global"]["cosine"][0][1], 3) in table
    assert grid.count("<tr") == 1 + len(record["grid"]) == 9
    (chosen,) = re.findall('<tr class="total">(.*?)</tr>', grid)
    assert record["chosen"]["scores"]["stem"] == max(p["scores"]["stem"] for p in record["grid"])
    for value in (*record["chosen"]["scores"].values(), record["chosen"]["scale"]):
        assert html_parts.number(value, 3) in chosen


def test_a_control_says_so_first(run_dir):
    for stage in ("rl_logic", "rl_code", "fused", "general"):
        shutil.rmtree(run_dir / "stages" / stage)
    text = page.write_report(run_dir, control="noise reward").read_text()
    assert text.index("This run is a control: noise reward") < text.index('class="lead"')


@pytest.mark.parametrize("keep", [["sft"], ["sft", "rl_stem"], ["rl_stem"]])
def test_a_run_that_is_not_finished(run_dir, keep):
    for stage in (run_dir / "stages").iterdir():
        if stage.name not in keep:
            shutil.rmtree(stage)
    (run_dir / "gains.json").unlink()
    if keep == ["sft", "rl_stem"]:
        compare.write_gains(run_dir)
        (run_dir / "stages" / "rl_stem" / "done.json").unlink()
        with (run_dir / "stages" / "rl_stem" / "metrics.jsonl").open("a") as file:
            file.write('{"stage": "rl_st')
    check(page.write_report(run_dir).read_text())


def test_a_recipe_of_two_stages_has_a_page_of_two(run_dir):
    stages = run_dir / "stages"
    for name in ("rl_logic", "rl_code", "fused", "general"):
        shutil.rmtree(stages / name)
    (stages / "rl_stem").rename(stages / "rl")
    json_files.write_json(run_dir / "config.json", {"config": {"stages": {"sft": {}, "rl": {}}}})
    compare.write_gains(run_dir)
    words = " ".join(check(page.write_report(run_dir).read_text()).text)
    gain = json_files.read_json(run_dir / "gains.json")["over_sft"]["rl"]["stem"]["gain"]
    assert f"{100 * gain:+.1f} in stem" in words
    assert "not run" not in words
    assert "miniature" not in words


def test_stages_that_only_began(run_dir):
    for path in run_dir.glob("stages/*/*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (run_dir / "gains.json").unlink()
    checker = check(page.write_report(run_dir).read_text())
    assert "loong report" in " ".join(checker.text)


def test_an_empty_directory_is_refused(tmp_path):
    with pytest.raises(LoongError, match="holds no stages"):
        page.write_report(tmp_path)


def with_gains(run_dir, gains, fused=None):
    """A run whose gains are the given (gain, low, high) by domain."""
    table = {
        "over_sft": {
            f"rl_{d}": {d: {"gain": g, "ci95": [low, high], "n": 1}}
            for d, (g, low, high) in gains.items()
        },
        "fused_minus_expert": {
            d: {"gain": g, "ci95": [g, g], "n": 1} for d, g in (fused or {}).items()
        },
    }
    json_files.write_json(run_dir / "gains.json", table)
    return results.headline(read_run(run_dir))


def test_the_headline_claims_no_more_than_the_intervals(run_dir):
    good = with_gains(run_dir, {"stem": (0.2, 0.15, 0.25), "code": (0.3, 0.2, 0.4)},
                      {"stem": -0.031, "code": 0.0})  # fmt: skip
    assert good == (
        "Every expert gained points of pass@1 on held-out problems: +20.0 in stem and +30.0 in "
        "code. One fused model stays within 3.1 points of each of them."
    )
    mixed = with_gains(run_dir, {"stem": (0.2, 0.1, 0.3), "logic": (0.02, -0.01, 0.05),
                                 "code": (-0.1, -0.2, -0.05)}, {"stem": -0.2})  # fmt: skip
    assert "Every" not in mixed
    assert "No measurable change in logic." in mixed
    assert "RL lost: \u221210.0 in code points." in mixed or "lost" in mixed
    assert "The fused model loses 20.0 points in stem." in mixed
    none = with_gains(run_dir, {"stem": (0.01, -0.01, 0.02)})
    assert none == "No measurable change in stem."
    assert "No expert has been evaluated" in with_gains(run_dir, {})


def test_rollouts_are_chosen_by_rule(run_dir):
    chosen = training.choose(read_run(run_dir))
    assert len(chosen) == 10
    assert {r["domain"] for r in chosen[:3]} == {"stem", "logic", "code"}
    stem = [r for r in chosen if r["domain"] == "stem"]
    outcomes = [r["outcome"] for r in stem]
    assert outcomes[:2] == ["correct", "wrong"]
    assert len({r["uid"] for r in chosen[:6]}) == 6
    assert chosen == training.choose(read_run(run_dir))


def test_how_figures_are_written():
    assert html_parts.percent(0.3125) == "31.2\u202f%"
    assert html_parts.points(-0.0004) == "0.0"
    assert html_parts.points(-0.04) == "\u22124.0"
    assert html_parts.points(None) == html_parts.ABSENT
    assert html_parts.interval([None, 1]) == ""
    assert html_parts.interval([-0.1, 0.2], html_parts.points) == "[\u221210.0, +20.0]"
    assert html_parts.duration(59.6) == "60\u202fs"
    assert html_parts.escape('<a&">') == "&lt;a&amp;&quot;&gt;"
    assert html_parts.without_paths({"a": ["/root/x", "b/c"]}) == {"a": ["(path)", "b/c"]}


def test_controls_beside_the_real_run(tmp_path, make_run):
    flat = dict.fromkeys(("sft", "rl_stem", "rl_logic", "rl_code"), (0.31, 0.36, 0.28))
    better = {**flat, "rl_stem": (0.6, 0.36, 0.28), "rl_logic": (0.31, 0.7, 0.28),
              "rl_code": (0.31, 0.36, 0.6)}  # fmt: skip
    real = make_run(tmp_path / "real", skill=better, num_problems=60, num_steps=2)
    noise = make_run(tmp_path / "noise", skill=flat, num_problems=60, num_steps=2)
    controls = {"noise reward": noise}
    compare.write_controls(tmp_path / "controls", real, controls)
    path = page.write_controls(tmp_path / "controls", {"real run": real, **controls})
    checker = check(path.read_text())
    words = " ".join(checker.text)
    assert "Noise reward gains in no domain; the real run beats it everywhere." in words


def test_figures_of_pass_at_k_have_the_k_that_was_measured(run_dir):
    for path in (run_dir / "stages").glob("*/evaluation.json"):
        path.write_text(path.read_text().replace("pass@16", "pass@8"))
    run = read_run(run_dir)
    for section in (results.cards, results.gains_table, results.evaluation_table):
        assert "pass@8" in section(run)
        assert "pass@16" not in section(run)


def with_samples(run_dir, **changes):
    """The run with these changes in every sample of its stage for STEM, read."""
    path = run_dir / "stages" / "rl_stem" / "rollouts" / "train.jsonl"
    json_files.write_jsonl(path, [record | changes for record in json_files.read_jsonl(path)])
    return read_run(run_dir)


def test_odd_characters_and_special_tokens_of_a_sample_are_seen(run_dir):
    odd = "<|im_start|>café 数 👩\u200d🔬 \u202egnp.exe \x1b[2J\x00 \ud83d <think>"
    text = training.rollouts(with_samples(run_dir, text=odd, answer=None))
    seen = "café 数 👩\u200d🔬 ⟨U+202E⟩gnp.exe ⟨U+001B⟩[2J⟨U+0000⟩ ⟨U+D83D⟩"
    assert f"&lt;|im_start|&gt;{seen} &lt;think&gt;" in text
    check(text)
    assert text.encode()  # no half of a surrogate pair is left


def test_the_two_styles_of_thinking_are_explained_where_they_are_shown(run_dir):
    assert "hurried" not in training.rollouts(read_run(run_dir))
    run = with_samples(run_dir, thinking="~013~240", answer="3")
    assert "with ~ is hurried" in training.rollouts(run)
