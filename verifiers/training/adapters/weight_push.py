"""Weights of a Hugging Face trainer to inference servers, through a folder that both can read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from verifiers.envs.generation import run_sync
from verifiers.training.inference_admin import (
    AdminConfig,
    InferenceAdmin,
    UpdateFailed,
    update_all,
)


class WeightPush:
    """Called with the trainer (`transformers.Trainer` or a kin of it); pushes once for every optimizer step.

    `folder` is where checkpoints are written and removed again. The servers read them, so it must be on storage that
    they share. All processes must call it: gathering sharded weights takes every one of them.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        folder: str | Path,
        *,
        config: AdminConfig | None = None,
        api_key: str | None = None,
    ) -> None:
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.folder = Path(folder).absolute()
        self.config = config
        self._api_key = api_key
        self.pushed_step: int | None = None
        """The step whose weights the servers have; None before the first push."""

    def __call__(self, trainer: Any) -> None:
        """Push the weights unless the servers have them. Raises UpdateFailed when one did not take them."""
        step = trainer.state.global_step
        if step == self.pushed_step:
            return
        accelerator = trainer.accelerator
        tensors = accelerator.get_state_dict(trainer.model)
        if accelerator.is_main_process:
            target = self.folder / f"step_{step}"
            accelerator.unwrap_model(trainer.model).save_pretrained(target, state_dict=tensors)
            run_sync(lambda: self.push(target, step))
            shutil.rmtree(target)
        accelerator.wait_for_everyone()
        self.pushed_step = step

    async def push(self, weights: Path, version: int) -> None:
        """Have every server load a folder."""
        async with AsyncExitStack() as stack:
            admins = [
                await stack.enter_async_context(
                    InferenceAdmin(url, self.config, api_key=self._api_key)
                )
                for url in self.urls
            ]
            results = await update_all(admins, weights, version)
        failed = {
            url: str(result)
            for url, result in zip(self.urls, results, strict=True)
            if result is not None
        }
        if failed:
            raise UpdateFailed(failed, [url for url in self.urls if url not in failed])
