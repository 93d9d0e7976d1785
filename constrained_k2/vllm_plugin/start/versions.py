"""The tested versions of vLLM, for the log at start and the table in docs/operators.md."""

import os
from typing import NamedTuple

TRY_VARIABLE = "CONSTRAINED_K2_UNTESTED_VLLM"
"""The environment variable that, set to 1, runs the newest version's patches in an untested vLLM."""


class Version(NamedTuple):
    """The tests that one version of vLLM has had, by the device; empty for none."""

    number: str
    on_cpu: str
    on_gpu: str = ""

    @property
    def minor(self) -> str:
        """Such as ``0.32``."""
        return minor_of(self.number)


VERSIONS = (
    Version("0.32.0", "tested in CI, on the CPU build"),
    Version("0.33.0", "tested by hand, on its Python sources over the compiled extensions of 0.32.0"),
)
"""One version of each minor number that the package runs in."""


def minor_of(number: str) -> str:
    """``0.32`` of ``0.32.0``."""
    return ".".join(number.split(".")[:2])


def version_of_rows(number: str) -> Version | None:
    """The tested version whose patches fit a vLLM; None if there is none, and the operator does not try the newest."""
    fallback = VERSIONS[-1] if os.environ.get(TRY_VARIABLE) == "1" else None
    return next((version for version in VERSIONS if version.minor == minor_of(number)), fallback)


def standing(number: str, *, is_cpu: bool) -> tuple[bool, str]:
    """True if such a server was tested, and how it, or else the nearest one, was."""
    nearest = version_of_rows(number) or VERSIONS[-1]
    ran = nearest.on_cpu if is_cpu else nearest.on_gpu
    if ran and number.partition("+")[0] == nearest.number:
        return True, ran
    return False, f"not run. vLLM {nearest.number} on a CPU: {nearest.on_cpu}"
