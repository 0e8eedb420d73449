"""Graders and refinement in other frameworks, one module for each: `redraft.adapters.dspy`,
`.gepa`, `.inspect_ai`, `.pydantic_evals`, `.pydantic_ai`, `.langsmith`, `.llama_index`, `.datasets`
and `.promptfoo`.

A module imports its framework, and nothing imports the module but the program that uses both. The
adapters use what Redraft offers to everyone, and nothing else of it. What they share is in
`grades`.
"""
