"""Repairs requests, and renders them as Kimi K3's prompts (XTML)."""

from constrained_k2.prompts.xtml.contract import check_contract
from constrained_k2.prompts.xtml.options import PromptOptions
from constrained_k2.prompts.xtml.pieces import Piece, Pieces
from constrained_k2.prompts.xtml.prompt import XtmlRenderer
from constrained_k2.prompts.xtml.repair import repair_history
from constrained_k2.prompts.xtml.turn import render_turn

__all__ = ["Piece", "Pieces", "PromptOptions", "XtmlRenderer"]
__all__ += ["check_contract", "render_turn", "repair_history"]
