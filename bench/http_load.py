"""Load on the HTTP interface: clients that recall and write, and a kill in the middle.

    python3 bench/http_load.py [--memories 100000] [--clients 8] [--seconds 60]

Fills an archive, serves it as a process of its own, and lets so many clients ask for the given
time: four questions for each note. Then the server is killed with SIGKILL while they go on, and
every note that was confirmed has to be there. Prints requests a second, p50, p99 and errors.
"""
from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import quantiles

HOME = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOME))

from hermes_lite import HermesLite, Memory, iso, utc_now  # noqa: E402

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("ck", "nd", "rl", "st")]


def fill(root: Path, count: int) -> None:
    """Write an archive of so many memories of 20 words each."""
    root.mkdir(parents=True)
    (root / "config.yaml").write_text("storage: {backend: archive}\nsystems: {audit: {}}\n")
    source = random.Random(7)
    with HermesLite(root) as memory:
        for start in range(0, count, 5_000):
            with memory.store.transaction():
                for number in range(start, min(count, start + 5_000)):
                    text = f"note {number} " + " ".join(source.choices(WORDS, k=18))
                    memory.store.put(Memory(f"mem_20260101_000000_{number:06x}", text,
                                            created_at=iso(utc_now())))


class Client(threading.Thread):
    """One client: asks and writes until it is told to stop, and keeps the time of each answer."""

    def __init__(self, url: str, token: str, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.url, self.token, self.number, self.stop = url, token, number, stop
        self.times: dict[str, list[float]] = {"recall": [], "remember": []}
        self.errors: list[str] = []
        self.confirmed: list[str] = []

    def run(self) -> None:
        """Ask until the event, or until the server has gone."""
        import httpx
        source = random.Random(self.number)
        headers = {"authorization": f"Bearer {self.token}"}
        turn = 0
        with httpx.Client(base_url=self.url, headers=headers, timeout=120) as client:
            while not self.stop.is_set():
                turn += 1
                kind = "remember" if turn % 5 == 0 else "recall"
                words = " ".join(source.choices(WORDS, k=3))
                started = time.perf_counter()
                try:
                    if kind == "recall":
                        answer = client.get("/api/v1/memory", params={"q": words, "limit": 5})
                    else:
                        answer = client.post("/api/v1/memory", json={
                            "text": f"client {self.number} turn {turn}: {words}"})
                except httpx.HTTPError as problem:
                    self.errors.append(type(problem).__name__)
                    return
                self.times[kind].append(time.perf_counter() - started)
                if answer.status_code >= 400:
                    self.errors.append(answer.text[:200])
                elif kind == "remember":
                    self.confirmed.append(answer.json()["result"]["id"])


def serve(root: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the server, and return once it answers."""
    import httpx
    process = subprocess.Popen([sys.executable, str(HOME / "hermes_lite.py"), "--root", str(root),
                                "serve", "--port", str(port), "--per-minute", "0"],
                               stdout=subprocess.DEVNULL)
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/api/v1/health")
            return process
        except httpx.ConnectError:
            if process.poll() is not None:
                sys.exit("the server has ended")
            time.sleep(0.1)


def report(clients: list[Client], seconds: float) -> None:
    """Print requests a second and the times of each kind."""
    count = sum(len(rows) for client in clients for rows in client.times.values())
    print(f"{count / seconds:.0f} requests/s over {seconds:.0f} s, "
          f"{sum(len(client.errors) for client in clients)} errors")
    for kind in ("recall", "remember"):
        times = sorted(one for client in clients for one in client.times[kind])
        cuts = quantiles(times, n=100)
        print(f"{kind}: {len(times)}, p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms")


def main() -> None:
    """Fill, serve, ask, kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    root = folder / "root"
    try:
        fill(root, wanted.memories)
        token = subprocess.run(
            [sys.executable, str(HOME / "hermes_lite.py"), "--root", str(root), "token", "create",
             "--agent", "bench", "--scope", "write"], stdout=subprocess.PIPE, text=True,
            check=True).stdout.split()[0]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = serve(root, port)
        stop = threading.Event()
        clients = [Client(f"http://127.0.0.1:{port}", token, number, stop)
                   for number in range(wanted.clients)]
        started = time.monotonic()
        for client in clients:
            client.start()
        time.sleep(wanted.seconds)
        report(clients, time.monotonic() - started)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        stop.set()
        for client in clients:
            client.join()
        confirmed = {one for client in clients for one in client.confirmed}
        with HermesLite(root) as memory:
            lost = [one for one in confirmed if memory.store.get(one) is None]
        print(f"killed: {len(confirmed)} notes were confirmed, {len(lost)} are lost")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
