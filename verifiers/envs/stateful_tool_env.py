"""`StatefulToolEnv`: tools with arguments that the model does not see and the rollout's state provides."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from verifiers.envs.hooks import call_hook
from verifiers.envs.tool_env import ToolEnv
from verifiers.state import State
from verifiers.types import Messages


class StatefulToolEnv(ToolEnv):
    """Authors override `update_tool_args` and add tools with `add_tool(tool, args_to_skip=[…])`."""

    @property
    def skipped_args(self) -> dict[str, list[str]]:
        """Tool name → parameters that the model does not see."""
        return self.toolbox.hidden

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Offer one more function to the model, without the parameters in `args_to_skip`."""
        unknown = set(args_to_skip) - set(inspect.signature(tool).parameters)
        if unknown:
            # v0 let this pass, so it cannot be an error.
            self.logger.warning("%s has no parameters %s to skip.", tool, sorted(unknown))
        self._offer(tool, args_to_skip)

    @abstractmethod
    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Messages,
        state: State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The arguments to call a tool with: the model's, and those only the state knows. May be async."""

    async def _prepared(
        self, name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        return await call_hook(self.update_tool_args, name, arguments, messages, state)
