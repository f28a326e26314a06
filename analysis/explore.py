"""The puzzle explorer in a browser, served to this machine alone.

The runs need evaluations with a measured policy (``evaluate.policy_traces``); ``evaluate.trace_metrics=tree`` adds traces. No file is served: every
answer is made from the tables read at the start.

Examples:
    python -m analysis.explore "runs=[outputs/sft-0123456789ab,outputs/rl-0123456789ab]"
    python -m analysis.explore runs=outputs/rl-0123456789ab split=test port=0
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from analysis.explorer import HOW_TO_MEASURE, Explorer
from analysis.explorer_page import page_html, puzzle_html
from analysis.read import read_runs
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")  # names that a browser on this machine may ask by: others come from a site that points here
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'"


@dataclass(frozen=True, slots=True)
class ExploreSettings:
    """Keys of the command."""

    runs: tuple[str, ...]  # run directories with a measured policy
    split: str = ""  # of the puzzles; empty: the one that most policies were measured on
    port: int = 8765  # of this machine, 127.0.0.1 alone; 0 takes a free one


def make_server(explorer: Explorer, port: int) -> ThreadingHTTPServer:
    """A server on the loopback address; ``serve_forever`` starts it. Raises UserError where the port cannot be had."""
    names = ", ".join(policy.label for policy in explorer.policies)
    page = page_html(f"{len(explorer.puzzles)} {explorer.split} puzzles · {names}").encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
                self.answer(403, b"this server answers to its own machine alone", "text/plain")
                return
            address = urlsplit(self.path)
            if address.path == "/":
                self.answer(200, page, "text/html")
            elif address.path == "/puzzles.json":
                self.answer_json(200, explorer.index)
            elif address.path == "/puzzle.json":
                self.puzzle(parse_qs(address.query).get("id", [""])[0])
            else:
                self.answer_json(404, {"error": "no such page"})

        def puzzle(self, name: str) -> None:
            if name not in explorer.puzzles:
                self.answer_json(404, {"error": "no such puzzle"})
                return
            record = explorer.puzzle(name)
            self.answer_json(200, record | {"html": puzzle_html(record)})

        def answer_json(self, status: int, value: object) -> None:
            self.answer(status, json.dumps(value, allow_nan=False).encode(), "application/json")

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: a line per request would bury the address."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"port={port}: cannot be listened on ({error}); choose another, or 0 for a free one") from None


def main(arguments: list[str]) -> None:
    settings = parse_settings(ExploreSettings, arguments)
    explorer = Explorer(read_runs([Path(run) for run in settings.runs]), settings.split)
    if explorer.left_out:
        print(f"left out, no measured policy on split {explorer.split}: {', '.join(explorer.left_out)}; make one with {HOW_TO_MEASURE}", flush=True)
    with make_server(explorer, settings.port) as server:
        print(f"puzzle explorer: http://{LOOPBACK}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(run_command(main))
