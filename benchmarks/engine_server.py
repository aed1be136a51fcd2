"""What the API on the engine costs: CPU of the server's thread a request, and tokens a second beside the engine alone.

    python benchmarks/engine_server.py                      # a tiny model on the CPU: the cost of the server
    python benchmarks/engine_server.py --device cuda --agents 256 --layers 28 --hidden 1536   # on a GPU

The model has random weights and a made-up vocabulary. Agents run in a process of their own; each asks with three
messages for 256 tokens with their ids and log-probabilities, eight agents with the same prompt.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sharpen.http.client import HttpClient
from sharpen.llm.engine import Engine, SamplingParams
from sharpen.llm.server import EngineServer

TOKENS, GROUP = 256, 8
TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
RULE = "You have a calculator. To use it, write CALC(expression), for example CALC(3*5). Do not compute yourself."


def messages(number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Answer with one word or number only."},
        {"role": "user", "content": RULE},
        {"role": "user", "content": f"Question {number}: What is 73 times 81?"},
    ]


def made_up_tokenizer(vocab: int) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "</s>", *letters, *(f"\u0120w{number}" for number in range(vocab - len(letters) - 2))]
    inner = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def made_up_model(options: argparse.Namespace, vocab: int) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=max(2, options.hidden // 128),
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    make: Any = Qwen2ForCausalLM
    return make(config).to(options.device, dtype).eval()


# -- agents ------------------------------------------------------------------------------------------


async def agents(url: str, count: int, *, is_stream: bool) -> None:
    client = HttpClient(url)
    await asyncio.gather(*(ask(client, number, is_stream) for number in range(count)))


async def ask(client: HttpClient, number: int, is_stream: bool) -> None:
    body = {
        "messages": messages(number // GROUP),
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "logprobs": True,
        "return_token_ids": True,
        "stream": is_stream,
    }
    headers = [("content-type", "application/json")]
    answer = await client.request("POST", "/chat/completions", headers=headers, body=json.dumps(body).encode())
    told = await answer.read()
    assert answer.status == 200, told[:500]


# -- measuring ---------------------------------------------------------------------------------------


def cpu_of(name: str) -> float:
    (found,) = (each for each in threading.enumerate() if each.name == name)
    assert found.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(found.ident))


def over_http(server: EngineServer, count: int, *, is_stream: bool) -> tuple[float, float]:
    """Seconds, and CPU-seconds of the server's thread."""
    program = [sys.executable, __file__, "--url", server.base_url, "--agents", str(count)]
    program += ["--stream"] if is_stream else []
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before, start = cpu_of("sharpen-engine-server"), time.perf_counter()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        return time.perf_counter() - start, cpu_of("sharpen-engine-server") - before


def alone(engine: Engine, tokenizer: Any, count: int) -> float:
    prompts = [
        tokenizer.apply_chat_template(messages(number // GROUP), add_generation_prompt=True, return_dict=False)
        for number in range(count)
    ]
    start = time.perf_counter()
    engine.sample(prompts, SamplingParams(max_new_tokens=TOKENS, ignore_eos=True))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url:
        print("ready", flush=True)
        sys.stdin.readline()
        asyncio.run(agents(options.url, options.agents, is_stream=options.stream))
        print("done", flush=True)
        return
    if options.device == "cpu":
        torch.set_num_threads(1)
    tokenizer = made_up_tokenizer(options.vocab)
    model = made_up_model(options, options.vocab)
    engine = Engine(model, tokenizer, max_batch=options.agents, max_tokens=options.agents * 1024)
    count = options.agents
    with EngineServer(engine, tokenizer, name="made-up", seed=1) as server:
        for number in range(options.rounds + 1):
            own = alone(engine, tokenizer, count)
            for kind, is_stream in (("whole", False), ("stream", True)):
                seconds, cpu = over_http(server, count, is_stream=is_stream)
                if number:  # the first round warms up
                    print(
                        f"{kind:6} {1000 * cpu / count:6.2f} ms CPU a request; {count * TOKENS / seconds:8.0f} "
                        f"tokens/s, the engine alone {count * TOKENS / own:8.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
