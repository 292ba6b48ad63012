"""Stores of any size, of smooth fields that move: to test pipelines and to time models."""
