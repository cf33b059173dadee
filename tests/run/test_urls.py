"""Checkpoints that fsspec reads, in every command: read in place, by ranges, and named as given."""

import dataclasses
import json
import pickle

import fsspec
import jax
import numpy as np
import pytest

from loong_jax import cli, configs, options, recipes
from loong_jax.data import json_files
from loong_jax.errors import CheckpointError
from loong_jax.merge import checkpoints
from loong_jax.merge.checkpoints import MergeConfig
from loong_jax.models.families import family_of
from loong_jax.remote import RemotePath
from loong_jax.run import choosing, serve, sources, starting, texts
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny_hf

URL = "memory://bucket/model"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    directory = tmp_path_factory.mktemp("published") / "model"
    tiny_hf.write_qwen2(directory)
    memory = fsspec.filesystem("memory")
    for path in directory.iterdir():
        memory.pipe_file(f"/bucket/model/{path.name}", path.read_bytes())
    yield directory
    memory.rm("/bucket", recursive=True)


@pytest.fixture
def url(published, monkeypatch):
    """The checkpoint's, of which no file of weights is read whole."""
    read = RemotePath.read_bytes

    def small(self):
        assert self.suffix != ".safetensors"
        return read(self)

    monkeypatch.setattr(RemotePath, "read_bytes", small)
    return RemotePath(URL)


def bytes_in(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_run_names_a_url_as_it_was_given(tmp_path):
    words = ["--start-from", "gs://bucket/model/", "--tokenizer=s3://b/tokenizer.json"]
    chosen = options.parse_train("distill", "", recipes.get_recipe("distill")(), words)
    recipe = chosen.config
    assert recipe.start_from == RemotePath("gs://bucket/model")
    assert (recipe.tokenizer, recipe.teacher) == (RemotePath("s3://b/tokenizer.json"), None)
    configs.open_run(recipe, tmp_path, recipe=recipe.name)
    kept = json.loads((tmp_path / "config.json").read_text())["config"]["start_from"]
    assert kept == {"_kind": "path", "value": "gs://bucket/model"}
    again = choosing.to_run(None, ["--run-dir", str(tmp_path)]).config
    assert again.start_from == recipe.start_from
    assert configs.open_run(again, tmp_path) == []
    assert pickle.loads(pickle.dumps(recipe)).start_from == recipe.start_from


def test_weights_go_to_a_mesh_and_what_travels_with_them_to_a_run(url, published, tmp_path):
    found, expected = sources.find(url), sources.find(published)
    assert (found.weights, found.files) == (url, url)
    assert (found.config, found.hf_config) == (expected.config, expected.hf_config)
    rules = ShardingRules(mesh=make_mesh(fsdp=2, tensor=2))
    _, template = family_of(found.config).abstract_weights(found.config, rules)
    there, here = (starting.load(p, found.config, template) for p in (url, published))
    jax.tree.map(np.testing.assert_array_equal, there, here)
    sources.keep_files(found, tmp_path / "there")
    sources.keep_files(expected, tmp_path / "here")
    assert bytes_in(tmp_path / "there") == bytes_in(tmp_path / "here")
    assert "tokenizer.json" in bytes_in(tmp_path / "there")


def test_tokens_and_template_are_read_there(url, published):
    recipe = starting.with_given_model(
        dataclasses.replace(recipes.get_recipe("sft")(), start_from=published)
    )
    given = sources.find(url)
    for place in (url, url / "tokenizer.json"):
        found = sources.tokenizer_of(given.config, given.hf_config, place, where="here")
        asked = [{"role": "user", "content": "1+1? \u00e9\u4e8c"}]
        local = texts.texts_of(recipe).tokenizer
        assert found.prompt_ids(asked) == local.prompt_ids(asked)
        assert (found.end_ids, found.bos_id) == (local.end_ids, local.bos_id)
    chosen = options.parse(
        serve.ServeOptions, "serve", [URL, "--tokenizer", f"{URL}/tokenizer.json"]
    )
    found = serve.find_tokenizer(given, chosen.tokenizer, where=chosen.run_dir)
    assert found.prompt_ids(asked) == local.prompt_ids(asked)


def test_import_and_merge(url, published, tmp_path):
    for name, source in (("there", URL), ("here", str(published))):
        assert cli.main(["import-hf", source, str(tmp_path / name)]) == 0
        words = ["--base", source, "--experts", source, str(published), "--names", "a", "b"]
        assert cli.main(["merge", "linear", *words, "--output", str(tmp_path / f"m-{name}")]) == 0
    there, here = (checkpoints.load_weights(tmp_path / name) for name in ("there", "here"))
    jax.tree.map(np.testing.assert_array_equal, there, here)
    merged, local = bytes_in(tmp_path / "m-there"), bytes_in(tmp_path / "m-here")
    assert json.loads(merged.pop("fusion.json"))["base"] == URL
    del local["fusion.json"]
    assert merged == local
    ours = MergeConfig(base=tmp_path / "here", experts=(url,), output=tmp_path / "mixed")
    with pytest.raises(CheckpointError, match=f"{URL} is a URL, and checkpoints of ours"):
        checkpoints.merge_checkpoints(ours)


def test_eval(url, tmp_path):
    mine = json_files.write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "1+1?", "gold": "2"}])
    words = ["--problems", str(mine), "--samples", "1", "--k", "1", "--max-new-tokens", "4"]
    words += ["--num-slots", "4", "--num-verifiers", "1", "--json", str(tmp_path / "all.json")]
    assert cli.main(["eval", URL, *words]) == 0
    assert json.loads((tmp_path / "all.json").read_text())["weights"] == URL


@pytest.mark.slow
def test_a_run_starts_at_a_url_and_goes_on_by_its_directory_alone(url, published, tmp_path):
    said = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    chat = json_files.write_jsonl(tmp_path / "chat.jsonl", [{"messages": said}] * 8)
    words = ["--data", str(chat), "--sft.num-steps", "2", "--sft.rows", "2"]
    for name, source in (("there", URL), ("here", str(published))):
        run_dir = ["--run-dir", str(tmp_path / name)]
        assert cli.main(["train", "sft", "--start-from", source, *words, *run_dir]) == 0
    there, here = (checkpoints.load_weights(tmp_path / n / "stages/sft") for n in ("there", "here"))
    jax.tree.map(np.testing.assert_array_equal, there, here)
    assert (tmp_path / "there" / sources.KEPT / "tokenizer.json").exists()
    done = tmp_path / "there/stages/sft/done.json"
    done.unlink()
    assert cli.main(["train", "--run-dir", str(tmp_path / "there")]) == 0
    assert done.exists()


class Locked(fsspec.AbstractFileSystem):
    """Lets nobody in, with an error of its own on several lines."""

    protocol = "locked"

    def info(self, path, **kwargs):
        raise RuntimeError("no\ncredentials")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("nowhere://x", r"nowhere://x cannot be read: .*Install the package .* nowhere:// with"),
        (f"{URL}/none", r"memory://bucket/model/none does not exist\. Name what is there"),
        ("locked://x", r"locked://x cannot be read: RuntimeError: no credentials\. Correct that"),
    ],
)
@pytest.mark.parametrize(
    "words", ["train sft --start-from", "serve", "eval", "import-hf", "merge ties --base"]
)
def test_a_url_that_cannot_be_read_is_told_in_one_line(published, words, place, told, capsys):
    fsspec.register_implementation("locked", Locked, clobber=True)
    assert cli.main([*words.split(), place]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises(CheckpointError, match=told):
        raise CheckpointError(line)


def test_a_url_holds_a_checkpoint_as_hugging_face_has_it(published):
    fsspec.filesystem("memory").pipe_file("/bucket/ours/model.json", b"{}")
    with pytest.raises(CheckpointError, match=r"ours holds no config\.json.*published layout"):
        sources.find(RemotePath("memory://bucket/ours"))
