"""A server that does what OSWorld's in-VM server does for an action and a screenshot. Run on the desktop.

As there: threads, one Python process with pyautogui per action, a screenshot by pyautogui with the cursor pasted in,
written to a file as PNG and sent from it.
"""

import json
import os
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyautogui
from PIL import Image
from Xlib import display
from Xlib.ext import xfixes  # noqa: F401  python-xlib registers the extension

pyautogui.PAUSE = 0
FILE = os.path.join(tempfile.mkdtemp(), "screenshot.png")


def cursor_image():
    """The cursor as an image."""
    connection = display.Display()
    try:
        connection.xfixes_query_version()
        cursor = connection.xfixes_get_cursor_image(connection.screen().root)
        pixels = b"".join(int(pixel & 0xFFFFFFFF).to_bytes(4, "little") for pixel in cursor.cursor_image)
        return Image.frombytes("RGBA", (cursor.width, cursor.height), pixels, "raw", "BGRA")
    finally:
        connection.close()


class Handler(BaseHTTPRequestHandler):
    """The two routes."""

    def do_POST(self):
        """`/execute`: run a command to its end."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        result = subprocess.run(request["command"], shell=request["shell"], capture_output=True, text=True, timeout=120)
        answer = {"status": "success", "output": result.stdout, "error": result.stderr, "returncode": result.returncode}
        self.send("application/json", json.dumps(answer).encode())

    def do_GET(self):
        """`/screenshot`."""
        cursor = cursor_image()
        screenshot = pyautogui.screenshot()
        screenshot.paste(cursor, tuple(pyautogui.position()), cursor)
        screenshot.save(FILE)
        with open(FILE, "rb") as file:
            self.send("image/png", file.read())

    def send(self, kind, body):
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
