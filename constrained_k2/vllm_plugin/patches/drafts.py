"""Grammar drafts that go with a schedule, and the V2 model runner's use of them."""

from typing import Any

from constrained_k2.vllm_plugin.draft_table import tables_of
from constrained_k2.vllm_plugin.patches import wrapper
from constrained_k2.vllm_plugin.speculation import grammar_drafting, names_our_proposer


@wrapper
def schedule(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Send grammar drafts with the schedule."""
    sender = getattr(self.structured_output_manager, "draft_sender", None)  # of ours alone
    if sender is None:
        return original(self, *args, **kwargs)
    tables = sender.before_schedule(self.running)
    scheduled = original(self, *args, **kwargs)
    sender.after_schedule(scheduled, tables, self.requests)
    return scheduled


@wrapper
def update_draft_token_ids_in_output(original: Any, self: Any, draft_token_ids: Any, scheduler_output: Any) -> None:
    """Check the drafts that the workers chose, not those that vLLM proposed."""
    sender = getattr(self.structured_output_manager, "draft_sender", None)
    if sender is not None:
        draft_token_ids = sender.choose(draft_token_ids, scheduler_output, self.requests)
    original(self, draft_token_ids, scheduler_output)


@wrapper
def update_requests(original: Any, self: Any, scheduler_output: Any) -> None:
    """Replace drafts on the device before the model's inputs are made of them."""
    original(self, scheduler_output)
    if tables := tables_of(scheduler_output):
        from constrained_k2.vllm_plugin.worker.drafts import place_drafts

        place_drafts(self.req_states, tables, alone=grammar_drafting(self.vllm_config).alone)


@wrapper
def propose(original: Any, self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Propose placeholders if our proposer is named: the engine core declares them invalid. Else look n-grams up."""
    if names_our_proposer(self.vllm_config):
        return self.drafts[: input_batch.num_reqs].zero_()
    return original(self, input_batch, *args, **kwargs)
