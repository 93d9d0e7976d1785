"""Tests random schemas, or random clients' grammars, against the laws of masks. It prints the smallest that break one.

    python -m tests.laws.fuzz --minutes 60 --processes 2 --seed 1
    python -m tests.laws.fuzz --example 1000017
    python -m tests.laws.fuzz --grammars --minutes 60

Each process that tries examples is new after some dozens of them, so what they leave behind does not add up, and has a
limit on its memory. An example is a function of its number.
"""

import argparse
import multiprocessing
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from tests.laws import client_grammars
from tests.laws.examples import Fault, benches, faults_of
from tests.laws.feeding import Bench

_BATCH = 40  # examples
_SILENT_SECONDS = 60.0  # an example that takes longer breaks a law, too
_EXAMPLES_OF_A_SEED = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a law is broken."""
    parser = argparse.ArgumentParser("python -m tests.laws.fuzz", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="other seeds try other schemas (default: %(default)s)")
    parser.add_argument("--example", type=int, help="try this one example alone, as its fault names it")
    parser.add_argument("--reduce", type=int, default=4, help="faults of a law to print reduced (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=40.0, help="for one reduction (default: %(default)s)")
    parser.add_argument("--grammars", action="store_true", help="try clients' grammars, not schemas")
    parser.add_argument(
        "--memory", type=float, default=6.0, help="address space of a process, GiB (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    both = benches()
    if options.example is not None:
        counts = Counter[str]()
        faults = _law(options)(both, options.example, counts, options.reduce, options.seconds)
        print(*faults, sep="\n\n")
        return int(bool(faults))
    return Fuzz(both, options).run()


def _law(options: argparse.Namespace) -> Callable[..., list[Fault]]:
    return client_grammars.faults_of if options.grammars else faults_of


class Fuzz:
    """One run."""

    def __init__(self, both: tuple[Bench, Bench], options: argparse.Namespace) -> None:
        self._benches, self._options = both, options
        self._next = options.seed * _EXAMPLES_OF_A_SEED
        self._counts = Counter[str]()
        self._fork = multiprocessing.get_context("fork")
        self._running: dict[Connection, _Batch] = {}

    def run(self) -> int:
        """Try examples until the time is over."""
        begun = time.monotonic()
        until = begun + 60 * self._options.minutes
        while self._running or time.monotonic() < until:
            while len(self._running) < self._options.processes and time.monotonic() < until:
                self._start(until)
            for connection in wait(list(self._running), timeout=5):
                assert isinstance(connection, Connection)
                self._read(connection)
            for connection, batch in list(self._running.items()):
                if time.monotonic() - batch.heard > _SILENT_SECONDS + self._options.seconds:
                    batch.process.kill()
                    self._end(connection, f"an example takes over {_SILENT_SECONDS:.0f} s")
        broken = {law: count for law, count in sorted(self._counts.items()) if law.startswith("broken")}
        others = {name: count for name, count in sorted(self._counts.items()) if name not in broken}
        print(f"\nseed {self._options.seed}, {time.monotonic() - begun:.0f} s:", end=" ")
        print(", ".join(f"{count:,} {name}" for name, count in others.items()))
        print(*(f"{count:6} {law}" for law, count in broken.items()), sep="\n")
        return int(bool(broken))

    def _start(self, until: float) -> None:
        here, there = self._fork.Pipe(duplex=False)
        seen = Counter({name: count for name, count in self._counts.items() if name.startswith("broken")})
        numbers = range(self._next, self._next + _BATCH)
        process = self._fork.Process(target=self._try, args=(there, numbers, seen, until))
        process.start()
        there.close()
        self._running[here] = _Batch(process, self._next)
        self._next += _BATCH

    def _try(self, connection: Connection, numbers: range, seen: Counter[str], until: float) -> None:
        """Try examples in a process of their own, and send each one's faults and counts."""
        options = self._options
        limit = int(options.memory * (1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for number in numbers:
            if time.monotonic() > until:
                return
            counts = seen.copy()
            try:
                faults = _law(options)(self._benches, number, counts, options.reduce, options.seconds)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault of the package or of the laws
                law = f"{type(error).__name__} is raised"
                counts[f"broken: {law}"] += 1
                faults = [Fault(law, number, "", None, traceback.format_exc(limit=-4))]
            new = {fault.law for fault in faults if counts[f"broken: {fault.law}"] <= options.reduce}
            connection.send((number, [fault for fault in faults if fault.law in new], counts - seen))
            seen += Counter({name: count for name, count in (counts - seen).items() if name.startswith("broken")})

    def _read(self, connection: Connection) -> None:
        batch = self._running[connection]
        try:
            number, faults, counts = connection.recv()
        except EOFError:
            batch.process.join()
            code = batch.process.exitcode
            self._end(connection, f"an example's process ends with {code}" if code else "")
            return
        batch.heard, batch.number = time.monotonic(), number + 1
        self._counts.update(counts)
        for fault in faults:
            print(f"\n{fault}", flush=True)

    def _end(self, connection: Connection, problem: str) -> None:
        batch = self._running.pop(connection)
        connection.close()
        batch.process.join()
        if problem:
            self._counts[f"broken: {problem}"] += 1
            print(f"\n{problem}\n  python -m tests.laws.fuzz --example {batch.number}", flush=True)


class _Batch:
    def __init__(self, process: "multiprocessing.context.ForkProcess", number: int) -> None:
        self.process, self.number = process, number
        self.heard = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
