"""The engine: one loop that runs the table, and what the table leaves open. Reads spec/, never verification/."""
