"""A headless Chromium, driven by Debian's chromedriver over its protocol (W3C WebDriver, JSON over HTTP)."""

import base64
import json
import os
import shutil
import signal
import struct
import subprocess
import urllib.request

from harness import Failed, die_with_parent, expect, free_port

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"]


class Browser:
    def __init__(self, case):
        self.case, self.port, self.session = case, free_port(), None
        environment = dict(case.environment, HOME=case.directory, XDG_CONFIG_HOME=case.directory, XDG_CACHE_HOME=case.directory)
        with open(case.path("chromedriver.log"), "wb") as log:
            self.process = subprocess.Popen([shutil.which("chromedriver") or "chromedriver", f"--port={self.port}"], env=environment,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
                                            start_new_session=True)
        case.eventually(30, "chromedriver listens", self._is_ready)

    def _ask(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise Failed(f"the browser refused {path}: {error.read().decode()[:400]}") from None

    def _is_ready(self):
        expect(self.process.poll() is None, "chromedriver ended")
        try:
            return self._ask("GET", "/status")["ready"]
        except OSError:
            return False

    def open(self, url, width, height, phone=False):
        self.close_session()
        options = {"args": [*FLAGS, f"--window-size={width},{height}"]}
        if phone:
            options["mobileEmulation"] = {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 2, "touch": True}}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        found = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{found['sessionId']}"
        self._ask("POST", f"{self.session}/url", {"url": url})

    def script(self, text):
        return self._ask("POST", f"{self.session}/execute/sync", {"script": text, "args": []})

    def text(self, selector):
        """What a person reads there, spaces in single file."""
        return " ".join(self.script(f"return document.querySelector({json.dumps(selector)}).innerText").split())

    def complaints(self):
        """What the console says: errors of scripts, what the policy forbade."""
        return [line for line in self._ask("POST", f"{self.session}/se/log", {"type": "browser"})
                if line["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, name):
        """A PNG of what is seen; (width, height) in its own pixels."""
        data = base64.b64decode(self._ask("GET", f"{self.session}/screenshot"))
        for directory in (self.case.directory, os.environ.get("KVFERRY_SCREENSHOTS")):
            if directory:
                os.makedirs(directory, exist_ok=True)
                with open(os.path.join(directory, name), "wb") as file:
                    file.write(data)
        expect(data[:8] == b"\x89PNG\r\n\x1a\n", "the screenshot is no PNG")
        return struct.unpack(">II", data[16:24])

    def close_session(self):
        if self.session:
            self._ask("DELETE", self.session)
        self.session = None

    def close(self):
        try:
            self.close_session()
        finally:
            os.killpg(self.process.pid, signal.SIGTERM)  # our own group: chromedriver and what it started
            self.process.wait(20)
