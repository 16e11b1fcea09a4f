"""Decoder families, their partition into pipeline stages, and the loading of weights and tokenizers."""
