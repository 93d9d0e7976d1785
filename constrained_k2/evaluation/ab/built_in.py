"""The samples that ship with the package."""

from collections.abc import Iterator

from constrained_k2.evaluation.ab.adversarial import adversarial_bodies
from constrained_k2.evaluation.ab.sample import Sample, read_sample
from constrained_k2.evaluation.samples import built_in_samples


def built_in(count: int, seed: int = 0) -> Iterator[Sample]:
    """Two ordinary requests, then an adversarial one, and so on.

    What calls are right is known of none of them; whether a call is due is known where the tool choice says it.

    Args:
        count: How many.
        seed: Which tools and questions stand in which request.
    """
    ordinary = ({**sample.body, "category": f"ordinary, {sample.choice}"} for sample in built_in_samples(count, seed))
    adversarial = adversarial_bodies(count, seed)
    for number in range(count):
        yield read_sample(next(adversarial if number % 3 == 2 else ordinary), number + 1)
