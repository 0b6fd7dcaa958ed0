"""Make the records of this example: 500 simulated people, whose relief grows with the dose and falls with age."""

from pathlib import Path

import numpy as np

rng = np.random.default_rng(7)
age = rng.normal(50, 12, 500)
dose = rng.normal(20, 5, 500)
relief = 8 - 0.1 * age + 0.4 * dose + rng.normal(0, 2, 500)
lines = [f"{a:.1f},{d:.1f},{r:.2f}" for a, d, r in zip(age, dose, relief, strict=True)]
Path(__file__).with_name("records.csv").write_text("\n".join(["age,dose,relief", *lines]) + "\n")
