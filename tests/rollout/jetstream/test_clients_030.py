"""JetStream's git 29329e8 ("0.3.0"): its tests accept our engine, its clients our server.

    make test-jetstream JETSTREAM_CHECKOUT=path/to/JetStream

Never released, so it cannot be installed: the variable names a checkout. Its benchmark client asks
for nltk, evaluate, rouge-score, pandas and scikit-learn beside the extra `peers`. Of its tests,
those of LoRA are left out, which we do not have; each server they start has an adapter store.
"""

import dataclasses
import os
import re
from pathlib import Path

import jax
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from tests.doubles import tiny
from tests.processes import ROOT, run_python
from tests.rollout.serving import live

CHECKOUT = os.environ.get("JETSTREAM_CHECKOUT", "")
LLAMA_TOKENIZER = "jetstream/tests/engine/external_tokenizers/llama2/tokenizer.model"
VOCAB_SIZE = 32_000  # of that tokenizer, with which the benchmark client encodes

pytestmark = [
    pytest.mark.peers,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CHECKOUT, reason="JETSTREAM_CHECKOUT names no checkout of JetStream"),
]


class LlamaSized(AsciiTokenizer):
    vocab_size, pad_id, bos_id, eos_id = VOCAB_SIZE, 0, 1, 2
    end_ids = (eos_id,)

    def encode(self, text):
        return [ord(character) % VOCAB_SIZE for character in text]

    def decode(self, tokens):
        return "".join(chr(33 + int(token) % 90) for token in tokens)


@pytest.fixture(scope="module")
def server():
    config = tiny.smallest_config(num_layers=1, vocab_size=VOCAB_SIZE)
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    shapes = tiny.engine_shapes(
        cache_length=128,
        prefill_lengths=(64,),
        prefill_prompts=2,
        prefill_members=4,
        chunked_prefill=True,
        truncation=True,
        pages=PageConfig(num_pages=64, page_size=16),
    )
    engine = engine_for(graphdef, config, LlamaSized(), shapes)
    engine.warm_up(weights)
    limits = dataclasses.replace(live.LIMITS, max_queued=256, max_connections=256)
    with live.running(engine=engine, weights=weights, key=None, limits=limits) as found:
        yield found
        found.wait_until_empty()


def test_its_tests_accept_our_engine(tmp_path):
    names = ("test_orchestrator", "test_server", "test_config_lib")
    output = in_checkout(
        *("-m", "pytest", "-q", "-s", "-p", "tests.rollout.jetstream.accept_030"),
        *(f"jetstream/tests/core/{name}.py" for name in names),
        *("-k", "not adapter and not test_server_0 and not test_server_1 and not test_server_2"),
        *("-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull),
    )
    assert "25 passed" in output, output[-3000:]


def client(server, *arguments):
    address = ("--server", "127.0.0.1", "--port", str(server.grpc_port))
    output = in_checkout(*arguments, *address)
    assert "AioRpcError" not in output, output[-3000:]
    return output


def in_checkout(*arguments):
    ours = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    path = os.pathsep.join((CHECKOUT, str(ROOT)))
    done = run_python(*arguments, timeout=400, cwd=CHECKOUT, PYTHONPATH=path, **ours)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    return output


def test_requester(server):
    words = ("--tokenizer", "test", "--text", "AB", "--max_tokens", "5", "--num_samples", "2")
    output = client(server, "-m", "jetstream.tools.requester", *words)
    responses = re.findall(r"The (\d)th Response: (.*)", output)
    assert [number for number, _ in responses] == ["0", "1"]
    assert all(len(text) == 5 for _, text in responses)


def test_load_tester(server, capsys):
    output = client(server, "-m", "jetstream.tools.load_tester", "--max_tokens", "20")
    rate = re.search(r"QPS: ([\d.]+)", output)
    assert rate
    with capsys.disabled():
        print(f"\nload_tester: {float(rate[1]):.1f} requests a second")


def test_benchmark_client(server, capsys):
    assert Path(CHECKOUT, LLAMA_TOKENIZER).exists()
    words = f"--tokenizer {LLAMA_TOKENIZER} --dataset test --total-mock-requests 60"
    words += " --request-rate 100 --max-output-length 16 --max-input-length 32 --warmup-mode none"
    output = client(server, "benchmarks/benchmark_serving.py", *words.split())
    completed = re.search(r"Successful requests: +(\d+)", output)
    assert completed, output[-3000:]
    assert int(completed[1]) == 60
    figures = [line for line in output.splitlines() if re.search(r"(?i)throughput|TTFT|TPOT", line)]
    with capsys.disabled():
        print("", *figures, sep="\n")
