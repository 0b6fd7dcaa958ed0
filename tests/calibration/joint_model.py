"""Several models side by side, each of its own columns, so that one compiled program serves for all of them."""

import jax
import jax.numpy as jnp

from noisewise.models import Model


class Joint(Model):
    """Independent models of the columns of one table; every parameter has the name of its model before its own."""

    parts: dict[str, Model]

    @property
    def columns(self):
        return tuple(name for model in self.parts.values() for name in model.columns)

    @property
    def parameters(self):
        return {f"{at}.{name}": p for at, model in self.parts.items() for name, p in model.parameters.items()}

    @property
    def conjugate(self):
        return all(model.conjugate for model in self.parts.values())

    def sample_prior(self, key):
        return self._named(lambda at, model, k: model.sample_prior(k), key)

    def update(self, key, theta, records):
        return self._named(lambda at, model, k: model.update(k, self._own(at, theta), records), key)

    def log_prior(self, theta):
        return sum(model.log_prior(self._own(at, theta)) for at, model in self.parts.items())

    def log_likelihood(self, theta, records):
        return sum(model.log_likelihood(self._own(at, theta), records) for at, model in self.parts.items())

    def innovations(self, key, n):
        keys = jax.random.split(key, len(self.parts))
        return {at: model.innovations(k, n) for k, (at, model) in zip(keys, self.parts.items(), strict=True)}

    def transform(self, theta, u):
        columns = [model.transform(self._own(at, theta), u[at]) for at, model in self.parts.items()]
        return {name: column for part in columns for name, column in part.items()}

    def inverse(self, theta, records, key):
        keys = jax.random.split(key, len(self.parts))
        return {
            at: model.inverse(self._own(at, theta), {name: records[name] for name in model.columns}, k)
            for k, (at, model) in zip(keys, self.parts.items(), strict=True)
        }

    def _own(self, at, theta):
        return {name: theta[f"{at}.{name}"] for name in self.parts[at].parameters}

    def _named(self, draw, key):
        keys = jax.random.split(key, len(self.parts))
        return {
            f"{at}.{name}": jnp.asarray(value)
            for k, (at, model) in zip(keys, self.parts.items(), strict=True)
            for name, value in draw(at, model, k).items()
        }
