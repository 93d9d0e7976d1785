"""Ten thousand samples against a fake endpoint: memory, a killed run, and whether it goes on exactly.

``python -m tests.evaluation.measure_ab [SAMPLES] [KILLS]`` prints what it measured.
"""

import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from constrained_k2.evaluation.ab.directory import FILE, open_run
from tests.evaluation.ab_samples import body, write_lines
from tests.evaluation.fake_endpoint import FakeEndpoint

ARMS = ("unconstrained", "constrained")


def memory(pid: int) -> int:
    """Resident KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def lines(directory: Path) -> int:
    """The number of records."""
    with suppress(sqlite3.OperationalError):  # not begun yet
        database = sqlite3.connect(f"file:{directory / FILE}?mode=ro", uri=True)
        with closing(database):
            return int(database.execute("select count(*) from records").fetchone()[0])
    return 0


def measure(count: int, kills: int, directory: Path) -> dict[str, Any]:
    """Run, kill, go on, and tell what was seen."""
    samples = write_lines(directory / "samples.jsonl", (body(f"Weather in place {n}?") for n in range(count)))
    output = directory / "run"
    command = [sys.executable, "-m", "constrained_k2", "ab", "--samples", str(samples), "--output", str(output)]
    total, seen = count * len(ARMS), dict[int, int]()
    start = time.monotonic()
    with FakeEndpoint() as endpoint:
        command += [endpoint.url, "--json"]
        for stop in [total * (number + 1) // (kills + 1) for number in range(kills)]:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while process.poll() is None and lines(output) < stop:
                time.sleep(0.3 if count > 1000 else 0.02)
            assert process.poll() is None, f"ended by itself with {process.returncode}"
            process.send_signal(signal.SIGKILL)
            process.wait()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        begun = lines(output)
        while process.poll() is None:
            done = lines(output)
            if done < total:
                seen[done] = memory(process.pid)
            time.sleep(1 if count > 1000 else 0.02)
        seconds = time.monotonic() - start
        asked = Counter(endpoint.asked)
    run = open_run(output)
    records = [record for arm in ARMS for record in run.records(arm)]
    keys = Counter((record.key, record.repetition) for record in records)
    # A quarter that went by between two looks has the look next to it.
    early = [kib for done, kib in seen.items() if begun < done <= begun + (total - begun) // 4] or [*seen.values()][:1]
    late = [kib for done, kib in seen.items() if done > total - (total - begun) // 4] or [*seen.values()][-1:]
    return {
        "records": len(records),
        "keys with another number of records than arms": sum(times != len(ARMS) for times in keys.values()),
        "failed": sum(record.status != "success" for record in records),
        "requests": sum(asked.values()),
        "seconds": round(seconds, 1),
        "exit": process.returncode,
        "early MiB": round(max(early) / 1024, 1),
        "late MiB": round(max(late) / 1024, 1),
    }


if __name__ == "__main__":
    count, kills = [int(text) for text in sys.argv[1:]] + [10_000, 2][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory() as location:
        print(json.dumps(measure(count, kills, Path(location)), indent=2))
