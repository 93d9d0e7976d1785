"""The model's vocabulary: tokenizer files, token bytes, token sets and bitmasks."""
