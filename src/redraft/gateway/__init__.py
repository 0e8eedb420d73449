"""A server in front of any model: it runs the refinement loop behind every request.

- `config`: the profiles, the models behind them and the limits, from a TOML file.
- `exchange`: what the other parts pass to each other, independent of any protocol: requests,
  answers, progress and errors.
- `chat_wire`, `responses_wire`, `anthropic_wire`: the protocols of the clients, to and from
  `exchange`.
- `refining`: the work behind `refine/NAME`; `passing`: that behind `pass/NAME`.
- `keys`, `admission`, `guard`, `idempotency`, `request_store`, `metrics`, `access_log`: operations.
- `app`: the routes; `server`: the process.

Needs `redraft[gateway]`.
"""
