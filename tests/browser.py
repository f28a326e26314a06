"""A headless Chromium that tests can type into, spoken to over a pipe (the DevTools protocol, messages ended by a zero byte)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 120.0


class Browser:
    """One page. A context manager; ``requests`` holds the addresses of everything that the page asked for."""

    def __init__(self, folder: Path, width: int, height: int = 900) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("no Chromium")
        read_in, self._write = os.pipe()
        self._read, write_out = os.pipe()
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--remote-debugging-pipe")
        # Chromium reads from descriptor 3 and writes to 4.
        shell = f"exec 3<&{read_in} 4>&{write_out}; exec \"$0\" \"$@\""
        command = ["bash", "-c", shell, program, *flags, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(read_in, write_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_in)
        os.close(write_out)
        self._pending, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        target = next(each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self._call("Network.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._pending += part
        first, self._pending = self._pending.split(b"\0", 1)
        return json.loads(first)

    def open(self, address: str) -> None:
        self._call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of ``script`` as soon as it is true."""
        end = time.monotonic() + DEADLINE_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        """A real key press on whatever has the focus."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "End": 35, "Home": 36}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        self._call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]))
