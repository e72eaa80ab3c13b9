"""A hub on this machine that serves folders as repositories and records every request."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0" * 40
_FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/[\w.-]+/([\w./-]+)")
_LIST = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/(revision|tree)/[\w.-]+(?:\?.*)?")
VERBS = """
import json, sys
from partita.commands import main
print([main(words) for words in json.loads(sys.argv[1])])
"""


class SmallHub(ThreadingHTTPServer):
    """Serves the folders OWNER/NAME of a folder; with a `status`, every answer is that status."""

    def __init__(self, root: Path, status: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.status = root, status
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub

    def do_HEAD(self) -> None:
        if not self.path.startswith("/api/agent"):  # a request of the hub's own client
            self.server.asked.append(f"{self.command} {self.path}")
        if self.server.status is not None:
            self._answer(self.server.status)
        elif found := _FILE.fullmatch(self.path):
            self._file(*found.groups())
        elif found := _LIST.fullmatch(self.path):
            self._list(*found.groups())
        else:
            self._answer(404, {"X-Error-Code": "RepoNotFound"})

    def do_GET(self) -> None:
        self.do_HEAD()

    def _file(self, repository: str, name: str) -> None:
        path = self.server.root / repository / name
        if not path.is_file():
            known = (self.server.root / repository).is_dir()
            self._answer(404, {"X-Error-Code": "EntryNotFound" if known else "RepoNotFound"})
            return
        data = path.read_bytes()
        tag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._answer(200, tag, data)

    def _list(self, repository: str, kind: str) -> None:
        folder = self.server.root / repository
        if not folder.is_dir():
            self._answer(404, {"X-Error-Code": "RepoNotFound"})
            return
        names = sorted(path.name for path in folder.iterdir())
        files: Any = [
            {"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": name}
            for name in names
        ]
        if kind == "revision":
            files = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(files).encode())

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, data: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(root: Path, status: int | None = None) -> Iterator[SmallHub]:
    """Run a small hub during a `with` block."""
    hub = SmallHub(root, status)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def outcome(
    calls: list[list[str]], place: Path, address: str, code: str = VERBS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run commands in a process of their own, whose hub is at an address."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_HOME": str(place / "home"), "HF_ENDPOINT": address, "no_proxy": "*"}
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(calls)],
        env=clean | own | environment,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
