"""Grammar drafts in the V2 model runner: they replace drafts on the device, without waiting for it."""

from collections.abc import Mapping
from typing import Any

import torch

from constrained_k2.vllm_plugin.draft_table import DraftTable

_HEAD = 5  # columns before the drafts: slot, length, last token, number of drafts, number of forced drafts


def place_drafts(states: Any, tables: Mapping[str, DraftTable], *, alone: bool) -> None:
    """Replace the drafts of requests whose step before had a guessed outcome, as :meth:`.DraftTable.chosen` says.

    Args:
        states: vLLM's ``RequestState``, which the work before this on the device brings up to that step.
        tables: The drafts by outcome, of one request at least.
        alone: Whether nothing but the grammar drafts; ``states`` then hold placeholders.
    """
    drafts = states.draft_tokens  # int64 [slots, width]
    rows = torch.tensor(_rows(states, tables, drafts.shape[1]), pin_memory=drafts.is_cuda)
    rows = rows.to(drafts.device, non_blocking=True)  # int64 [requests, guesses, _HEAD + width]
    slots = rows[:, 0, 0]
    lengths, last = states.total_len.gpu[slots], states.last_sampled_tokens[slots, 0]
    came_true = (rows[:, :, 1] == lengths[:, None]) & (rows[:, :, 2] == last[:, None])
    found = came_true.int().argmax(1)
    ours = rows[torch.arange(len(slots), device=rows.device), found]
    count, forced, tokens = ours[:, 3, None], ours[:, 4, None], ours[:, _HEAD:]
    before = drafts[slots]
    at = torch.arange(tokens.shape[1], device=rows.device)
    replaces = came_true.any(1, keepdim=True)
    if not alone:
        replaces &= ((tokens != before) & (at < forced)).any(1, keepdim=True)
    # Behind ours stands a token that the engine core, which has no draft there, declares invalid.
    drafts[slots] = torch.where(replaces, torch.where(at < count, tokens, 0), before)


def _rows(states: Any, tables: Mapping[str, DraftTable], width: int) -> list[list[list[int]]]:
    most = max(len(table.guesses) for table in tables.values())
    rows = []
    for request_id, table in tables.items():
        slot = states.req_id_to_index[request_id]
        known = [
            [slot, table.length + added, last, len(ours), forced, *ours, *[0] * (width - len(ours))]
            for added, last, ours, forced in table.guesses
        ]
        rows.append(known + [[slot, *[-1] * (_HEAD - 1 + width)]] * (most - len(known)))  # no request has length -1
    return rows
