"""TRL's `WeightTransferProtocol` through a folder that trainer and inference servers share."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from verifiers.envs.generation import run_sync
from verifiers.training.adapters import trainer_module
from verifiers.training.adapters.trl_async import AsyncGRPOWorker
from verifiers.training.inference_admin import AdminConfig, InferenceAdmin


class FolderWeightTransfer:
    """Writes the tensors it is sent as a Hugging Face folder and has every server load it.

    The version it tells the servers is the one that TRL tells the `worker` right after. `model_folder`: a checkpoint of
    the model, whose configuration and tokenizer are put beside the tensors.
    """

    def __init__(
        self,
        worker: AsyncGRPOWorker,
        urls: str | Sequence[str],
        folder: str | Path,
        *,
        model_folder: str | Path,
        config: AdminConfig | None = None,
    ) -> None:
        self.worker = worker
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.folder = Path(folder).absolute()
        self.model_folder = Path(model_folder)
        self.config = config

    def init_weight_transfer(self) -> None:
        """Check the folders and that every server answers; raises what is wrong with them."""
        if not (self.model_folder / "config.json").is_file():
            raise FileNotFoundError(f"{self.model_folder} is no checkpoint: it has no config.json.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._each(lambda admin: admin.wait_until_healthy(admin.config.request_timeout_s))

    def pause(self) -> None:
        """Freeze generation; requests in flight go on with the new weights."""
        self._each(lambda admin: admin.pause())

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Save the tensors and load them everywhere."""
        torch_files = trainer_module(
            "safetensors.torch", "save_file", install="pip install safetensors"
        )
        version = self.worker.version + 1
        target = self.folder / f"version_{version}"
        target.mkdir()
        try:
            for path in self.model_folder.glob("*.json"):
                if path.name != "model.safetensors.index.json":
                    shutil.copy(path, target)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in iterator}
            torch_files.save_file(tensors, target / "model.safetensors", {"format": "pt"})
            self._each(lambda admin: admin.load_weights(target, version))
        finally:
            shutil.rmtree(target)

    def resume(self) -> None:
        """Go on generating."""
        self._each(lambda admin: admin.resume())

    def destroy(self) -> None:
        """Remove the folder of the weights."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _each(self, act: Callable[[InferenceAdmin], Awaitable[Any]]) -> None:
        async def run() -> None:
            async with AsyncExitStack() as stack:
                for url in self.urls:
                    admin = InferenceAdmin(url, self.config)
                    await act(await stack.enter_async_context(admin))

        run_sync(run)
