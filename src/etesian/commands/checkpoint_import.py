"""``checkpoint import``: a checkpoint of anemoi-training becomes one of this package."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etesian.checkpoint.paths import check_input, check_output
from etesian.commands import common
from etesian.errors import UserError, shell_word


def add_arguments(actions: Any) -> None:
    """Add the action and its arguments."""
    parser = actions.add_parser(
        "import",
        help="make a checkpoint of one of anemoi-training",
        description="Read a training or inference checkpoint of anemoi-training 0.17 and write a checkpoint OUT.ckpt "
        "of the same model, with OUT.graph.pt and OUT.yaml beside it to train on from it. What has no counterpart is "
        "named and nothing is written. No code of the file is run. Where anemoi-models is installed, both models are "
        "run on random numbers and have to agree.",
        epilog="example:\n  anemoi-training checkpoint import anemoi.ckpt -o imported.ckpt\n",
    )
    parser.add_argument("checkpoint", metavar="FILE", type=Path, help="a checkpoint of anemoi-training")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="the .ckpt to write")
    parser.add_argument("--dataset", metavar="PATH", help="the dataset that the config names (default: the file's own)")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    parser.add_argument("--no-verify", action="store_true", help="do not compare with anemoi-models")


def run(args: argparse.Namespace) -> int:
    """Import a checkpoint."""
    output: Path = args.output
    if output.suffix != ".ckpt":
        what = f"the checkpoint is named *.ckpt, not {output.name!r}"
        raise UserError(what, where="--output", mend=shell_word(f"--output={output.with_suffix('.ckpt')}"))
    graph_file, config_file = output.with_suffix(".graph.pt"), output.with_suffix(".yaml")
    check_input(args.checkpoint)
    for target in (output, graph_file, config_file):
        check_output(target, args.checkpoint, force=args.force)
    from etesian.checkpoint.peer.convert import convert
    from etesian.checkpoint.peer.source import read_peer
    from etesian.checkpoint.peer.verify import TOLERANCE, can_verify, verify
    from etesian.compose import compose, to_yaml
    from etesian.files import save_torch, write_text
    from etesian.graph.store import save_graph

    common.register_kinds()
    source = read_peer(args.checkpoint)
    base = compose("own_data", None, ["system.input.dataset=imported.zarr"]).tree
    imported = convert(source, base, graph_file, args.dataset, output.stem)
    if args.no_verify:
        print("not compared with anemoi-models: --no-verify")
    elif can_verify():
        print(f"{verify(source, imported.forecaster):.1e} apart from anemoi-models on random numbers, ", end="")
        print(f"{TOLERANCE:.0e} allowed")
    else:
        print("not compared with anemoi-models, which is not installed")
    save_graph(imported.graph, graph_file)
    write_text(config_file, to_yaml(imported.config))
    save_torch(output, imported.checkpoint)
    parameters = sum(weight.numel() for weight in imported.forecaster.model.parameters())
    print(
        f"wrote {output}: {parameters:,} parameters of {source.contains} checkpoint {source.path}, step {source.step}"
    )
    print(f"wrote {graph_file} and {config_file}. To train on from it, in the folder of {config_file.name}:")
    words = ["--config-name", output.stem, f"training.fork_run_id={output}", "training.load_weights_only=true"]
    print(f"  anemoi-training train {' '.join(map(shell_word, words))}")
    return 0
