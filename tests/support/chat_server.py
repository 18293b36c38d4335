"""A real HTTP server on this machine that speaks `/v1/chat/completions` as a test scripts it."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Reply:
    content: str | None = None
    status: int = 200
    headers: dict = field(default_factory=dict)
    delay_s: float = 0.0
    finish_reason: str = "stop"
    refusal: str | None = None
    usage: tuple | None = (100, 20)
    error: str = "as scripted"
    body: str | None = None


class ChatServer:
    """Answer request after request with `replies`, the last one for ever; a reply may be a function of the request."""

    def __init__(self, *replies):
        self.replies = replies
        self.requests = []
        self.headers = []
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server._answer(self, body)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, handler, body):
        with self._lock:
            reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
            self.requests.append(body)
            self.headers.append(handler.headers)
        if callable(reply):
            reply = reply(body)
        if not isinstance(reply, Reply):
            reply = Reply(reply if isinstance(reply, str) else json.dumps(reply))
        time.sleep(reply.delay_s)
        content = reply.body
        if content is None:
            error = {"error": {"message": reply.error}}
            content = json.dumps(_completion(body, reply) if reply.status == 200 else error)
        try:
            handler.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(content.encode())
        except (BrokenPipeError, ConnectionResetError):
            pass


def _completion(body, reply):
    usage = None
    if reply.usage:
        usage = dict(zip(("prompt_tokens", "completion_tokens"), reply.usage, strict=True))
        usage["total_tokens"] = sum(reply.usage)
    message = {"role": "assistant", "content": reply.content, "refusal": reply.refusal}
    choices = [{"index": 0, "message": message, "finish_reason": reply.finish_reason}]
    shared = {"id": "completion-0", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**shared, "choices": choices, "usage": usage}
