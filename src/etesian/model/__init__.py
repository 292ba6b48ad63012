"""The model: encoder, processor, decoder, residual connection and bounds, as plain modules."""
