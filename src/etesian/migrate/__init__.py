"""Configs of anemoi-training, key by key, turned into configs of this package."""
