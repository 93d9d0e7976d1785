"""Masks that stay on a device: on a device that lags behind, with few slots, and masks that come and go."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.kernels import MAX_IDS, torch_kernel
from constrained_k2.turn.phases import Phase
from constrained_k2.vllm_plugin.shared import row_probe
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.worker import device_masks
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from constrained_k2.vllm_plugin.worker.host_masks import HostMasks
from constrained_k2.vllm_plugin.worker.known_masks import MaskSlots, Row, ShortMasks
from constrained_k2.vllm_plugin.worker.token_history import HostCopy
from constrained_k2.vocabulary.bitmask import TokenSet, allowed_ids

SIZE = 2000
WORDS = (SIZE + 31) // 32
CPU = torch.device("cpu")
NEVER = float("-inf")


class Matcher:
    """A matcher whose next mask is given: a shared one, or one that is written for its turn."""

    num_tokens = 0
    vocabulary = SimpleNamespace(size=SIZE)

    def __init__(self, mask: TokenSet | Row, *, shared: bool = True) -> None:
        self.mask = mask
        self.shared = shared
        self.phase = Phase.TEXT if isinstance(mask, TokenSet) else Phase.ARGUMENTS

    def reusable_mask(self) -> TokenSet | Row | None:
        return self.mask if self.shared else None

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        if isinstance(self.mask, TokenSet):
            self.mask.fill(bitmask[row])
        else:
            bitmask[row] = self.mask

    def allowed(self) -> list[int]:
        row = np.zeros((1, WORDS), dtype=np.int32)
        self.fill_bitmask(row, 0)
        return allowed_ids(row[0]).tolist()


def shared_row(ids: list[int]) -> Row:
    row = np.zeros(WORDS, dtype=np.int32)
    TokenSet(ids, SIZE).fill(row)
    row.flags.writeable = False
    return row


class Device(TorchDispatchMode):
    """A device that does what it is asked for only when somebody waits for it, in the order in which it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Callable[[], Any]] = deque()
        self._done = self._asked = 0
        self._works = False
        self.launches: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._works or func is not torch.ops.aten.copy_.default:
            return func(*args, **kwargs or {})
        assert args[2:] == (True,), "a copy that the host waits for"
        self._ask(lambda: func(*args[:2]))
        return args[0]

    def launch(self, logits: Any, masks: Any, plan: Any, ids: Any, workspace: Any) -> None:
        self.launches.append(len(plan))
        self._ask(lambda: torch_kernel.apply_masks(logits, masks, plan, ids, workspace))

    def event(self) -> Any:
        event = SimpleNamespace(end=0)
        event.record = lambda: setattr(event, "end", self._asked)
        event.synchronize = lambda: self.run(event.end)
        event.query = lambda: self._done >= event.end
        return event

    def _ask(self, task: Callable[[], Any]) -> None:
        self._queue.append(task)
        self._asked += 1

    def run(self, end: int | None = None) -> None:
        """Do what was asked for, up to a point."""
        self._works = True
        while self._queue and (end is None or self._done < end):
            self._queue.popleft()()
            self._done += 1
        self._works = False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with Device() as device:
        monkeypatch.setattr(device_masks, "apply_masks", device.launch)
        monkeypatch.setattr(torch.cuda, "Event", device.event)
        yield device


def masks_on(device: Device, rows: int, slots: int) -> DeviceMasks:
    masks = DeviceMasks(SIZE, rows, CPU, pin=False, slots=slots)
    masks._on_gpu = True
    return masks


def expected_of(logits: torch.Tensor, row: int, allowed: list[int], *, guarded: bool) -> None:
    kept = logits[row, allowed]
    logits[row] = NEVER
    logits[row, allowed] = kept
    if guarded and (kept == NEVER).all():
        logits[row, allowed] = 0.0


@pytest.mark.parametrize(
    ("seed", "slots"), [(1, 0), (2, 1), (3, 3), (4, 8), (5, 200), pytest.param(6, None, id="host")]
)
def test_random_steps(device: Device, seed: int, slots: int | None) -> None:
    """Masks come, go and come again; batches come in parts; steps are planned and dropped; the device lags behind."""
    chance = random.Random(seed)
    masks = HostMasks(SIZE, 6) if slots is None else masks_on(device, 6, slots)
    pool: list[Row] = []
    compared: list[tuple[torch.Tensor, torch.Tensor]] = []

    def matcher() -> Matcher:
        kind = chance.random()
        if kind < 0.15:
            return Matcher(TokenSet(chance.sample(range(SIZE), chance.choice((3, 90))), SIZE, complement=kind < 0.07))
        if kind < 0.3:
            ids = chance.sample(range(SIZE), chance.choice((1, 2, MAX_IDS, MAX_IDS + 1, 400)))
            return Matcher(shared_row(ids), shared=False)
        if not pool or chance.random() < 0.2:
            if len(pool) > 10:
                del pool[chance.randrange(len(pool))]  # its memory is another mask's soon
            pool.append(shared_row(chance.sample(range(SIZE), chance.choice((1, MAX_IDS, MAX_IDS + 1, 500)))))
        return Matcher(chance.choice(pool))

    for _ in range(120):
        masks.begin()
        logits = torch.randn(6, SIZE + chance.choice((-7, 0, 5, 60)))
        expected = logits.clone()
        free = chance.sample(range(6), 6)
        for _ in range(chance.randint(1, 3)):
            masks.begin_rows()
            for _ in range(chance.randint(0, len(free))):
                row, turn, guarded = free.pop(), matcher(), chance.random() < 0.3
                allowed = [token for token in turn.allowed() if token < logits.shape[1]]
                if chance.random() < 0.3:
                    logits[row, allowed] = expected[row, allowed] = NEVER
                masks.add(row, turn, guarded=guarded)  # type: ignore[arg-type]
                expected_of(expected, row, allowed, guarded=guarded)
            if chance.random() < 0.1:  # dropped: nothing of it may be left behind
                break
            masks.apply(logits)
            if chance.random() < 0.1:
                device.run()
        else:
            compared.append((logits, expected))
        if isinstance(masks, DeviceMasks):
            assert slots is not None and len(masks._slots) <= slots
    device.run()
    assert len(compared) > 60
    for made, right in compared:
        assert torch.equal(made, right)


def test_a_mask_is_copied_once(device: Device) -> None:
    masks = masks_on(device, 4, 4)
    wide = [shared_row(list(range(start, start + 100))) for start in range(3)]
    sent = []
    for _ in range(3):
        before = masks.uploaded_bytes
        masks.begin()
        for row in range(4):
            masks.add(row, Matcher(wide[row % 3]))  # type: ignore[arg-type]
        masks.apply(torch.zeros(4, SIZE))
        sent.append(masks.uploaded_bytes - before)
    plan = 4 * 6 * 4
    assert sent == [plan + 3 * 4 * WORDS, plan, plan]
    masks.begin()
    masks.add(0, Matcher(shared_row([7, 9])))  # type: ignore[arg-type]
    masks.add_constant(1, TokenSet([3], SIZE))
    before = masks.uploaded_bytes
    masks.apply(torch.zeros(4, SIZE))
    assert masks.uploaded_bytes - before == 2 * 6 * 4 + 3 * 4
    assert device.launches == [4, 4, 4, 2]


def test_a_mask_at_the_address_of_an_earlier_one_is_another_one() -> None:
    slots, short = MaskSlots(4), ShortMasks()
    addresses: set[int] = set()
    for number in range(200):
        mask = shared_row([number])
        addresses.add(id(mask))
        assert slots.find(mask) is None
        slots.take(mask)
        found = short.ids(mask)
        assert found is not None and found.tolist() == [number]
        slots.next_launch()
    assert len(addresses) < 200


def test_a_mask_lives_until_its_launch() -> None:
    """So that no other one in the launch has its address, and is taken for it."""
    masks = DeviceMasks(SIZE, 2, CPU, pin=False)
    mask = shared_row([*range(90)])
    alive = ref(mask)
    for _ in range(2):
        masks.begin()
        masks.add(0, Matcher(mask))  # type: ignore[arg-type]
        masks.apply(torch.zeros(1, SIZE))
    masks.add(0, Matcher(mask))  # type: ignore[arg-type]
    del mask
    assert alive() is not None
    masks.apply(torch.zeros(1, SIZE))
    assert alive() is None


def test_masks_that_allow_nothing_are_refused() -> None:
    for masks in (HostMasks(SIZE, 2), DeviceMasks(SIZE, 2, CPU, pin=False)):
        for turn in (Matcher(shared_row([])), Matcher(TokenSet([], SIZE)), Matcher(shared_row([]), shared=False)):
            masks.begin()
            with pytest.raises(ConstrainedK2Error, match="no token"):
                masks.add(0, turn)  # type: ignore[arg-type]
            logits = torch.zeros(1, SIZE)
            masks.apply(logits)
            assert not logits.any()


def test_examined_rows_of_a_launch(counters: EngineCounters) -> None:
    found = []
    for masks in (HostMasks(SIZE, 4), DeviceMasks(SIZE, 4, CPU, pin=False)):
        torch.manual_seed(3)
        counters.examined_rows = counters.changed_rows = 0
        for _ in range(5):
            masks.begin()
            masks.begin_rows()
            for row in range(4):
                tokens = TokenSet(range(2 if row % 2 == 0 else 90), SIZE, complement=row > 1)
                masks.add(row, Matcher(tokens))  # type: ignore[arg-type]
                masks.examine([row])
            masks.apply(torch.randn(4, SIZE))
        row_probe.row_probe.count()
        found.append((counters.examined_rows, counters.changed_rows))
    assert found[0] == found[1] and found[0][0] == 20 and 0 < found[0][1] < 20


def test_the_kernel_is_compiled_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = []
    monkeypatch.setattr(device_masks, "apply_masks", lambda *arguments: variants.append(arguments[4] is not None))
    masks = DeviceMasks(SIZE, 4, CPU, pin=False)
    masks.warm_up(SIZE)
    assert variants == [False, True]
    assert masks.uploaded_bytes == 0
    masks.apply(torch.zeros(1, SIZE))
    assert len(variants) == 2  # nothing is left of it


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to CUDA's streams and events in their order, on fakes: there is no GPU in these tests."""
    log: list[str] = []
    main = SimpleNamespace(wait_event=lambda event: log.append("main waits for the copy"))
    side = SimpleNamespace(wait_stream=lambda stream: log.append("side waits for main"))
    event = SimpleNamespace(record=lambda *stream: log.append("recorded"), synchronize=lambda: log.append("host waits"))

    @contextmanager
    def stream(entered: Any) -> Any:
        assert entered is side
        log.append("in side")
        yield
        log.append("out of side")

    monkeypatch.setattr(torch.cuda, "Stream", lambda *device: side)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: main)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return log


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_copy_waits_for_the_past_and_only_its_reader_waits_for_it(asked: list[str], kind: str) -> None:
    device: Any = SimpleNamespace(type=kind)
    copy, location = HostCopy(device), torch.zeros(3)
    copy.before_overwriting()
    copy.start((torch.ones(3), location))
    started = ["main waits for the copy", "side waits for main", "in side", "recorded", "out of side"]
    assert asked == (started if kind == "cuda" else [])
    assert location.tolist() == [1, 1, 1]
    copy.wait()
    assert asked == ([*started, "host waits"] if kind == "cuda" else [])
