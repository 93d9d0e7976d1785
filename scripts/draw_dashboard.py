"""Runs Debian's Prometheus on a server, and draws the panels of ``deploy/grafana/dashboard.json`` from its answers.

    python -m scripts.draw_dashboard http://127.0.0.1:8000 --minutes 10 --out docs/images/dashboard.png

Grafana is in no package index, so this shows what its panels would: the same queries, titles and legends.
"""

import argparse
import json
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from constrained_k2.evaluation.server import _free_port

DEPLOY = Path(__file__).parents[1] / "deploy"
SCRAPE_SECONDS = 2


def panels(interval: str) -> list[dict[str, Any]]:
    """Return the dashboard's panels, with ``interval`` for Grafana's and every model for ``$model``."""
    text = (DEPLOY / "grafana" / "dashboard.json").read_text("utf-8")
    found: list[dict[str, Any]] = json.loads(text.replace("$__rate_interval", interval).replace("$model", ".*"))[
        "panels"
    ]
    return found


@contextmanager
def prometheus(target: str, directory: Path) -> Iterator[httpx.Client]:
    """Run Prometheus on a server's metrics with the rules of ``deploy/``; yields a client of its HTTP API.

    Raises ``RuntimeError`` if Prometheus is not installed or does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise RuntimeError("no prometheus: install Debian's package prometheus")
    config = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yaml")],
        "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [urlsplit(target).netloc]}]}],
    }
    (directory / "prometheus.json").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{_free_port()}"
    command = [program, f"--config.file={directory / 'prometheus.json'}", f"--storage.tsdb.path={directory / 'data'}",
               f"--web.listen-address={address}"]  # fmt: skip
    with (directory / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:  # noqa: S603 - our own command
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
                _wait(client, process, directory / "prometheus.log")
                yield client
        finally:
            process.terminate()


def _wait(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(150):
        try:
            if client.get("/-/ready").is_success:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError(f"Prometheus does not start: {log.read_text(errors='replace')[-2000:]}")


def query(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """Return the series of an expression now."""
    answer = client.get("/api/v1/query", params={"query": expression}).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def draw(client: httpx.Client, seconds: float, out: Path) -> None:
    """Draw every panel over the last ``seconds``, minutes before now on the axis."""
    from matplotlib.figure import Figure

    end = time.time()
    shown = panels(f"{30 * SCRAPE_SECONDS}s")
    places = [panel["gridPos"] for panel in shown]
    rows = sorted({place["y"] for place in places})
    unit = math.gcd(*(place[side] for place in places for side in ("x", "w")))
    figure = Figure(figsize=(15, 3 * len(rows)), layout="constrained")
    grid = figure.add_gridspec(len(rows), 24 // unit)
    for panel, place in zip(shown, places, strict=True):
        left, right = place["x"] // unit, (place["x"] + place["w"]) // unit
        axes = figure.add_subplot(grid[rows.index(place["y"]), left:right])
        axes.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})", loc="left", fontsize=10)
        for target in panel["targets"]:
            span = {"start": end - seconds, "end": end, "step": SCRAPE_SECONDS}
            answer = client.get("/api/v1/query_range", params={"query": target["expr"], **span}).raise_for_status()
            for series in answer.json()["data"]["result"]:
                legend = target["legendFormat"]
                for label, value in series["metric"].items():
                    legend = legend.replace("{{" + label + "}}", value)
                axes.plot([(at - end) / 60 for at, _ in series["values"]],
                          [float(value) for _, value in series["values"]], label=legend)  # fmt: skip
        axes.set_xlim(-seconds / 60, 0)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        if axes.lines:
            axes.legend(fontsize=7, frameon=False, loc="upper left")
    figure.savefig(out, dpi=70)


def main() -> None:
    """Watch a server for some minutes, then draw."""
    parser = argparse.ArgumentParser(prog="python -m scripts.draw_dashboard", description=__doc__.splitlines()[0])
    parser.add_argument("url", help="a server with this package; send it requests meanwhile")
    parser.add_argument("--minutes", type=float, default=10.0, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("dashboard.png"), help="(default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, prometheus(given.url, Path(directory)) as client:
        time.sleep(60 * given.minutes)
        draw(client, 60 * given.minutes, given.out)
    print(given.out)


if __name__ == "__main__":
    main()
