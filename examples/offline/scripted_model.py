"""Run a command with a scripted model in place of a real one: python
examples/offline/scripted_model.py REPLIES COMMAND ...

REPLIES is a file of JSON lines, one reply each. A server on this machine gives them in order, and
the last one from then on. The command finds the server by the variable REDRAFT_MODEL.
"""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar


class ScriptedModel(BaseHTTPRequestHandler):
    replies: ClassVar[list[str]] = []

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        text = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        body = json.dumps(
            {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 50}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def main(replies: str, *command: str) -> int:
    ScriptedModel.replies = Path(replies).read_text(encoding="utf-8").splitlines()
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        model = f"http://127.0.0.1:{server.server_port}/v1#scripted"
        done = subprocess.run(command, check=False, env={**os.environ, "REDRAFT_MODEL": model})
        server.shutdown()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
