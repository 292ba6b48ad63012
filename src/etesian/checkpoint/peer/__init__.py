"""Checkpoints of anemoi-training and anemoi-models, read without running their code."""
