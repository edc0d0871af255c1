"""Prints the coverage of modules as tables, from the JSON of cargo-llvm-cov.

Arguments: the file, and the folder of the sources.
"""

import json
import sys
from collections import defaultdict

CRATES = (
    "format", "locks", "pagecache", "device", "store",
    "engine", "progs", "fs", "transfer", "papilio",
)
MEASURED = tuple(f"crates/{crate}/src" for crate in CRATES)
# Modules with fewer lines are one row, "others" of their crate.
SMALL = 200


def is_test(path):
    return "/tests/" in path or path.endswith(("/tests.rs", "/testing.rs", "_tests.rs"))


def module_of(path):
    """Return the crate and the first folder of a file."""
    crate, rest = path.removeprefix("crates/").split("/src/")
    return crate, rest.split("/")[0].removesuffix(".rs")


def missed_lines(segments):
    """Return the lines that begin with a region which was never reached."""
    missed, covered = set(), set()
    for line, _, count, has_count, is_entry, is_gap in segments:
        if has_count and is_entry and not is_gap:
            (covered if count else missed).add(line)
    return missed - covered


def main():
    with open(sys.argv[1]) as file:
        found = json.load(file)["data"][0]
    root = sys.argv[2] + "/"
    rows, missed = defaultdict(lambda: [0, 0, 0, 0]), []
    for file in found["files"]:
        path = file["filename"].removeprefix(root)
        if not path.startswith(MEASURED) or is_test(path):
            continue
        summary = file["summary"]
        counts = [summary[kind][part] for kind in ("lines", "regions") for part in ("count", "covered")]
        row = rows[module_of(path)]
        for index, count in enumerate(counts):
            row[index] += count
        missed.append((counts[0] - counts[1], path, sorted(missed_lines(file["segments"]))))

    merged = defaultdict(lambda: [0, 0, 0, 0])
    for (crate, module), row in rows.items():
        name = (crate, module if row[0] >= SMALL else "others")
        merged[name] = [a + b for a, b in zip(merged[name], row)]
        merged[(crate, "all")] = [a + b for a, b in zip(merged[(crate, "all")], row)]
        merged[("", "all")] = [a + b for a, b in zip(merged[("", "all")], row)]
    print("| crate | module | lines | lines reached | regions reached |\n|---|---|---|---|---|")
    for (crate, module), (lines, reached, regions, entered) in sorted(merged.items()):
        share = [f"{100 * part / max(1, whole):.1f} %" for part, whole in ((reached, lines), (entered, regions))]
        print(f"| {crate or 'all'} | {module} | {lines} | {share[0]} | {share[1]} |")
    print("\n| lines not reached | file | regions that are not reached begin in lines |\n|---|---|---|")
    for count, path, lines in sorted(missed, reverse=True)[:60]:
        print(f"| {count} | {path} | {' '.join(map(str, lines[:40]))} |")


main()
