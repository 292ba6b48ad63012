"""Which kernel is the fastest for an experiment on a device: every kernel of a slot, on the experiment's shapes."""
