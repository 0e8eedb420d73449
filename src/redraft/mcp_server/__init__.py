"""An MCP server: refinement, grading, comparison and validation as tools of coding agents.

- `arguments`, `results`: what each tool takes and returns, with their JSON schemas.
- `tools`: the tools, and the work behind them.
- `workbench`: what all calls share: the models, the limits, the graders that calls may name.
- `server`: the protocol: the list of tools, calls with progress, cancellation and errors.
- `input_lines`, `stdio`: one client over stdin and stdout; `http`: several over HTTP, behind keys.

Needs `redraft[mcp]`.
"""
