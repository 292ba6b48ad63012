"""How a built model is run: devices, compilation, activation checkpointing."""
