"""Mechanisms without code are written and read back, described in words; the others are refused by name with the reason."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanism_cases import CASES

import noisewise as nw
from noisewise.release.mechanisms.refused import REASONS
from noisewise.release.query_documents import in_place
from noisewise.release.schema import write_document

WRITTEN = [name for name in CASES if name.startswith(("k-norm l", "truncated", "clipped", "randomised", "functional"))]
TABLE = np.random.default_rng(3).normal(size=(700, 2))


def release_of(name: str) -> nw.Release:
    return nw.Release([nw.Measurement(mechanism=CASES[name].mechanism, value=CASES[name].value, name="m")], n=3)


def same(first: nw.Release, second: nw.Release) -> None:
    for one, other in zip(first.measurements, second.measurements, strict=True):
        assert type(one.mechanism) is type(other.mechanism)
        assert jax.tree.structure(one.mechanism) == jax.tree.structure(other.mechanism)
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_mechanism_without_code_is_read_back_bit_for_bit(name, tmp_path):
    release = release_of(name)
    again = nw.Release.load(release.save(tmp_path / "a.json"))
    same(release, again)
    assert again.describe().splitlines()[2:] == release.describe().splitlines()[2:]


@pytest.mark.parametrize("arrays", ["npy", "parquet"])
@pytest.mark.parametrize(
    "scale", [0.5, np.asarray([0.5, 1.0]), np.abs(TABLE), np.abs(TABLE[:, :1])], ids=lambda s: str(np.shape(s))
)
def test_a_long_table_of_records_goes_to_files_beside_the_document(arrays, scale, tmp_path):
    query = nw.queries.Records(columns=("x", "y"))
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(scale), TABLE)], n=700)
    again = nw.Release.load(release.save(tmp_path / "a.json", arrays=arrays))
    np.testing.assert_array_equal(again.measurements[0].value, TABLE)
    broadcast = [np.broadcast_to(r.measurements[0].mechanism.noise.scale, TABLE.shape) for r in (release, again)]
    np.testing.assert_array_equal(*broadcast)
    assert (tmp_path / "a.1.records.parquet").exists()
    assert np.size(scale) <= 1000 or (tmp_path / f"a.1.scale.{arrays}").exists()


def test_a_table_that_does_not_fill_its_columns_is_refused(tmp_path):
    document = json.loads(write_document(release_of("randomised response"), in_place).model_dump_json())
    document["measurements"][0]["values"].pop()
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="columns \\['y', 'x1'\\] cannot hold 5 numbers"):
        nw.Release.load(path)


@pytest.mark.parametrize("name", REASONS)
@pytest.mark.parametrize("where", [("mechanism", "kind"), ("mechanism", "noise", "law")])
def test_a_refused_mechanism_is_refused_with_its_reason_on_loading(name, where, tmp_path):
    path = release_of("clipped laplace").save(tmp_path / "a.json")
    document = json.loads(path.read_text())
    part = document["measurements"][0]
    for step in where[:-1]:
        part = part[step]
    part[where[-1]] = name
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"{name}', which cannot be analysed") as caught:
        nw.Release.load(path)
    assert REASONS[name] in str(caught.value)
    with pytest.raises(ValueError, match=f"A release by {name} cannot be analysed"):
        nw.mechanisms.refuse(name)


@pytest.mark.parametrize("name", ["exponential", "objective, l2 tilt", "k-norm gradient, location"])
def test_a_mechanism_with_code_is_not_written(name, tmp_path):
    with pytest.raises(ValueError, match="cannot be written: a document holds no code"):
        release_of(name).save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["exponential", "objective_perturbation", "k_norm_gradient"])
def test_the_name_of_a_mechanism_with_code_is_refused_on_loading(kind, tmp_path):
    path = release_of("clipped laplace").save(tmp_path / "a.json")
    document = json.loads(path.read_text())
    document["measurements"][0]["mechanism"]["kind"] = kind
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="part of which is a function, and a document holds no code"):
        nw.Release.load(path)


def test_a_statement_of_privacy_that_the_mechanism_does_not_keep_is_told(tmp_path):
    path = release_of("truncated laplace").save(tmp_path / "a.json")
    document = json.loads(path.read_text())
    document["privacy"]["epsilon"] /= 2
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="but its bounds, terms and noise scales give"):
        nw.Release.load(path)


WORDS = {
    "exponential": "one of 4 public candidates, chosen with probability proportional to exp(1.5 score)",
    "objective, l2 tilt": "a ridge of 0.05 and a random linear tilt (with density falling with its Euclidean length, scale 0.9)",
    "objective, gaussian tilt": "a random linear tilt (Gaussian with sd 1.5)",
    "k-norm gradient, location": "exp(-1 times the sum of absolute values of the summed loss gradients)",
    "k-norm linf": "one vector whose density falls with its largest absolute value, with scale 0.5",
    "truncated gaussian": "each number drawn again until it was between -0.5 and 1",
    "clipped laplace": "after which each number was moved to the nearer end unless it was between 0 and 1.",
    "clipped and rounded gaussian": "rounded to multiples of 2 and then moved to the nearer end unless it was between 0 and 4",
    "randomised response": "a code is reported truly with probability 0.7, else as the other code",
}


@pytest.mark.parametrize("name", WORDS)
def test_a_mechanism_is_described_in_words(name):
    assert WORDS[name] in release_of(name).describe()


def test_a_release_without_a_known_price_says_so():
    assert "cannot be had from the measurements alone" in release_of("objective, l2 tilt").describe()


CODES = nw.queries.Records(columns=("x",))
SUM = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
HALF = nw.queries.Moments({"x": nw.Column(0, 0.5)}, [{"x": 1}])
LAPLACE, INTEGER = nw.noise.Laplace(1.0), nw.noise.DiscreteLaplace(1.0)


def loss(record, s):
    return jnp.sum((record["x"] - s) ** 2)


def objective(**options):
    return nw.mechanisms.ObjectivePerturbation(**({"loss": loss, "dimension": 1, "ridge": 1.0, "scale": 1.0} | options))


def gradient(**options):
    settings = {"loss": loss, "dimension": 1, "epsilon": 1.0, "sensitivity": 1.0, "normaliser": "constant"}
    return nw.mechanisms.KNormGradient(**(settings | options))


def choice(**options):
    settings = {"utility": lambda r, c: r["x"] * c, "candidates": [0.0, 1.0], "epsilon": 1.0, "sensitivity": 1.0}
    return nw.mechanisms.ExponentialMechanism(**(settings | options))


def of_records(records):
    return records["x"].std()


REFUSED = {
    "scale of k-norm noise from records": (
        lambda: nw.mechanisms.KNormNoise(SUM, of_records),
        "scale must be public, not a function .* computed from the confidential records",
    ),
    "scale of a tilt from records": (lambda: objective(scale=of_records), "scale must be public, not a function"),
    "ridge from records": (lambda: objective(ridge=of_records), "ridge must be public, not a function"),
    "epsilon from records": (lambda: choice(epsilon=of_records), "epsilon must be public, not a function"),
    "sensitivity from records": (lambda: gradient(sensitivity=of_records), "sensitivity must be public"),
    "candidates from records": (
        lambda: choice(candidates=of_records),
        "its candidates were picked from the confidential",
    ),
    "lower from records": (
        lambda: nw.mechanisms.TruncatedNoise(SUM, LAPLACE, lower=of_records),
        "lower must be public.*clamping bounds were picked from the confidential records",
    ),
    "upper from records": (lambda: nw.mechanisms.CensoredNoise(SUM, LAPLACE, upper=of_records), "upper must be public"),
    "noise from records": (lambda: nw.mechanisms.TruncatedNoise(SUM, of_records, lower=0), "noise must be public"),
    "flip from records": (lambda: nw.noise.RandomisedResponse(of_records), "flip must be one public probability"),
    "no end": (lambda: nw.mechanisms.TruncatedNoise(SUM, LAPLACE), "needs lower, upper or both"),
    "nothing censored": (lambda: nw.mechanisms.CensoredNoise(SUM, LAPLACE), "needs lower, upper or rounding"),
    "reversed": (lambda: nw.mechanisms.TruncatedNoise(SUM, LAPLACE, lower=2, upper=1), "lower < upper"),
    "no integers between": (
        lambda: nw.mechanisms.TruncatedNoise(SUM, INTEGER, lower=0.2, upper=0.7),
        "2 to 100000 integers",
    ),
    "integers of fractions": (lambda: nw.mechanisms.CensoredNoise(HALF, INTEGER, lower=0), "does not release integers"),
    "end off the grid": (
        lambda: nw.mechanisms.CensoredNoise(SUM, LAPLACE, lower=0.3, rounding=0.5),
        "lower must be a multiple of the released grid's step 0.5",
    ),
    "end off the integers": (lambda: nw.mechanisms.CensoredNoise(SUM, INTEGER, upper=1.5), "upper must be a multiple"),
    "rounded integers": (lambda: nw.mechanisms.CensoredNoise(SUM, INTEGER, rounding=1), "leave rounding out"),
    "wide tail": (
        lambda: nw.mechanisms.CensoredNoise(SUM, nw.noise.DiscreteGaussian(1e6), lower=0),
        "needs a sum of 9000008 terms",
    ),
    "records in an interval": (
        lambda: nw.mechanisms.CensoredNoise(CODES, LAPLACE, lower=0),
        "are sums of nw.queries; got RecordColumns",
    ),
    "a law as a mechanism": (lambda: nw.Measurement(mechanism=LAPLACE, value=[1.0]), "must be one of nw.mechanisms"),
    "wide tail drawn again": (
        lambda: nw.mechanisms.TruncatedNoise(SUM, nw.noise.DiscreteGaussian(1e6), upper=0),
        "needs a sum of 9000008 terms",
    ),
    "scales that do not fit": (
        lambda: nw.mechanisms.TruncatedNoise(SUM, nw.noise.Laplace([1.0, 2.0]), lower=0),
        "scale must be one number or one for each of the 1 numbers",
    ),
    "ball": (lambda: nw.mechanisms.KNormNoise(SUM, 1.0, "l3"), "ball must be 'l1', 'l2' or 'linf'"),
    "ball of gradients": (lambda: gradient(ball="l3"), "ball must be"),
    "no query": (lambda: nw.mechanisms.KNormNoise(None, 1.0), "must be one of nw.queries"),
    "both normalisers": (lambda: gradient(simulator=lambda k, r: None), "exactly one of them"),
    "no normaliser": (lambda: gradient(normaliser=None), "exactly one of them"),
    "dimension": (lambda: objective(dimension=1.5), "dimension must be a whole number of at least 1"),
    "columns as one word": (lambda: objective(columns="age"), "columns must be distinct names"),
    "loss": (lambda: objective(loss=3), "loss must be a function of a record"),
    "one candidate": (lambda: choice(candidates=[1.0]), "at least 2 candidates"),
    "named candidates": (lambda: choice(candidates=["bus", "train"]), "names are given as their positions"),
    "ragged candidates": (lambda: choice(candidates=[[1.0], [1.0, 2.0]]), "each a finite number or a vector of them"),
    "score as a number": (lambda: choice(score=3), "score must be a function of the sums"),
    "simulator as a number": (lambda: gradient(normaliser=None, simulator=3), "simulator must be a function"),
    "another normaliser": (
        lambda: gradient(normaliser="known", simulator=lambda k, r: None),
        "exactly one of them. Got normaliser='known'",
    ),
    "negative ridge": (lambda: objective(ridge=-1), "ridge must be one finite number, 0 or more; got -1"),
    "an end as a word": (lambda: nw.mechanisms.CensoredNoise(SUM, LAPLACE, lower="zero"), "two numbers, lower < upper"),
    "ends as a list": (lambda: nw.mechanisms.TruncatedNoise(SUM, LAPLACE, upper=[1, 2]), "two numbers, lower < upper"),
    "flip as a word": (lambda: nw.noise.RandomisedResponse("often"), "one probability strictly between 0 and 1"),
    "epsilon of reports as a word": (
        lambda: nw.noise.RandomisedResponse.calibrated("one"),
        "epsilon must be positive and finite; got 'one'",
    ),
    "endless candidate": (lambda: choice(candidates=[1.0, np.inf]), "each a finite number"),
    "score of another shape": (lambda: choice(score=jnp.sum), "score must map the 2 sums"),
    "negative scale": (lambda: nw.mechanisms.KNormNoise(SUM, -1.0), "one positive finite number; got -1.0"),
    "records with sum noise": (lambda: nw.Measurement(CODES, LAPLACE.log_prob, [[1.0]]), "must be one of nw.noise"),
    "outside": (
        lambda: nw.Measurement(mechanism=nw.mechanisms.CensoredNoise(SUM, LAPLACE, lower=0), value=[-1.0]),
        r"must lie in \[0, inf\]; got -1",
    ),
    "off the grid": (
        lambda: nw.Measurement(mechanism=nw.mechanisms.CensoredNoise(SUM, LAPLACE, rounding=0.5), value=[0.7]),
        "multiple of the rounding 0.5; got 0.7",
    ),
    "fraction of integers": (
        lambda: nw.Measurement(mechanism=nw.mechanisms.CensoredNoise(SUM, INTEGER, lower=0), value=[0.7]),
        "releases integers",
    ),
    "no such candidate": (
        lambda: nw.Measurement(mechanism=choice(), value=2),
        "position of the chosen candidate, 0 to 1",
    ),
    "wrong vector": (lambda: nw.Measurement(mechanism=objective(), value=[1.0, 2.0]), "must have 1 numbers"),
    "code": (lambda: nw.Measurement(CODES, nw.noise.RandomisedResponse(0.1), [[2.0]]), "codes 0 to 1; got 2"),
    "scale of a table": (
        lambda: nw.Measurement(CODES, nw.noise.Laplace([1.0, 2.0, 3.0]), [[2.0], [1.0]]),
        "one a column or one a cell of the table",
    ),
    "uneven columns": (
        lambda: nw.Measurement(nw.queries.Records(("x", "y")), LAPLACE, {"x": [1.0, 2.0], "y": [1.0]}),
        "differ in length",
    ),
    "unknown refusal": (lambda: nw.mechanisms.refuse("laplace"), "Nothing is known against 'laplace'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_gets_a_sentence(name):
    make, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_function_of_a_record_is_checked_when_it_meets_its_columns():
    records = {"x": jnp.zeros(3)}
    unread = objective(loss=lambda record, s: record["y"] * s[0])
    with pytest.raises(ValueError, match=r"reads the column 'y'.*columns=\('x',\)"):
        unread.statistics(records, jnp.zeros(1))
    vector = objective(loss=lambda record, s: record["x"] * s)
    with pytest.raises(ValueError, match="one number for one record; it gives an array of shape \\(1,\\)"):
        vector.statistics(records, jnp.zeros(1))
    table = choice(utility=lambda record, c: jnp.stack([record["x"], c]))
    with pytest.raises(ValueError, match="utility must give one number"):
        table.statistics(records, jnp.zeros(()))
    numpy = choice(utility=lambda record, c: np.abs(record["x"] - c))
    with pytest.raises(ValueError, match=r"utility must be written with jax\.numpy"):
        numpy.statistics(records, jnp.zeros(()))
    crooked = gradient(normaliser=None, simulator=lambda key, records: jnp.zeros(2))
    with pytest.raises(ValueError, match="simulator must give 1 numbers; it gives shape \\(2,\\)"):
        crooked.respond(jax.random.key(0), records, jnp.zeros(1))


def test_another_value_scale_or_interval_compiles_nothing_new():
    traces = []

    @eqx.filter_jit
    def density(measurement):
        traces.append(1)
        return measurement.mechanism.log_density(measurement.value, jnp.zeros(1))

    for scale, value, end in ((1.0, 0.3, 0.0), (2.0, 1.0, -1.0)):
        mechanism = nw.mechanisms.TruncatedNoise(SUM, nw.noise.Laplace(scale), lower=end)
        density(nw.Measurement(mechanism=mechanism, value=[value]))
    assert len(traces) == 1
