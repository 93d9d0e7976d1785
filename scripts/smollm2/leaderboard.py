"""The leaderboard's own judgement of calls: ``ast_checker`` of the package bfcl-eval, unchanged."""

import importlib
import json
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from constrained_k2.evaluation.sample import Sample
from scripts.fetch_data import data_path
from scripts.smollm2.questions import WHEEL, read_category, wheel

_MODEL = "kimi_k2"
_MODELS = "bfcl_eval.constants.model_config"


class Leaderboard:
    """Judges calls as the leaderboard does.

    Raises ``SystemExit`` if its package is missing and cannot be downloaded.
    """

    def __init__(self) -> None:
        self._package = wheel()
        self._rows: dict[str, dict[str, tuple[Any, Any]]] = {}
        checker = _imported("bfcl_eval.eval_checker.ast_eval.ast_checker")
        self._check = checker.ast_checker
        self._language = _imported("bfcl_eval.constants.enums").Language.PYTHON

    def is_right(self, sample: Sample, calls: Sequence[tuple[str, Any]]) -> bool:
        """Judge the calls, names with decoded arguments, of an answer to a question of ``questions()``.

        A question without a right call wants none. Arguments that are not an object are wrong.
        """
        if "irrelevance" in sample.category:
            return not calls
        if not all(isinstance(arguments, dict) for _, arguments in calls):
            return False
        functions, answers = self._of(sample.category)[sample.key.partition(".")[0]]
        made = [{name: arguments} for name, arguments in calls]
        found = self._check(functions, made, answers, self._language, sample.category, _MODEL)
        return found["valid"] is True

    def _of(self, category: str) -> dict[str, tuple[Any, Any]]:
        """Return the functions and the accepted answers of each question of a category, by the sample's key."""
        if category not in self._rows:
            name = f"BFCL_v4_{category}.json"
            asked, answered = map(self._read, (name, f"possible_answer/{name}"))
            answers = {row["id"]: row["ground_truth"] for row in answered}
            rows = [(row["function"], answers[row["id"]]) for row in asked]
            questions = read_category(self._package, category)
            self._rows[category] = {question.key: rows[question.number - 1] for question in questions}
        return self._rows[category]

    def _read(self, path: str) -> list[Any]:
        text = (self._package / "bfcl_eval" / "data" / path).read_text("utf-8")
        return [json.loads(line) for line in text.split("\n") if line]


def _imported(name: str) -> ModuleType:
    """Import a module out of the wheel.

    The package's table of models imports the clients of a dozen APIs. The checker only reads whether a model's API
    replaces the dots of names, and Kimi's does not.
    """
    path = str(data_path(WHEEL))
    if path not in sys.path:
        sys.path.append(path)
    models = ModuleType(_MODELS)
    models.MODEL_CONFIG_MAPPING = {_MODEL.replace("_", "/"): SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.modules.setdefault(_MODELS, models)
    return importlib.import_module(name)
