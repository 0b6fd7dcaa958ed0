"""The data holder's side: a differentially private posterior from the records themselves, under a budget.

``budget = Budget(...)``, ``plan(method, budget, n=...)``, ``sample(target, records, plan)``. Neighbours are data sets of the same public
size that differ in one record. Read ``docs/private`` first: the threat model, the accounting, and when one noisy
statistic is better.
"""

from noisewise.private import accounting, targets
from noisewise.private.barker import Barker
from noisewise.private.baselines import one_posterior_sampling, posterior_given_totals, posterior_on_records
from noisewise.private.budget import Budget
from noisewise.private.hmc import HMC
from noisewise.private.minibatch import MinibatchPenalty
from noisewise.private.oneshot import oneshot
from noisewise.private.penalty import Penalty
from noisewise.private.plan import Plan, plan
from noisewise.private.records import Stream
from noisewise.private.sample import sample
from noisewise.private.tune import Tuned, tune

__all__ = [
    "HMC",
    "Barker",
    "Budget",
    "MinibatchPenalty",
    "Penalty",
    "Plan",
    "Stream",
    "Tuned",
    "accounting",
    "one_posterior_sampling",
    "oneshot",
    "plan",
    "posterior_given_totals",
    "posterior_on_records",
    "sample",
    "targets",
    "tune",
]
