"""A user-defined task: push a puck to its goal, but not across the hot disc on the way. See docs/own_task.md."""

import pathlib

import jax
import jax.numpy as jnp

from traces_jax import config, physics, tasks

GOAL, HOT, HOT_RADIUS = (1.5, 0.0), (0.75, 0.0), 0.3


class Puck(tasks.PhysicsTask):
    horizon = 100
    observation_size = 4

    def __init__(self, name, *, backend, **unused):
        self.name = name
        path = pathlib.Path(__file__).with_name("puck.xml")
        self.physics = physics.make(backend, physics.Model(path=path, frame_skip=5, base="puck"))

    def reset(self, rng):
        qpos, qvel = self.nominal
        return self.reset_to(qpos + jax.random.uniform(rng, (2,), minval=-0.1, maxval=0.1), qvel)

    def reset_to(self, qpos, qvel):
        return tasks.begin(self.physics.reset(qpos, qvel), jnp.concatenate([qpos, qvel]))

    def step(self, state, action):
        before, after = state.pipeline_state, self.physics.step(state.pipeline_state, self.control(state, action))
        distance = lambda place, target: jnp.linalg.norm(place - jnp.array(target))  # noqa: E731
        return tasks.finish(
            state,
            after,
            jnp.concatenate([after.qpos, after.qvel]),
            reward=10.0 * (distance(before.qpos, GOAL) - distance(after.qpos, GOAL)),
            cost=(distance(after.qpos, HOT) < HOT_RADIUS).astype(jnp.float32),
            terminated=jnp.zeros((), bool),
            horizon=self.horizon,
            metrics={},
        )


def get_config():
    return config.make(
        task="examples.puck:Puck",
        method={"source": "oracle"},
        steps=200_000,
        environment={"count": 10, "steps": 100},
        constraint={"cost_limit": 1.0},
    )
