"""`specdec serve` in a process of its own, and requests to it."""

import json
import re
import signal
import socket
import subprocess
import threading
from http.client import HTTPConnection

from driver import SPECDEC

TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}{{ mood }}[assistant] "


class Serving:
    """A server at a free port. args: of the command. files: how many it may have open. options: of its process."""

    def __init__(self, *args, files=None, program=SPECDEC, **options):
        command = [*program, "serve", "--port", "0", *map(str, args)]
        if files:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if address := re.search(r"API at (http://[^:]+:(\d+)/v1)", line):
                break
        else:
            raise AssertionError(f"it does not start:\n{self.said}")
        self.url, self.port = address[1], int(address[2])
        self._rest = threading.Thread(target=self._read, daemon=True)
        self._rest.start()

    def _read(self):
        for line in self.process.stderr:
            self.said += line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._rest.join()
        self.process.stderr.close()

    def request(self, method, path, body=None, timeout=60, **headers):
        """Status, headers and body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body, **headers):
        """Status and JSON."""
        status, _, content = self.request("POST", path, body, **headers)
        return status, json.loads(content)

    def stream(self, path, body):
        """The chunks of a stream, which must end as it should."""
        status, headers, content = self.request("POST", path, {**body, "stream": True})
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        *events, done, rest = content.decode().split("\n\n")
        assert done == "data: [DONE]" and not rest
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def metric(self, name):
        _, _, content = self.request("GET", "/metrics")
        return float(re.search(rf"^specdec_{name} (\S+)$", content.decode(), re.M)[1])

    def opened(self, body, path="/v1/completions"):
        """A connection on which a request was sent, and nothing read."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return connection

    def ended(self, send=signal.SIGTERM, within=20):
        """The exit code after a signal."""
        self.process.send_signal(send)
        return self.process.wait(within)
