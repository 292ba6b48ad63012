"""Rotating shallow water on the sphere, and stores made of it."""
