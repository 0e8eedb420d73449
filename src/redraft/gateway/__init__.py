"""A server in front of any model: it runs the refinement loop behind every request.

The way of a request, in five files:

1. `client_exchange` is one request, from its headers to the last byte of the reply. `server` is the
   process and `app` the routes, which begin it.
2. The reader of its protocol, such as `protocols.chat_requests`, makes the neutral form of it
   (`neutral`), which belongs to no protocol.
3. `refining` answers `refine/NAME`, and `passing` answers `pass/NAME`.
4. The writer of its protocol, such as `protocols.chat_replies` and `protocols.chat_streams`, writes
   the reply.
5. `request_store` keeps what is kept of it.

What these use:

- The process: `acceptor` and `connections` hold clients, `guard` says which requests get in,
  `bodies` and `body_worker` read JSON.
- Who may do what, and how much: `keys` and `key_database`, `admission`, `answer_memory`,
  `idempotency`; `request_costs`, `field_tables` and `token_estimate` say what a request may cost.
- Where requests go: `config`, `routing`, `local_servers`.
- Refining: `request_options` and `request_fields` are what a request may choose,
  `prepared_requests` what was checked; `profile_models` are the models, of which `messages_model`
  speaks Anthropic's protocol; `refined_answers` and `outcome` are what comes out.
- Passing on: `plain_passing` for paths without a protocol of ours, `stream_usage` for what a stream
  says of itself, `forwarded_calls` for what traces say of a call.
- What is no conversation: `endpoints`, `stored_endpoints`, `guardrail` with `conversations`,
  `rewards`.
- What is told: `access_log`, `metrics`, `openapi`, `ignored_fields`, `upstream_errors`.
  `request_table` is the part of the store without texts.

`exchange` has what these parts pass to each other.

Needs `redraft[gateway]`.
"""
