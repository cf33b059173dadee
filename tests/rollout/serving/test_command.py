"""`loong serve`: what it serves, whom it lets in, and how it ends."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import tokenizers

from loong_jax import cli, recipes
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.rollout.serving import server
from loong_jax.run import convert, serve, sources
from loong_jax.run.serve import ServeOptions

PUBLISHED = Path(__file__).parents[2] / "models" / "moe" / "fixtures" / "published"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A tiny published checkpoint as one of ours, with a tokenizer of the characters it has."""
    directory = tmp_path_factory.mktemp("imported") / "tiny-chat"
    convert.import_hf(PUBLISHED, directory)
    size = json.loads((PUBLISHED / "config.json").read_text())["vocab_size"]
    alphabet = "abhiu\u0120[]0:ROUNDSEAITdn"[: size - 8]  # U+0120 stands for a space
    vocabulary = {character: i + 8 for i, character in enumerate(dict.fromkeys(alphabet))}
    vocabulary["<unk>"] = 0
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_imported_model_is_served_until_sigterm(imported, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    words = f"serve {imported} --port 0 --grpc-port 0 --api-key-file {key} --slots-per-replica 2"
    words += " --context-tokens 64 --prefill-lengths 32 --decode-steps 4"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, "-m", "loong_jax.cli", *words.split()],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        seen = ""
        assert process.stdout is not None
        while "gRPC:" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        address = re.search(r"HTTP: (http://127.0.0.1:\d+/v1)", seen)
        assert address
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "logprobs": True}
        request = urllib.request.Request(
            f"{address[1]}/chat/completions",
            json.dumps(body).encode(),
            {"Authorization": "Bearer secret"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert answer["model"] == "tiny-chat"
        assert 1 <= len(answer["choices"][0]["logprobs"]["content"]) <= 5
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
        assert rest.endswith("stopped\n")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait(30)


def test_a_tokenizer_of_bytes(imported):
    source = sources.find(imported)
    tokenizer = serve.find_tokenizer(source, None, where=imported)
    assert tokenizer.vocab_size == source.config.vocab_size
    tokens = tokenizer.encode("a b")
    assert tokenizer.decode(tokens) == "a b"


def test_other_hosts_need_a_key(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(serve.API_KEY_VARIABLE, raising=False)
    assert cli.main(["serve", str(tmp_path), "--host", "0.0.0.0"]) == 1
    assert "there is no API key" in capsys.readouterr().err
    monkeypatch.setenv(serve.API_KEY_VARIABLE, " ")
    with pytest.raises(ConfigError, match="empty"):
        serve.read_key(ServeOptions(run_dir=tmp_path))
    monkeypatch.setenv(serve.API_KEY_VARIABLE, "k ")
    assert serve.read_key(ServeOptions(run_dir=tmp_path)) == "k"


def test_a_busy_port_is_told_before_anything_is_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve.sources, "find", lambda _: pytest.fail("it was loading"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("--port", "--grpc-port"):
            assert cli.main(["serve", str(tmp_path), "--port", "0", option, str(port)]) == 1
            assert f"127.0.0.1:{port} cannot be had" in capsys.readouterr().err


def test_directories_that_cannot_be_served(tmp_path, capsys):
    with pytest.raises(CheckpointError, match="is no directory"):
        sources.find_weights(tmp_path / "nothing")
    assert cli.main(["serve", str(tmp_path)]) == 1
    assert "model.json" in capsys.readouterr().err


def test_the_last_finished_stage_of_a_run(tmp_path):
    from loong_jax import configs

    configs.open_run(recipes.get_recipe("quickstart")(), tmp_path, recipe="quickstart")
    (tmp_path / "stages" / "sft").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no finished stage"):
        sources.find_weights(tmp_path)
    for name in ("sft", "rl_stem"):
        (tmp_path / "stages" / name / "weights").mkdir(parents=True)
        (tmp_path / "stages" / name / "done.json").write_text("{}")
    assert sources.find_weights(tmp_path) == tmp_path / "stages" / "rl_stem"


def test_shapes_fit_each_other():
    config = ServeOptions(run_dir=Path("x"), cache_length=32, slots_per_replica=4).engine_config()
    assert config.prefill_lengths == (32,)
    assert config.pages is not None
    assert config.pages.num_pages == 4
    sizes = itertools.product(("cache_length", "num_pages", "page_size"), (0, -16))
    for name, value in [("cache_length", 30), *sizes]:
        with pytest.raises(ConfigError, match=f"{name}={value}" + " must be" * (value <= 0)):
            ServeOptions(run_dir=Path("x"), **{name: value}).engine_config()
    for name, value in itertools.product(("port", "grpc_port"), (-1, 65536)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            server.Address(**{name: value})


def test_a_key_file_that_is_no_text(tmp_path):
    (tmp_path / "key").write_bytes(b"k\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        serve.read_key(ServeOptions(run_dir=tmp_path, api_key_file=tmp_path / "key"))
