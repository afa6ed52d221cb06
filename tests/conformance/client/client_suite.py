"""What the tests of this suite share: one question, one tool, one key."""

from verifiers.types import SystemMessage, Tool, UserMessage

KEY = "sk-very-secret-key"
PROMPT = [SystemMessage(content="Be brief."), UserMessage(content="2+2?")]
TOOL = Tool(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
)


async def ask(client, prompt=PROMPT, sampling_args=None, **options):
    """What the client answers to the prompt."""
    return await client.get_response(prompt, "m", sampling_args or {}, **options)
