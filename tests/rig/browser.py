"""A headless Chromium, driven over a pipe (DevTools protocol): how a page looks, what it asks for."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--no-default-browser-check", "--remote-debugging-pipe",
)  # fmt: skip
#: seconds that the browser may take for one answer
PATIENCE = 60.0
#: of axe-core, which is vendored with its licence
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
_PUT = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execv(sys.argv[1], sys.argv[1:])"


def _away(number: int) -> int:
    """The same descriptor under a higher number."""
    higher = fcntl.fcntl(number, fcntl.F_DUPFD, 20)
    os.close(number)
    return higher


class Browser:
    """One browser with one page; the folder gets its profile."""

    def __init__(self, program: str, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser talks on its descriptors 3 and 4. Ours get out of the way first, since they may be just these.
        to_read, to_write = (_away(number) for number in (to_read, to_write))
        line = [sys.executable, "-c", _PUT.format(to_read, to_write), program, *FLAGS]
        self._log = (folder / "browser.log").open("wb")
        self._process = subprocess.Popen(
            [*line, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, "HOME": str(folder)}, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        end = monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._read], [], [], max(0.0, end - monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise AssertionError("the browser does not answer, or is gone")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, place: Path | str, *, width: int, height: int = 800, dark: bool = False) -> None:
        """Show a file, or what is at an address, in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1.0, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        self.events.clear()
        self._navigate(place.as_uri() if isinstance(place, Path) else place)

    def _navigate(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def press(self, key: str, code: int) -> None:
        """Press a key and let it go, such as "Tab", 9; code: that of Windows."""
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text
            )  # fmt: skip

    def axe(self) -> list[str]:
        """What axe-core finds wrong for people who cannot see, or have no mouse: a line for each finding."""
        self.run(AXE.read_text("utf-8"))
        found = self.run("axe.run().then(done => done.violations)")
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def asked_for(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = [
            event["params"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [str(params["request"]["url"]) for params in sent]

    def complaints(self) -> list[dict[str, Any]]:
        """What it wrote to the console, and the errors in it."""
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event for event in self.events if event.get("method") in kinds]

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._process.kill()  # its helpers end with the pipe
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
        self._log.close()


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser until the end of the block."""
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    assert program, "no Chromium here; on Debian: apt install chromium"
    with closing(Browser(program, folder)) as opened:
        yield opened
