"""Running an engine's compiler, which recurses natively, where neither depth nor time can hurt the process."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_STACK_BYTES = 512 << 20  # reserved, not used: pages are taken as the stack grows
_AT_ONCE = 8
_places = threading.BoundedSemaphore(_AT_ONCE)
_starting = threading.Lock()


def on_deep_stack(work: Callable[[], T], seconds: float | None) -> T:
    """Run ``work`` in a thread with a stack that no admitted schema overflows.

    Args:
        work: Native work that lets go of the interpreter lock.
        seconds: How long to wait; None to wait for its end. What takes longer runs to its end unheeded: native code
            cannot be interrupted, so at most eight run at once.

    Raises:
        TimeoutError: It takes longer, or too many such are still running.
    """
    if not _places.acquire(timeout=seconds):
        raise TimeoutError("the server is busy with schemas that take long to compile")
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)
        finally:
            _places.release()

    with _starting:  # the size holds for all threads that start while it is set
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError("the schema takes too long to compile")
    return results[0]
