"""Nodes, edges and attributes of the graph that a model works on."""
