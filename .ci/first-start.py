"""A stranger's first minute: a clone of what is committed, `make run`, a page, Ctrl-C. Prints how long each took.

Fails if Allotment is not ready to take work within READY_WITHIN seconds of `make run` (the packages have been
downloaded before), if its first page does not come, or if Ctrl-C does not end it cleanly.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN = 20.0
GIVE_UP_AFTER = 120.0
STOP_WITHIN = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def status_of(address: str) -> int | None:
    """The HTTP status of the page; None while nobody answers there."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def wait_until_ready(address: str, server: subprocess.Popen[bytes], started: float) -> float:
    """Seconds from the start until /healthz answered 200; exits where the server ended or took too long."""
    while time.monotonic() - started < GIVE_UP_AFTER:
        if server.poll() is not None:
            sys.exit(f"make run ended with {server.returncode} before it was ready")
        if status_of(f"{address}/healthz") == 200:
            return time.monotonic() - started
        time.sleep(0.1)
    sys.exit(f"not ready after {GIVE_UP_AFTER:.0f} s")


def interrupt(server: subprocess.Popen[bytes]) -> float:
    """Seconds that Ctrl-C took to end it; whatever is left of it after STOP_WITHIN is killed, and that is a failure."""
    asked = time.monotonic()
    os.killpg(server.pid, signal.SIGINT)
    try:
        server.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        sys.exit(f"Ctrl-C did not end it within {STOP_WITHIN:.0f} s")
    return time.monotonic() - asked


def first_start(folder: Path) -> float:
    """Seconds until it was ready; exits where it did not come up, showed no page or did not end."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"PORT": str(port), "HOST": "127.0.0.1"}
    started = time.monotonic()
    server = subprocess.Popen(
        ["make", "run", f"ARGS=--data {folder / 'data'}"], cwd=folder / "clone", env=environment, start_new_session=True
    )
    try:
        ready = wait_until_ready(address, server, started)
        page = status_of(f"{address}/")
    except BaseException:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        raise
    stopped = interrupt(server)
    print(f"Ready {ready:.1f} s after make run, first page {page}, stopped {stopped:.1f} s after Ctrl-C", flush=True)
    if page != 200:
        sys.exit(f"the first page answered {page}")
    return ready


def main() -> None:
    # The bound is for packages that were downloaded before: a first try may still have to fetch them.
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            if first_start(Path(name)) <= READY_WITHIN:
                return
    sys.exit(f"slower than {READY_WITHIN:.0f} s, twice")


if __name__ == "__main__":
    main()
