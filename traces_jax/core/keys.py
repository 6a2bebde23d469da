"""Named random streams. A new stream does not change the others, and each key is used once."""

import enum

import jax


class Stream(enum.IntEnum):
    """Consumers of randomness. Renumbering would change the results of every seed: only append."""

    INIT = 0
    RESET = 1
    ACT = 2
    SHUFFLE = 3
    EVALUATE = 4
    RESET_LATER = 5
    ESTIMATOR = 6
    QUERY = 7
    LABEL = 8
    REFIT = 9
    CREDIT = 10
    DIAGNOSE = 11
    COLLECT = 12


def stream(key: jax.Array, index: jax.Array | int, name: Stream) -> jax.Array:
    """The key of stream `name` in iteration `index`."""
    return substream(jax.random.fold_in(key, index), name)


def substream(key: jax.Array, name: Stream) -> jax.Array:
    """The key of stream `name`, from a key that already includes the iteration."""
    return jax.random.fold_in(key, name)
