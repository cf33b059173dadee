"""Ten requests through JetStream's Driver, in a process of its own: prints their tokens as JSON.

python -m tests.rollout.jetstream.drive interleaved|disaggregated
"""

import asyncio
import json
import sys
from pathlib import Path

from jetstream.core import orchestrator
from jetstream.core.proto import jetstream_pb2

from loong_jax.rollout.jetstream.adapter import JetStreamAdapter
from tests.doubles import fake_model

TEXTS = ["q" * i for i in range(10)]
NUM_TOKENS = 7


def weights():
    """Samples under these never end by themselves."""
    return fake_model.fake_weights(0, eos_logit=-9.0)


def main(mode: str, file: str) -> None:
    shapes = {"slots_per_replica": 4, "prefill_lengths": (16,), "decode_steps": 1}
    prefill = generate = JetStreamAdapter(fake_model.fake_engine(**shapes), weights())
    if mode == "disaggregated":
        generate = JetStreamAdapter(fake_model.fake_engine(**shapes), weights())
    driver = orchestrator.Driver(
        prefill_engines=[prefill],
        generate_engines=[generate],
        prefill_params=[prefill.load_params()],
        generate_params=[generate.load_params()],
        interleaved_mode=mode == "interleaved",
    )
    client = orchestrator.LLMOrchestrator(driver=driver)

    async def ask(text):
        content = jetstream_pb2.DecodeRequest.TextContent(text=text)
        request = jetstream_pb2.DecodeRequest(text_content=content, max_tokens=NUM_TOKENS)
        tokens = []
        async for response in client.Decode(request):
            tokens += response.stream_content.samples[0].token_ids
        return tokens

    async def ask_all():
        return await asyncio.wait_for(asyncio.gather(*map(ask, TEXTS)), 120)

    with asyncio.Runner() as runner:
        Path(file).write_text(json.dumps(runner.run(ask_all())))  # stdout is the Driver's log
        driver.stop()  # its threads wake the loop once more after the last token: it is still there


if __name__ == "__main__":
    main(*sys.argv[1:])
