"""What is shown about a table: exhaustive search, proofs, and the replay of traces. Reads spec/, never engine/."""
