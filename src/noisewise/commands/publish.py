"""``noisewise publish``: records and a query file in, a release document out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.commands.terminal import existing, say, writable
from noisewise.query_file import load_plan
from noisewise.release.describe import mechanism_words
from noisewise.release.mechanism import AdditiveNoise, Mechanism
from noisewise.release.noise import RandomisedResponse
from noisewise.release.publish import publish
from noisewise.release.records import Law, RecordNoise
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
            "guarantee": None if release.privacy is None else str(release.privacy),
            "measurements": {
                name: {"numbers": int(np.size(m.value)), **_laws(m.mechanism)}
                for name, m in zip(release.names, release.measurements, strict=True)
            },
        }
        say(json.dumps(found, indent=2))
        return
    count = "an undisclosed number of" if release.n is None else f"{release.n:,}"
    guarantee = (
        "without a guarantee that could be stated" if release.privacy is None else f"guarantee {release.privacy}"
    )
    numbers = sum(int(np.size(measurement.value)) for measurement in release.measurements)
    say(f"Published {numbers} numbers about {count} records of {records}, {guarantee}.")
    for name, measurement in zip(release.names, release.measurements, strict=True):
        say(f"  {name}: {int(np.size(measurement.value))} numbers. {mechanism_words(measurement.mechanism)}")
    say(
        f"Wrote {output}. It is public; the records are not. Every further run on the same records adds its loss to this one."
    )


def _laws(mechanism: Mechanism) -> dict[str, Any]:
    """The law of a measurement's noise; where every record has noise, by column."""
    if isinstance(mechanism, RecordNoise):
        return {"columns": {name: _law(law) for name, law in mechanism.laws.items()}}
    assert isinstance(mechanism, AdditiveNoise)
    return _law(mechanism.noise)


def _law(law: Law) -> dict[str, Any]:
    if isinstance(law, RandomisedResponse):
        return {"law": "randomised_response", "flip": float(law.flip), "levels": law.levels}
    return {"law": law.name, "scale": np.asarray(law.scale).tolist()}


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
