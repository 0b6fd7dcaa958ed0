"""``noisewise publish``: records and a query file in, a release document out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.commands.terminal import existing, say, writable
from noisewise.query_file import load_plan
from noisewise.release.publish import publish
from noisewise.release.tables import column_names


def run(records: Path, config: Path, output: Path, *, as_json: bool = False) -> None:
    """Read the plan, then the records, publish and write."""
    writable(output, ".json")
    plan = load_plan(existing(config, "query file"))
    table = read_records(existing(records, "table of records"))
    release = publish(
        table, plan.queries, plan.noises, n=plan.n, neighbours=plan.neighbours, names=plan.names, delta=plan.delta
    )
    release.save(output)
    if as_json:
        found = {
            "output": str(output),
            "n": release.n,
            "neighbours": release.neighbours,
            "guarantee": str(release.privacy),
            "measurements": {
                name: {"numbers": m.mechanism.size, "law": m.noise.name, "scale": np.asarray(m.noise.scale).tolist()}
                for name, m in zip(release.names, release.measurements, strict=True)
                if m.noise is not None
            },
        }
        say(json.dumps(found, indent=2))
        return
    count = "an undisclosed number of" if release.n is None else f"{release.n:,}"
    say(f"Published {release.size} numbers about {count} records of {records}, guarantee {release.privacy}.")
    for name, measurement in zip(release.names, release.measurements, strict=True):
        assert measurement.noise is not None
        scale = np.asarray(measurement.noise.scale)
        say(
            f"  {name}: {measurement.mechanism.size} numbers, {measurement.noise.name} noise of scale {scale.max():.6g}"
        )
    say(
        f"Wrote {output}. It is public; the records are not. Every further run on the same records adds its loss to this one."
    )


def read_records(path: Path) -> Any:
    """A table of records from a CSV or a Parquet file."""
    import pyarrow as pa

    kind = path.suffix.lower()
    if kind not in (".csv", ".txt", ".parquet", ".pq"):
        raise ValueError(
            f"The records {str(path)!r} must be a .csv or a .parquet file; got the ending {path.suffix!r}."
        )
    try:
        if kind in (".parquet", ".pq"):
            from pyarrow import parquet

            table = parquet.read_table(path)
        else:
            from pyarrow import csv

            table = csv.read_csv(path)
        column_names(table)  # which decodes them
    except (pa.ArrowInvalid, UnicodeDecodeError) as problem:
        raise ValueError(f"The records {str(path)!r} cannot be read: {str(problem).rstrip('.')}.") from None
    return table
