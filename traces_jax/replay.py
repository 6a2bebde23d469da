"""Replay: python -m traces_jax.replay --task SafetyAntVelocity-v1 --actions in.npz --out out.npz [--video out.mp4]

Plays recorded actions open loop, without a policy and without reset noise. The end of an episode does not stop it.

  in.npz   actions [T, A]; optional start: qpos0 [nq] or, where the robot is set down anywhere on the floor, pose0 [3]
           (x, y, heading); qvel0 [nv]; else the task's nominal start
  out.npz  obs0 [O] of the start; then rows t = state after action t: obs [T, O], reward [T], cost [T], qpos [T, nq],
           qvel [T, nv], position [T, 3] and velocity [T, 3] of the base body in the world, terminated [T]
"""

import functools
import pathlib
import sys
import zipfile
import zlib

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.host import cli, errors, files, render, runtime
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
    """A start qpos [nq], qvel [nv], and the actions [T, A] that follow it; float32."""

    qpos: jax.Array
    qvel: jax.Array
    actions: jax.Array


@functools.partial(jax.jit, static_argnums=0)
def replay(task: tasks.PhysicsTask, inputs: Inputs) -> dict[str, jax.Array]:
    """Plays all actions. Returns the arrays of the output file."""
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
    arrays = _read(path)
    for name in arrays:
        if name not in _INPUTS:
            print(f"{path}: array {name!r} is not used.", file=sys.stderr)
    if "actions" not in arrays:
        raise errors.UserError(f"{path} has no array 'actions'; it must hold actions [T, {task.action_size}].")
    if "pose0" in arrays and not isinstance(task, tasks.Posable):
        raise errors.UserError(f"{path}: pose0 is not right for {task.name}; give its start as qpos0 and qvel0.")
    if "pose0" in arrays and "qpos0" in arrays:
        raise errors.UserError(f"{path} holds both pose0 and qpos0; give one of them.")
    model = task.physics.mj_model
    qpos, qvel = (np.asarray(part) for part in task.nominal)
    actions = _numbers(path, "actions", arrays["actions"])
    if actions.ndim != 2 or actions.shape[0] == 0 or actions.shape[1] != task.action_size:
        raise _wrong_shape(path, "actions", actions, f"[T, {task.action_size}] with T of at least 1")
    if "qpos0" in arrays:
        qpos = _numbers(path, "qpos0", arrays["qpos0"])
        if qpos.shape != (model.nq,):
            raise _wrong_shape(path, "qpos0", qpos, f"[{model.nq}]")
    if "pose0" in arrays and isinstance(task, tasks.Posable):
        pose = _numbers(path, "pose0", arrays["pose0"])
        if pose.shape != (3,):
            raise _wrong_shape(path, "pose0", pose, "[3]: x, y, heading")
        qpos = np.asarray(task.pose(*jnp.asarray(pose)))
    if "qvel0" in arrays:
        qvel = _numbers(path, "qvel0", arrays["qvel0"])
        if qvel.shape != (model.nv,):
            raise _wrong_shape(path, "qvel0", qvel, f"[{model.nv}]")
    return Inputs(qpos=jnp.asarray(qpos), qvel=jnp.asarray(qvel), actions=jnp.asarray(actions))


def save(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes an npz file that appears only when it is complete."""
    try:
        files.write_arrays(path, **arrays)
    except OSError as error:
        raise errors.UserError(f"--out={path} cannot be written: {error.strerror}.") from None


def main() -> int:
    """The command line."""
    name = _given(_TASK, "SafetyAntVelocity-v1")
    actions, out = pathlib.Path(_given(_ACTIONS, "in.npz")), pathlib.Path(_given(_OUT, "out.npz"))
    if out.is_dir() or not out.parent.is_dir():
        problem = "it is a folder" if out.is_dir() else f"folder {str(out.parent)!r} does not exist"
        raise errors.UserError(f"--out={out} cannot be written: {problem}.")
    video = pathlib.Path(_VIDEO.value) if _VIDEO.value else None
    if video:
        render.check_video_name(video)
    runtime.setup()

    from traces_jax.host import build  # after set-up: nothing may touch JAX's devices before it

    task = make_task(name, build.choose_physics(_PHYSICS.value, jax.default_backend()))
    result = jax.device_get(replay(task, load(actions, task)))
    if video:
        render.write_episode(video, task.physics.mj_model, result["qpos"], task.physics.environment_seconds)
    save(out, result)
    steps, total, cost = result["reward"].shape[0], result["reward"].sum(), result["cost"].sum()
    print(f"{out}: {steps} steps, reward {total:.6g}, cost {cost:g}")
    return cli.OK


def _given(flag: flags.FlagHolder[str | None], example: str) -> str:
    if not flag.value:
        raise errors.UserError(f"--{flag.name} is missing; give it as in --{flag.name} {example}.")
    return flag.value


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except FileNotFoundError:
        raise errors.UserError(f"--actions={path} does not exist; give an .npz file with an array 'actions'.") from None
    # What numpy raises for a folder, an .npy file, other content, a cut file, pickled objects.
    except (OSError, TypeError, AttributeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        raise errors.UserError(f"--actions={path} is not a readable .npz file; write it with numpy.savez.") from None


def _numbers(path: pathlib.Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiu":
        raise errors.UserError(f"{path}: {name} holds {array.dtype.name}; it must hold real numbers.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(array))
    if wrong.size:
        place = ", ".join(str(index) for index in wrong[0])
        raise errors.UserError(f"{path}: {name}[{place}] is {array[tuple(wrong[0])]}; all numbers must be finite.")
    return array


def _wrong_shape(path: pathlib.Path, name: str, array: np.ndarray, right: str) -> errors.UserError:
    return errors.UserError(f"{path}: {name} has shape {list(array.shape)}; it must be {right}.")


if __name__ == "__main__":
    cli.run(main)
