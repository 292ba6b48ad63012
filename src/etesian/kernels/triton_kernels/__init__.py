"""Graph attention in Triton, forward and backward; imported only where a config names it."""
