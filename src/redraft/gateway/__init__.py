"""A server in front of any model: it runs the refinement loop behind every request.

The way of a request:

1. `server` (the process) and `app` (the routes) take it; `client_exchange` is one request, from its
   headers to the last byte of the reply.
2. `protocols` reads it into the neutral form (`neutral`), which belongs to none of them.
3. `refining` answers `refine/NAME`: `profile_models` are the models behind it, of which
   `messages_model` speaks Anthropic's protocol, `refined_answers` is what comes out. `passing`
   answers `pass/NAME`.
4. `protocols` writes the reply.
5. `request_store` keeps what is kept of it.

Around it: `config`, `keys`, `admission`, `guard`, `idempotency`, `metrics`, `access_log`; and
`exchange`: what these parts pass to each other.

Needs `redraft[gateway]`.
"""
