"""The embedded model as a trainer's own engine: ids in, ids out, and a tokenizer with Hugging Face's methods."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from types import SimpleNamespace

from verifiers.endpoint import Engine, Generation, Sampling, load_model, tokenizer
from verifiers.endpoint.chat_template import render_chat


class HFTokenizer:
    eos_token_id = tokenizer.END

    def apply_chat_template(self, messages, tools=None, tokenize=True, add_generation_prompt=False):
        assert tokenize
        ids = render_chat(messages, tools or (), add_generation_prompt=add_generation_prompt)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}  # as transformers 5 answers

    def decode(self, ids, skip_special_tokens=False):
        return tokenizer.decode(ids, skip_special=skip_special_tokens)


@cache
def engine() -> Engine:
    return Engine(load_model())


class ServerManager:
    """verl's `AsyncLLMServerManager.generate`, with its `TokenOutput`."""

    def __init__(self):
        self.prompts = defaultdict(list)

    async def generate(self, request_id, *, prompt_ids, sampling_params, image_data=None):
        self.prompts[request_id].append(list(prompt_ids))
        self.sampling_params = sampling_params
        [sequence] = engine().run(
            Generation(
                prompt_ids,
                max_tokens=sampling_params.get("max_tokens", 60),
                sampling=Sampling(temperature=sampling_params["temperature"]),
                seed=1,
            )
        )
        logprobs = sequence.token_logprobs if sampling_params["logprobs"] else None
        return SimpleNamespace(token_ids=sequence.token_ids, log_probs=logprobs)
