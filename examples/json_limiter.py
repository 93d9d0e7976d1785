"""Get structured output from a forced tool call: python examples/json_limiter.py [URL]."""

import sys

import openai

from constrained_k2 import JsonLimiter

LIMITER = JsonLimiter(
    {
        "type": "object",
        "properties": {
            "sentiment": {"enum": ["good", "bad", "mixed"]},
            "topics": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5},
        },
        "required": ["sentiment", "topics"],
        "additionalProperties": False,
    },
    name="report_review",
    description="Report what the review says.",
)


def main() -> None:
    """Request the report of one review, and print it."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    review = "The noodles were wonderful; the wait was not."
    request = LIMITER.request(
        model=client.models.list().data[0].id, messages=[{"role": "user", "content": f"Read this review: {review}"}]
    )
    answer = client.chat.completions.create(**request)
    print(LIMITER.value(answer))


if __name__ == "__main__":
    main()
