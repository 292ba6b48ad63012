"""Paths of graph files, looked at before anything that takes seconds to import."""

from __future__ import annotations

from pathlib import Path

from etesian.errors import UserError


def check_graph_file(path: Path) -> None:
    """Check that a graph file is there.

    Raises
    ------
    UserError
        If it is not.
    """
    if not path.exists():
        raise UserError("there is no such graph file", where=str(path), mend="graph build -o FILE writes one")
    if path.is_dir():
        raise UserError("the graph file is a folder", where=str(path), mend="name the file in it that ends in .pt")
