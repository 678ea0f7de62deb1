"""A small server of the web, in a thread of the test."""

import http.server
import threading
from contextlib import contextmanager


@contextmanager
def site(answer, address="127.0.0.1"):
    """A server on loopback; `answer(path)` gives a location to be sent to, or the content. `asked` holds the paths."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            found = answer(self.path)
            self.send_response(302 if isinstance(found, str) else 200)
            self.send_header(*(("Location", found) if isinstance(found, str) else ("Content-Length", str(len(found)))))
            self.end_headers()
            if isinstance(found, bytes):
                self.wfile.write(found)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((address, 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
