"""What the tests of OpenCode share: rows, a small sandbox, and the program in OpenCode's place."""

from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("open_code_program.py").read_text()
ROWS = [{"question": "Write 42 into answer.txt.", "answer": "42"}]
SMALL: dict[str, Any] = {"memory_gb": 0.25, "disk_size_gb": 0.05, "timeout_seconds": 60}


class WithProgram:
    """An environment whose sandbox has a program in OpenCode's place, as an image with OpenCode has."""

    async def post_sandbox_setup(self, state: Any) -> None:
        await super().post_sandbox_setup(state)  # type: ignore[misc]
        await self.put_program(state["sandbox_id"], "opencode", PROGRAM)

    async def put_program(self, sandbox_id: str, name: str, text: str) -> None:
        await self.upload_content(sandbox_id, text, f"/box/{name}")  # type: ignore[attr-defined]
        done = await self.sandbox_client.execute_command(  # type: ignore[attr-defined]
            sandbox_id,
            f"mkdir -p ~/.opencode/bin && install -m 755 /box/{name} ~/.opencode/bin/{name}",
        )
        assert done.exit_code == 0, done.stderr
