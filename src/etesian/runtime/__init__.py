"""How a built model is run: activation checkpointing, devices."""
