"""`python -m bench`: measure the standard set, keep the results, draw the plot, fill the tables of the documents."""

from __future__ import annotations

import argparse

import torch

from bench import inference, plot, tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="the standard inference benchmark")
    parser.add_argument("networks", nargs="*", help="names of the set; all of them by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each network and batch size")
    parser.add_argument("--quick", action="store_true", help="a second each; keeps nothing")
    parser.add_argument("--quieter", action="store_true", help="keep an earlier run of this commit that was quieter")
    parser.add_argument("--tables", action="store_true", help="measure nothing: tables and plot from the kept results")
    arguments = parser.parse_args()
    known = [case.name for case in inference.standard_set()]
    unknown = [name for name in arguments.networks if name not in known]
    if unknown:
        parser.error(f"no network {unknown[0]!r}: choose from {', '.join(known)}")
    torch.set_num_threads(1)
    measured = [] if arguments.tables else inference.run_set(arguments.seconds, arguments.networks)
    if arguments.quick:
        show([*inference.run_set(1.0, arguments.networks)])
        return
    machine = inference.this_machine()
    for case in measured:  # kept one by one: a set that is interrupted has not run in vain
        show([case])
        inference.save(inference.merged(inference.kept_result(machine), case, machine, quieter=arguments.quieter))
        publish()
    if arguments.tables:
        publish()


def publish() -> None:
    """Plot and tables from the kept results."""
    results = tables.load_results()
    tables.PLOT.parent.mkdir(parents=True, exist_ok=True)
    tables.PLOT.write_text(plot.draw(results[0]), encoding="utf-8")
    tables.update_documents(results)


def show(cases: list[tables.Json]) -> None:
    for name in ("ratios", "integers", "costs"):
        print(tables.TABLES[name]({"cases": cases}), flush=True)


if __name__ == "__main__":
    main()
