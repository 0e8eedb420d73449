"""The protocols: OpenAI's chat completions and responses, and Anthropic's messages.

| | requests | replies | streams |
|---|---|---|---|
| chat completions | `chat_requests`, `chat_messages` | `chat_replies` | `chat_streams` |
| responses | `responses_requests` | `responses_replies` | the same |
| messages | `messages_requests` | `messages_replies` | `messages_streams` |

Each file reads into and writes from the neutral form (`redraft.gateway.neutral`) and knows nothing
of the other protocols. `fields` says what each field of a request means: it is honoured, a hint, or
refused. All of it is pure: no network, no clock.
"""
