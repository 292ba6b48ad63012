"""Pictures. Matplotlib is imported here only."""
