"""Replay: python -m traces_jax.replay --task SafetyAntVelocity-v1 --actions in.npz --out out.npz [--video out.mp4]

Applies recorded actions open loop, without a policy and without reset noise. The end of an episode does not stop it.

  in.npz   actions [T, A]; optional initial state: qpos0 [nq] or, for robots that can start anywhere on the floor,
           pose0 [3] (x, y, heading); qvel0 [nv]; otherwise the task's nominal initial state
  out.npz  obs0 [O] at the start; then rows t = state after action t: obs [T, O], reward [T], cost [T], qpos [T, nq],
           qvel [T, nv], position [T, 3] and velocity [T, 3] of the base body in the world, terminated [T]
"""

import functools
import pathlib
import sys

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.host import cli, errors, files, runtime
from traces_jax.host.data import arrays
from traces_jax.host.show import render
from traces_jax.physics import base as physics_base

_TASK = flags.DEFINE_string("task", None, "Name of the task, for instance SafetyAntVelocity-v1.")
_PHYSICS = flags.DEFINE_enum("physics", "native", ["native", "mjx"], "Simulator.")
_ACTIONS = flags.DEFINE_string("actions", None, "Input file (.npz).")
_OUT = flags.DEFINE_string("out", None, "Output file (.npz).")
# Other commands have this flag too, and tests load them into one process.
_VIDEO = flags.DEFINE_string("video", None, "Video to draw as well (.mp4 or .webm).", allow_override=True)

_INPUTS = ("actions", "qpos0", "qvel0", "pose0")


@flax.struct.dataclass
class Inputs:
    """An initial state qpos [nq], qvel [nv], and the actions [T, A] that follow it; float32."""

    qpos: jax.Array
    qvel: jax.Array
    actions: jax.Array


@functools.partial(jax.jit, static_argnums=0)
def replay(task: tasks.PhysicsTask, inputs: Inputs) -> dict[str, jax.Array]:
    """Applies all actions. Returns the arrays of the output file."""
    model = task.physics.mj_model
    # The base is the body that the model's first joint moves.
    root = physics_base.RootFrame(model, model.body(model.jnt_bodyid[0]).name)

    def step(state: tasks.State, action: jax.Array) -> tuple[tasks.State, dict[str, jax.Array]]:
        state = task.step(state, action)
        mechanics = state.pipeline_state
        row = {
            "obs": state.obs,
            "reward": state.reward,
            "cost": state.info["cost"],
            "qpos": mechanics.qpos,
            "qvel": mechanics.qvel,
            "position": root.position(mechanics.qpos),
            "velocity": root.velocity(mechanics.qvel),
            "terminated": state.info["terminated"] > 0,
        }
        return state, row

    start = task.reset_to(inputs.qpos, inputs.qvel)
    _, rows = lax.scan(step, start, inputs.actions)
    return {"obs0": start.obs, **rows}


def make_task(name: str, physics: str) -> tasks.PhysicsTask:
    """The task called `name`, if it has a robot that can be replayed."""
    if name not in tasks.NAMES and not tasks.is_own(name):
        raise config_lib.unknown("task", name, list(tasks.NAMES))
    task = tasks.make(name, backend=physics)
    if not isinstance(task, tasks.PhysicsTask):
        raise errors.UserError(f"task {name!r} cannot be replayed: it has no simulator; choose a task with a robot.")
    return task


def load(path: pathlib.Path, task: tasks.PhysicsTask) -> Inputs:
    """Reads and checks an input file."""
    given = arrays.read(path, "actions")
    for name in given:
        if name not in _INPUTS:
            print(f"{path}: array {name!r} is not used.", file=sys.stderr)
    if "actions" not in given:
        raise errors.UserError(f"{path} has no array 'actions'; it must hold actions [T, {task.action_size}].")
    if "pose0" in given and not isinstance(task, tasks.Posable):
        raise errors.UserError(f"{path}: pose0 is not right for {task.name}; give its start as qpos0 and qvel0.")
    if "pose0" in given and "qpos0" in given:
        raise errors.UserError(f"{path} holds both pose0 and qpos0; give one of them.")
    model = task.physics.mj_model
    qpos, qvel = (np.asarray(part) for part in task.nominal)
    actions = arrays.numbers(path, "actions", given["actions"])
    if actions.ndim != 2 or actions.shape[0] == 0 or actions.shape[1] != task.action_size:
        raise arrays.wrong_shape(path, "actions", actions, f"[T, {task.action_size}] with T of at least 1")
    if "qpos0" in given:
        qpos = arrays.numbers(path, "qpos0", given["qpos0"])
        if qpos.shape != (model.nq,):
            raise arrays.wrong_shape(path, "qpos0", qpos, f"[{model.nq}]")
    if "pose0" in given and isinstance(task, tasks.Posable):
        pose = arrays.numbers(path, "pose0", given["pose0"])
        if pose.shape != (3,):
            raise arrays.wrong_shape(path, "pose0", pose, "[3]: x, y, heading")
        qpos = np.asarray(task.pose(*jnp.asarray(pose)))
    if "qvel0" in given:
        qvel = arrays.numbers(path, "qvel0", given["qvel0"])
        if qvel.shape != (model.nv,):
            raise arrays.wrong_shape(path, "qvel0", qvel, f"[{model.nv}]")
    return Inputs(qpos=jnp.asarray(qpos), qvel=jnp.asarray(qvel), actions=jnp.asarray(actions))


def main() -> int:
    """The command line."""
    name = arrays.given(_TASK, "SafetyAntVelocity-v1")
    actions = pathlib.Path(arrays.given(_ACTIONS, "in.npz"))
    out = pathlib.Path(arrays.given(_OUT, "out.npz"))
    arrays.check_out(out)
    video = pathlib.Path(_VIDEO.value) if _VIDEO.value else None
    if video:
        render.check_video_name(video)
    runtime.setup()

    from traces_jax.host.run import build  # after set-up: nothing may touch JAX's devices before it

    task = make_task(name, build.choose_physics(_PHYSICS.value, jax.default_backend()))
    result = jax.device_get(replay(task, load(actions, task)))
    if video:
        render.write_episode(video, task.physics.mj_model, result["qpos"], task.physics.environment_seconds)
    files.write_arrays(out, **result)
    steps, total, cost = result["reward"].shape[0], result["reward"].sum(), result["cost"].sum()
    print(f"{out}: {steps} steps, reward {total:.6g}, cost {cost:g}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
