"""Inputs of a mask kernel: the plan (which mask applies to which row of logits) and scratch memory."""

from enum import IntEnum

import torch

MAX_IDS = 32
"""The most allowed tokens that a plan's entry lists instead of naming a mask."""

BLOCK = 4096
"""Logits of a row that one program masks: 128 words of the mask."""


class Column(IntEnum):
    """The columns of a plan, int32 ``[entries, 6]``. An entry for a row outside the logits is undefined behaviour."""

    ROW = 0
    """The row of the logits, in at most one entry; -1: the entry is not used, and its other columns are not read."""
    SOURCE = 1
    """The row of the masks; if ids are listed, the index of the first one."""
    COUNT = 2
    """The number of listed ids, distinct: the only tokens that are allowed; 0: the mask is a row of the masks."""
    GUARDED = 3
    """1: if every logit is -inf after the mask, the allowed ones become 0."""
    KEEP = 4
    """A row of the masks that becomes a copy of the mask; no entry of the launch reads it. -1: none."""
    RESULT = 5
    """The row of :attr:`Workspace.results` for the row's examination; -1: the row is not examined."""


PLAN_COLUMNS = len(Column)


class Workspace:
    """Preallocated memory for launches on one stream.

    Args:
        entries: The most entries of a plan.
        results: The most examined rows of a plan.
        width: The most columns of logits and masks.
        device: The device of the logits.

    Attributes:
        counters: int32 ``[entries]``, 0 between launches: the finished blocks of each entry's row, plus 65536 times
            the finished blocks with an allowed logit above -inf.
        partials: float32 ``[results, blocks, 7]``: the partial results of each block of an examined row.
        results: float32 ``[results, 5]``: the likeliest forbidden token, 1 if it was the likeliest of all (then it is
            overridden), its probability, the probability of all forbidden tokens, and the number of finite logits left.
            Probabilities are before the mask.
    """

    def __init__(self, entries: int, results: int, width: int, device: torch.device) -> None:
        self.width = width
        self.counters = torch.zeros(entries, dtype=torch.int32, device=device)
        self.partials = torch.zeros((results, -(-width // BLOCK), 7), dtype=torch.float32, device=device)
        self.results = torch.zeros((results, 5), dtype=torch.float32, device=device)

    def check(self, entries: int, width: int) -> None:
        """Raise if a launch needs a larger workspace: a kernel would write past its end."""
        if entries > len(self.counters) or width > self.width:
            problem = f"a launch of {entries} entries and {width} columns needs a larger workspace"
            raise ValueError(f"{problem} than {len(self.counters)} entries and {self.width} columns")
