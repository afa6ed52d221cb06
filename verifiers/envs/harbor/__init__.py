"""Tasks in Harbor's format: https://github.com/harbor-framework/harbor

    tasks/hello/task.toml           metadata, limits, image, MCP servers
                instruction.md      the instruction for the agent
                environment/        how to build the image
                tests/test.sh       writes /logs/verifier/reward.txt or reward.json
                solution/           a solution, to check the task itself

`env` has the environment, `task_files` the folders, `verifier` the tests, `mcp_servers` the MCP servers.
"""
