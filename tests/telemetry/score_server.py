"""A server with the APIs that take scores in Phoenix, MLflow and Langfuse, and an export to it."""

import json
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from redraft.storage.journal import Journal
from redraft.telemetry.scores import TOOLS, export_scores

SECRET = "sk-lf-0f7b2c9d81e64a5390b1c7d2"
VARIABLES = {
    "phoenix": {"PHOENIX_ENDPOINT": "{}", "PHOENIX_API_KEY": SECRET},
    "mlflow": {"MLFLOW_TRACKING_URI": "{}/", "MLFLOW_TRACKING_TOKEN": SECRET},
    "langfuse": {
        "LANGFUSE_BASE_URL": "{}",
        "LANGFUSE_PUBLIC_KEY": "pk-lf-1",
        "LANGFUSE_SECRET_KEY": SECRET,
    },
}
BASIC = b64encode(f"pk-lf-1:{SECRET}".encode()).decode()


class ScoreServer:
    """A server with the APIs of all three tools: it keeps what it is sent by its ID. `statuses`:
    what it answers first; `page`: what it answers in place of JSON.
    """

    def __init__(self):
        self.posted, self.assessments, self.headers = [], {}, []
        self.statuses, self.page = [], b""

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                server.answer(
                    self, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )

            def do_GET(self):
                server.answer(self, None)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # a client that has gone
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(10)

    def answer(self, handler, body):
        self.headers.append(dict(handler.headers))
        status = self.statuses.pop(0) if self.statuses else 200
        reply = {"said": handler.headers.get("Authorization", "")}
        if status == 200:
            reply = self.take(handler.path, body)
        content = self.page or json.dumps(reply).encode()
        handler.send_response(status)
        handler.send_header("Retry-After", "0.01")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def take(self, path, body):
        trace = path.split("/")[5] if "/traces/" in path else ""
        if body is None:
            return {"trace": {"trace_info": {"assessments": self.assessments.get(trace, [])}}}
        if trace:
            self.assessments.setdefault(trace, []).append(body["assessment"])
        scores = [body["assessment"]] if trace else body if isinstance(body, list) else body["data"]
        self.posted += scores
        return {}


async def export(folder, tool, url):
    environ = {name: value.format(url) for name, value in VARIABLES[tool].items()}
    with Journal(folder / "out.jsonl.journal", read_only=True) as journal:
        return await export_scores(TOOLS[tool], environ, journal, journal.runs()[0])
