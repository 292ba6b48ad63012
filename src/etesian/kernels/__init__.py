"""Layer kernels: the slots of the model, what fills them, and the strict way from the config to a layer."""
