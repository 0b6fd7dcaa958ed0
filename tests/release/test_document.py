"""The document: what is written is read back, what disagrees is said, and what is not known is refused."""

import hashlib
import importlib.resources
import json
import re
import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import noisewise as nw
from noisewise.release.mechanism import Mechanism
from noisewise.release.privacy import Privacy
from noisewise.release.schema import json_schema

UNIT = nw.Column(-10, 10, rescale=(-1, 1), origin="questionnaire")
REGRESSION = nw.queries.regression_moments({"x1": UNIT, "x2": UNIT}, {"y": UNIT})
COUNTS = nw.queries.Counts(levels={"k": 2, "j": 3}, tables=[("k", "j"), ("j",)])
VALUES = np.linspace(-3, 7, 9)


def example(**options) -> nw.Release:
    return nw.Release(
        [
            nw.Measurement(REGRESSION, nw.noise.Laplace(13.0), VALUES, name="moments"),
            nw.Measurement(COUNTS, nw.noise.DiscreteGaussian(3.0), [np.arange(6.0).reshape(2, 3) + 14, [30, 40, 29]]),
        ],
        n=100,
        **options,
    )


def same(first: nw.Release, second: nw.Release) -> None:
    """Equal in everything that a release is, bit for bit."""
    assert (first.n, first.neighbours) == (second.n, second.neighbours)
    for one, other in zip(first.measurements, second.measurements, strict=True):
        assert one.query == other.query
        assert one.name == other.name
        assert type(one.noise) is type(other.noise)
        np.testing.assert_array_equal(one.noise.scale, other.noise.scale)
        np.testing.assert_array_equal(one.value, other.value)
    if first.privacy is not None:
        assert first.privacy.measure == second.privacy.measure
        assert float(first.privacy.loss) == float(second.privacy.loss)


def altered(path, change) -> None:
    """Rewrite a document after ``change`` has been at it."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def path(tmp_path):
    return example().save(tmp_path / "release.json")


def test_a_saved_release_is_read_back_bit_for_bit(path):
    same(example(), nw.Release.load(path))
    assert nw.Release.load(str(path)).stated is not None
    assert [file.name for file in path.parent.iterdir()] == ["release.json"]


bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
columns = st.builds(
    lambda ends, rescale: nw.Column(*ends, rescale),
    bounds.filter(lambda ends: ends[0] < ends[1]),
    st.sampled_from([None, (-1, 1), (0, 1)]),
)
scales = st.floats(1e-3, 1e9)


@st.composite
def measurements(draw):
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(["x", "y", "größe", "a b"]), min_size=1, max_size=2, unique=True))
        term = st.dictionaries(st.sampled_from(names), st.integers(1, 4), max_size=2)
        terms = draw(st.lists(term, min_size=1, max_size=3))
        query = nw.queries.Moments({name: draw(columns) for name in names}, terms)
        law = draw(st.sampled_from([nw.noise.Laplace, nw.noise.Gaussian]))
        number = st.floats(-1e300, 1e300)
    else:
        levels = {"k": draw(st.integers(1, 3)), "j": draw(st.integers(1, 2))}
        query = nw.queries.Counts(levels, draw(st.sampled_from([[("k",)], [("k", "j"), ("j",)], [("j", "k")]])))
        law = draw(st.sampled_from([nw.noise.DiscreteLaplace, nw.noise.DiscreteGaussian, nw.noise.Laplace]))
        number = st.integers(-(2**50), 2**50).map(float)
    scale = draw(scales | st.lists(scales, min_size=query.size, max_size=query.size))
    value = draw(st.lists(number, min_size=query.size, max_size=query.size))
    return nw.Measurement(query, law(scale), value)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.lists(measurements(), min_size=1, max_size=2),
    neighbours=st.sampled_from(["replace_one", "add_remove_one"]),
    inline=st.sampled_from([1, 1000]),
)
def test_any_release_survives_the_document(tmp_path, parts, neighbours, inline):
    parts = [*parts, nw.Measurement(COUNTS, nw.noise.Laplace(1e9), np.zeros(9))]  # so that something counts the records
    release = nw.Release(parts, neighbours=neighbours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(release, nw.Release.load(release.save(tmp_path / "any.json", inline=inline)))


@pytest.mark.parametrize("arrays", ["npy", "parquet"])
def test_long_arrays_go_to_files_that_are_checked(tmp_path, arrays):
    path = example().save(tmp_path / "big.json", arrays=arrays, inline=5)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == [f"big.1.values.{arrays}", f"big.2.values.{arrays}", "big.json"]
    same(example(), nw.Release.load(path))
    target = tmp_path / files[0]
    target.write_bytes(target.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ValueError, match=r"SHA-256 differs"):
        nw.Release.load(path)
    target.unlink()
    with pytest.raises(ValueError, match="not an ordinary file in the same folder"):
        nw.Release.load(path)


@pytest.mark.parametrize(
    "name", ["../secret.npy", "/etc/hostname", "a\\b.npy", "..", ".", "", "sub/values.npy", "nul\0.npy"]
)
def test_array_files_outside_the_folder_are_refused(tmp_path, name):
    folder = tmp_path / "inside"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", np.arange(9.0))
    path = example().save(folder / "release.json", inline=5)
    digest = hashlib.sha256((tmp_path / "secret.npy").read_bytes()).hexdigest()
    altered(path, lambda d: d["measurements"][0]["values"].update(file=name, sha256=digest))
    with pytest.raises(ValueError, match="only plain names of files in the same folder"):
        nw.Release.load(path)


def test_links_and_files_that_are_not_numbers_are_refused(tmp_path):
    folder = tmp_path / "inside"
    folder.mkdir()
    path = example().save(folder / "release.json", inline=5)
    file = folder / "release.1.values.npy"
    file.rename(tmp_path / "elsewhere.npy")
    file.symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(ValueError, match="not an ordinary file"):
        nw.Release.load(path)
    file.unlink()
    np.save(file, np.asarray([{"a": 1}] * 9), allow_pickle=True)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    altered(path, lambda d: d["measurements"][0]["values"].update(sha256=digest))
    with pytest.raises(ValueError, match="not npy of numbers"):
        nw.Release.load(path)
    np.save(file, np.zeros(8))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    altered(path, lambda d: d["measurements"][0]["values"].update(sha256=digest))
    with pytest.raises(ValueError, match=r"has shape \(8,\); 9 numbers"):
        nw.Release.load(path)


def set_in(*steps):
    """A change that puts the last step's value at the place the other steps lead to."""

    def change(document):
        *route, last, value = steps
        for step in route:
            document = document[step]
        document[last] = value

    return change


FIRST = ("measurements", 0)
REFUSED = {
    "another format": (set_in("format", "csv"), "format is 'csv'; supported is 'dp-release'"),
    "another version": (set_in("version", 2), "version is 2; supported is 1"),
    "post-processing": (
        set_in("postprocessing", ["rounded"]),
        r"post-processed \(\['rounded'\]\); supported are values as",
    ),
    "another law": (
        set_in(*FIRST, "mechanism", "noise", "law", "cauchy"),
        "noise law 'cauchy'; supported: discrete_gau",
    ),
    "another query": (
        set_in(*FIRST, "mechanism", "query", "kind", "median"),
        "query 'median'; supported: counts, moments",
    ),
    "another mechanism": (
        set_in(*FIRST, "mechanism", "kind", "lottery"),
        "mechanism 'lottery'; supported: additive_noise",
    ),
    "a seed": (set_in("seed", 7), "at seed: extra inputs are not permitted; got '7'"),
    "an exact value": (set_in(*FIRST, "exact", [1.0]), "at measurements.0.exact: extra inputs are not permitted"),
    "values of another length": (set_in(*FIRST, "values", [1.0, 2.0]), r"releases 9 number\(s\)"),
    "values as text": (set_in(*FIRST, "values", "many"), "at measurements.0.values"),
    "negative scale": (set_in(*FIRST, "mechanism", "noise", "scale", -1.0), "scale must be positive"),
    "reversed bounds": (set_in(*FIRST, "mechanism", "query", "columns", "x1", "lower", 99.0), "lower < upper"),
    "n as text": (set_in("n", "value", "100"), "at n.value: input should be a valid integer; got '100'"),
    "n zero": (set_in("n", "value", 0), "at n.value: input should be greater than or equal to 1"),
    "n unknown and known": (set_in("n", "status", "unknown"), "contradict each other"),
    "n against the counts": (set_in("n", "value", 10**6), "contradicts the released counts"),
    "no measurements": (set_in("measurements", []), "at measurements: list should have at least 1 item"),
    "fraction in an integer law": (set_in("measurements", 1, "values", [0.5] * 9), "releases integers"),
    "unknown relation": (
        set_in("neighbours", "swap"),
        "at neighbours: .*'replace_one' or 'add_remove_one'.*got 'swap'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_document_that_is_not_understood_is_refused_with_a_sentence(path, case):
    change, sentence = REFUSED[case]
    altered(path, change)
    with pytest.raises(ValueError, match=sentence) as caught:
        nw.Release.load(path)
    assert "release.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "format is 'list'"),
        ('{"a": NaN}', "format is None"),
    ],
    ids=["text", "nesting without end", "a list", "no format"],
)
def test_files_that_are_not_documents_are_refused(tmp_path, text, sentence):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        nw.Release.load(tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"'absent\.json' cannot be read"):
        nw.Release.load(tmp_path / "absent.json")


def test_nan_smuggled_into_the_values_is_refused(path):
    path.write_text(path.read_text().replace("-3.0", "NaN", 1))
    with pytest.raises(ValueError, match=r"at measurements.0.values|not valid"):
        nw.Release.load(path)


WARNED = {
    "a smaller epsilon": (
        set_in(*FIRST, "privacy", "epsilon", 0.5),
        "states epsilon = 0.5 .* for measurement moments.*epsilon = 1 ",
    ),
    "a smaller rho of the whole": (
        set_in("privacy", "rho", 0.1),
        "states rho = 0.1 .* for the release.* give rho = 0.722",
    ),
    "a sensitivity of another query": (
        set_in(*FIRST, "sensitivity", "value", 2.0),
        "states the l1 sensitivity 2 for measurement moments, .* give 13 under replace_one",
    ),
    "another scale": (set_in(*FIRST, "mechanism", "noise", "scale", 1.3), "epsilon = 1 .*give epsilon = 10 "),
    "pure where the noise is Gaussian": (
        set_in("measurements", 1, "privacy", {"measure": "pure", "epsilon": 1.0}),
        "states epsilon = 1 .*give rho",
    ),
    "a proof that does not hold": (set_in(*FIRST, "mechanism", "query", "l1", 9.0), "too small: replacing one record"),
    "wider bounds": (
        set_in(*FIRST, "mechanism", "query", "columns", "x1", "rescale", [-9.0, 9.0]),
        "set aside.*too small: replacing one record",
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_a_statement_that_disagrees_with_its_own_numbers_is_called_out(path, case):
    change, sentence = WARNED[case]
    altered(path, change)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        release = nw.Release.load(path)
    assert any(re.search(sentence, str(warning.message)) for warning in caught)
    np.testing.assert_array_equal(release.measurements[0].value, VALUES)  # the data are still usable


def test_what_holds_code_cannot_be_written(tmp_path):
    class Own(Mechanism):
        """A mechanism of the user's own."""

        columns = ("x",)
        size = 1

        def statistics(self, records, released):
            return records["x"][:, None]

        def log_density(self, released, total):
            return jnp.zeros(())

        def simulate(self, key, total):
            return total

    custom = nw.queries.Custom(lambda record: record["x"], 1)
    with pytest.raises(
        ValueError, match="a Custom query and Laplace noise cannot be written: a document holds no code"
    ):
        nw.Release([nw.Measurement(custom, nw.noise.Laplace(1.0), [1.0])], n=3).save(tmp_path / "a.json")
    with pytest.raises(ValueError, match="made by a Own mechanism cannot be written: a document holds no code"):
        nw.Release([nw.Measurement(mechanism=Own(), value=[1.0])], n=3).save(tmp_path / "a.json")
    with pytest.raises(ValueError, match="arrays must be 'npy' or 'parquet'; got 'zip'"):
        example().save(tmp_path / "a.json", arrays="zip")
    with pytest.raises(ValueError, match="does not exist; create it first"):
        example().save(tmp_path / "missing" / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_json_schema_is_current():
    shipped = importlib.resources.files("noisewise.release").joinpath("schema.json").read_text()
    assert json.loads(shipped) == json.loads(json.dumps(json_schema()))


def test_the_description_says_who_what_how_and_at_what_price():
    text = example(stated=Privacy("approximate", 4.0, 1e-6)).describe()
    for phrase in (
        "2 measurements of n = 100 records, a number that is public",
        "neighbouring tables differ by replacing one record",
        "as stated by the data holder, is epsilon = 4, delta = 1e-06 (approximate differential privacy)",
        "1. moments: Sums over the records of 9 monomial(s) of x1, x2 and y, clamped to public bounds:",
        "x1 is clamped to [-10, 10], then mapped to [-1, 1] (origin of the bounds: questionnaire)",
        "independent Laplace noise with scale 13 on each number",
        "L1 sensitivity 13; alone it costs epsilon = 1 (pure differential privacy)",
        "2. Counts of records in 2 table(s), k by j; j: 9 cells in all",
        "L2 sensitivity 2; alone it costs rho = 0.222222 (zero-concentrated differential privacy)",
        "k=1,j=2  19",
    ):
        assert phrase in text
    unknown = nw.Release(
        [nw.Measurement(COUNTS, nw.noise.Laplace(np.arange(1.0, 10)), np.zeros(9))], neighbours="add_remove_one"
    )
    assert "an unknown number of records" in unknown.describe()
    assert "scales from 1 to 9, one for each number" in unknown.describe()


def test_long_releases_are_described_briefly():
    query = nw.queries.Counts({"k": 500}, [("k",)])
    text = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), np.ones(500))], n=500).describe()
    assert "... and 480 more." in text


def test_new_values_scales_and_promises_do_not_recompile():
    traces = []

    @eqx.filter_jit
    def density(release, total):
        traces.append(None)
        return release.log_density(total)

    for factor in (1.0, 2.0, 3.0):
        measurement = nw.Measurement(REGRESSION, nw.noise.Laplace(factor), factor * VALUES)
        release = nw.Release([measurement], n=100, stated=Privacy("pure", 13 / factor))
        wanted = -np.sum(np.abs(factor * VALUES - 1)) / factor - 9 * np.log(2 * factor)
        assert float(density(release, jnp.ones(9))) == pytest.approx(wanted, rel=1e-13)
    assert len(traces) == 1


def test_releases_can_be_made_inside_compiled_functions():
    @jax.jit
    def density(value, scale, tables):
        release = nw.Release(
            [
                nw.Measurement(REGRESSION, nw.noise.Laplace(scale), value),
                nw.Measurement(COUNTS, nw.noise.Gaussian(scale), tables),
            ],
            n=100,
        )
        return release.log_density(jnp.zeros(18))

    value, tables = jnp.asarray(VALUES), [jnp.ones((2, 3)), jnp.ones(3)]
    found = density(value, jnp.asarray(2.0), tables)
    wanted = -np.sum(np.abs(VALUES)) / 2 - 9 * np.log(4) - 9 * (1 / 8 + np.log(2) + np.log(2 * np.pi) / 2)
    assert float(found) == pytest.approx(wanted, rel=1e-13)
    many = jax.vmap(density, in_axes=(0, None, None))(jnp.stack([value, value]), jnp.asarray(2.0), tables)
    assert many.tolist() == [float(found)] * 2


def test_a_release_splits_joins_and_simulates_its_measurements():
    release = example()
    records = {name: jnp.asarray([0.0, 1.0]) for name in release.columns}
    rows = release.statistics(records)
    assert (release.size, rows.shape) == (18, (2, 18))
    first, second = release.split(rows.sum(axis=0))
    np.testing.assert_allclose(first, REGRESSION({k: np.asarray(v) for k, v in records.items()}), atol=1e-15)
    simulated = release.simulate(jax.random.key(0), jnp.broadcast_to(rows.sum(axis=0), (4000, 18)))
    for part, total, scale in zip(simulated, (first, second), (np.sqrt(2) * 13, 3.0), strict=True):
        np.testing.assert_allclose(np.mean(part, axis=0), total, atol=5 * scale / np.sqrt(4000))


def test_releases_are_made_without_loading_what_only_files_and_publishing_need():
    code = (
        "import sys, noisewise as nw; q = nw.queries.Counts({'k': 2}, [('k',)]);"
        "nw.Release([nw.Measurement(q, nw.noise.Laplace(1.0), [[1, 2]])], n=3);"
        "sys.exit(bool({'pydantic', 'opendp', 'pyarrow', 'pandas', 'scipy.optimize'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
