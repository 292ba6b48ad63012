"""Self-attention among all nodes, or within a window of their order: the kernels of the slot ``Attention``."""
