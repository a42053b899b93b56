"""A listener between workers and the upstream: it passes everything on and remembers the headers.

The simulator's log does not tell trace contexts, so this is where they can be seen to arrive.
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# Headers about one connection, which the two sides do not share.
HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")
UPSTREAM_SECONDS = 60


class Wiretap:
    """Listens while the `with` lasts."""

    def __init__(self, upstream_url):
        self._upstream = urlsplit(upstream_url).netloc
        self._seen = []
        self._lock = threading.Lock()

    def headers_of(self, job):
        """Headers of the calls for a job, names in lower case, in the order of their arrival."""
        with self._lock:
            return [headers for headers in self._seen if headers.get("x-fairlane-job") == job]

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        tap = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                headers = {name.lower(): value for name, value in self.headers.items()}
                with tap._lock:
                    tap._seen.append(headers)
                body = self.rfile.read(int(headers.get("content-length", 0)))
                onward = {name: value for name, value in headers.items() if name not in HOP}
                upstream = http.client.HTTPConnection(tap._upstream, timeout=UPSTREAM_SECONDS)
                try:
                    upstream.request(self.command, self.path, body, onward)
                    answer = upstream.getresponse()
                    # The whole of it; that a stream arrives in one piece is allowed.
                    content = answer.read()
                finally:
                    upstream.close()
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        return Handler
