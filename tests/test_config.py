"""Settings: every sentence a user can get, and what lanes and pytree leaves they become."""

import dataclasses
import importlib.util
import json
import operator
import pathlib
import typing

import jax
import pytest
from absl import flags
from helpers import make_config, other_value
from ml_collections import config_flags

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.config import Config, ConfigError, checks, presets
from traces_jax.core import parallel
from traces_jax.host import arguments, experiment

EXPERIMENTS = sorted((pathlib.Path(__file__).parents[1] / "experiments").glob("*.py"))


def walk(cls=Config, path=""):
    """(path, field) of every value in the tree of settings."""
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type):
            yield from walk(field.type, f"{path}{field.name}.")
        else:
            yield path + field.name, field


FIELDS = dict(walk())
TRACED = sorted(path for path, field in FIELDS.items() if field.metadata["traced"])


def nested(path, value):
    """("a.b", 1) -> {"a": {"b": 1}}."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def sentence(tree):
    with pytest.raises(ConfigError) as error:
        config_lib.from_dict(tree)
    return str(error.value)


# --- Every field ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_is_described_and_guarded(path):
    field = FIELDS[path]
    assert set(field.metadata) == {"right", "check", "traced", "most"}
    assert field.type in (int, float, bool, str, tuple[int, ...], tuple[float, ...])
    assert isinstance(field.default, typing.get_origin(field.type) or field.type)
    assert field.metadata["check"](field.default)
    if field.metadata["traced"]:
        assert field.type is float, "only numbers can differ between lanes"
    # A value of no type at all is refused by name, with what would be right.
    assert sentence(nested(path, None)) == f"{path}=None is not right: it must be {field.metadata['right']}."


@pytest.mark.parametrize("path", [path for path, field in FIELDS.items() if field.type in (int, float)])
def test_numbers_are_checked_for_type_and_range(path):
    # No field takes both signs that far from zero.
    far_off = -7 if FIELDS[path].default >= 0 else 7
    for wrong in (True, "3", float("nan"), float("inf"), far_off):
        assert f"{path}={wrong!r} is not right" in sentence(nested(path, wrong))
    if FIELDS[path].type is int:
        assert f"{path}=3.0 is not right" in sentence(nested(path, 3.0))


# --- Sentences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree, expected",
    [
        ({"taks": "x"}, "field 'taks' does not exist; did you mean 'task'?"),
        ({"ppo": {"clp": 0.1}}, "field 'ppo.clp' does not exist; did you mean 'ppo.clip'?"),
        ({"LAGRANGE": {}}, "field 'LAGRANGE' does not exist; did you mean 'lagrange'?"),
        ({"task": "AntVelocity"}, "task 'AntVelocity' does not exist; did you mean 'SafetyAntVelocity-v1'?"),
        ({"task": "zzz"}, f"task 'zzz' does not exist; choose one of {', '.join(tasks.NAMES)}."),
        ({"ppo": 3}, "ppo=3 is not right: it is a group of fields, not a value."),
        ({"ppo": {"clip": -0.1}}, "ppo.clip=-0.1 is not right: it must be a number above 0."),
        ({"ppo": {"gamma": 1.01}}, "ppo.gamma=1.01 is not right: it must be a number from 0 to 1."),
        ({"ppo": {"passes": 0}}, "ppo.passes=0 is not right: it must be a whole number of at least 1."),
        ({"run": {"keep": 1}}, "run.keep=1 is not right: it must be a whole number of at least 2."),
        ({"physics": "mujoco"}, "physics='mujoco' is not right: it must be one of auto, native, mjx."),
        ({"normalize": {"rewards": 1}}, "normalize.rewards=1 is not right: it must be true or false."),
        (
            {"policy": {"hidden": (64, 0)}},
            "policy.hidden=(64, 0) is not right: it must be a tuple of whole numbers above 0.",
        ),
        (
            {"collect": {"noise": (1.0, -0.5)}},
            "collect.noise=(1.0, -0.5) is not right: it must be a tuple of one or more finite numbers, none below 0.",
        ),
        (
            {"collect": {"limits": (float("inf"),)}},
            "collect.limits=(inf,) is not right: it must be a tuple of one or more finite numbers, none below 0.",
        ),
        (
            {"collect": {"limits": ()}},
            "collect.limits=() is not right: it must be a tuple of one or more finite numbers, none below 0.",
        ),
        (
            {"steps": 50_000},
            "steps=50000 does not divide into iterations of 20000 steps "
            "(environment.count * environment.steps = 20 * 1000); 40000 would be right.",
        ),
        (
            {"steps": 7},
            "steps=7 does not divide into iterations of 20000 steps "
            "(environment.count * environment.steps = 20 * 1000); 20000 would be right.",
        ),
        (
            {"ppo": {"minibatch": 30}},
            "ppo.minibatch=30 does not divide the 16000 samples of an iteration "
            "(environment.count * environment.steps = 20 * 1000 without the 4 that play the mean action); "
            "32 would be right.",
        ),
        (
            {"environment": {"count": 1}},
            "constraint.policy='both' is not right with environment.count=1: one environment plays the mean action and "
            "another one explores; 'noisy', or 2 environments, would be right.",
        ),
        (
            {"run": {"chunk": 7, "checkpoint_every": 7}},
            "run.chunk=7 does not divide the 500 iterations of the run; 5 would be right.",
        ),
        (
            {"run": {"chunk": 4}},
            "run.checkpoint_every=10 must be a multiple of run.chunk=4; 8 would be right.",
        ),
        ({"sweep": "ppo.clip"}, "sweep='ppo.clip' is not right: it must be text such as 'ppo.actor_lr=1e-4,3e-4'."),
        ({"sweep": "ppo.clip="}, "sweep='ppo.clip=' is not right: it must be text such as 'ppo.actor_lr=1e-4,3e-4'."),
        ({"sweep": "ppo.clip=0.1,x"}, "sweep of ppo.clip: 'x' is not a number."),
        ({"sweep": "ppo.clip=0.1,"}, "sweep of ppo.clip: '' is not a number."),
        ({"sweep": "ppo.clip=0.1,-2"}, "ppo.clip=-2.0 is not right: it must be a number above 0."),
        ({"sweep": "ppo.clip=nan"}, "ppo.clip=nan is not right: it must be a number above 0."),
        ({"sweep": "ppo.clip=1;ppo.clip=2"}, "sweep='ppo.clip=1;ppo.clip=2' is not right: it names 'ppo.clip' twice."),
        ({"sweep": "ppo.clp=0.1"}, "field that a sweep can vary 'ppo.clp' does not exist; did you mean 'ppo.clip'?"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_sentence(tree, expected):
    assert sentence(tree) == expected


@pytest.mark.parametrize("path", ["ppo.passes", "environment.count", "task"])
def test_a_sweep_cannot_vary_what_shapes_the_program(path):
    assert f"sweep of {path} is not right: it shapes the program" in sentence({"sweep": f"{path}=1,2"})


def test_an_experiment_file_with_an_unknown_field_fails_where_it_is_written():
    with pytest.raises(ConfigError, match=r"'ppo\.clp' does not exist; did you mean 'ppo\.clip'\?"):
        config_lib.make(ppo={"clp": 0.1})


def test_the_values_that_the_sentences_propose_are_right():
    make_config(steps=40_000)
    make_config(ppo={"minibatch": 32})
    make_config(run={"chunk": 5})
    make_config(run={"chunk": 4, "checkpoint_every": 8})


# --- Values --------------------------------------------------------------------------------------------------------


def test_round_trip_through_json():
    config = make_config(
        task="ProbeBudget", seeds=3, sweep="ppo.clip=0.1,0.2", policy={"hidden": (32, 16, 8)}, ppo={"gamma": 0.9}
    )
    text = config_lib.to_json(config)
    assert config_lib.from_dict(json.loads(text)) == config
    assert config != Config() and config_lib.to_json(Config()) != text


def test_whole_numbers_serve_as_numbers():
    """--config.constraint.cost_limit=25 arrives as an int; the pytree leaf must be a float like any other."""
    limit = make_config(constraint={"cost_limit": 10}).constraint.cost_limit
    assert limit == 10.0 and isinstance(limit, float)


def test_derived_sizes():
    config = make_config(steps=2_400, environment={"count": 4, "steps": 30}, ppo={"minibatch": 40})
    assert (config.iteration_steps, config.iterations) == (120, 20)


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().ppo.clip = 0.5


# --- Lanes ---------------------------------------------------------------------------------------------------------


def test_lanes_are_the_product_of_settings_and_seeds():
    """The first swept field varies slowest and seeds fastest, so that the seeds of a setting lie together."""
    config = make_config(seed=5, seeds=2, sweep="ppo.clip=0.1,0.2; constraint.cost_limit=10,25")
    lanes = config_lib.lanes(config)
    assert [lane.name for lane in lanes] == [
        "seed=5 ppo.clip=0.1 constraint.cost_limit=10",
        "seed=6 ppo.clip=0.1 constraint.cost_limit=10",
        "seed=5 ppo.clip=0.1 constraint.cost_limit=25",
        "seed=6 ppo.clip=0.1 constraint.cost_limit=25",
        "seed=5 ppo.clip=0.2 constraint.cost_limit=10",
        "seed=6 ppo.clip=0.2 constraint.cost_limit=10",
        "seed=5 ppo.clip=0.2 constraint.cost_limit=25",
        "seed=6 ppo.clip=0.2 constraint.cost_limit=25",
    ]
    assert [lane.seed for lane in lanes] == [5, 6] * 4
    assert [lane.config.ppo.clip for lane in lanes] == [0.1] * 4 + [0.2] * 4
    assert [lane.config.constraint.cost_limit for lane in lanes] == [10, 10, 25, 25] * 2
    # Nothing else differs.
    assert {lane.config.ppo.gamma for lane in lanes} == {config.ppo.gamma}


def test_without_a_sweep_lanes_are_seeds():
    config = make_config(seed=3, seeds=2)
    assert [(lane.name, lane.seed, lane.config) for lane in config_lib.lanes(config)] == [
        ("seed=3", 3, config), ("seed=4", 4, config),
    ]  # fmt: skip


def test_stacked_lanes_keep_static_fields_and_line_up_traced_ones():
    stacked = parallel.stack(config_lib.lanes(make_config(seeds=2, sweep="ppo.clip=0.1,0.3")))
    assert stacked.ppo.passes == Config().ppo.passes and stacked.task == Config().task
    assert stacked.ppo.clip.tolist() == pytest.approx([0.1, 0.1, 0.3, 0.3])
    assert stacked.ppo.gamma.shape == (4,) and stacked.ppo.gamma.dtype == "float32"


# --- Leaves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FIELDS)
def test_static_fields_shape_the_program_and_traced_ones_do_not(path):
    """JAX compiles again for another treedef, and only then."""
    # Built without the check of sizes, which has nothing to do with leaves.
    changed = Config()
    *groups, name = path.split(".")
    group = getattr(changed, groups[0]) if groups else changed
    group = dataclasses.replace(group, **{name: other_value(FIELDS[path])})
    changed = dataclasses.replace(changed, **{groups[0]: group}) if groups else group
    assert changed != Config()
    same_program = jax.tree.structure(changed) == jax.tree.structure(Config())
    assert same_program == FIELDS[path].metadata["traced"]
    assert len(jax.tree.leaves(changed)) == len(TRACED)


def test_the_traced_fields():
    """A field that changes side changes what a sweep can do and what compiles; that should not happen unnoticed."""
    assert TRACED == [
        "constraint.cost_limit", "constraint.d", "constraint.initial_d", "constraint.ramp",
        "cup.max_grad_norm", "cup.maximum", "cup.target_kl",
        "estimator.action_clip",
        "estimator.clamp", "focops.maximum", "focops.temperature", "focops.trust", "labels.noise",
        "lagrange.initial", "lagrange.lr", "lagrange.maximum", "lagrange.proportional", "p3o.kappa",
        "pid.derivative", "pid.derivative_smoothing", "pid.integral",
        "pid.proportional", "pid.proportional_smoothing", "policy.final_noise", "ppo.actor_lr",
        "ppo.clip", "ppo.cost_critic_l2",
        "ppo.cost_gae_lambda", "ppo.critic_lr", "ppo.entropy", "ppo.gae_lambda", "ppo.gamma", "ppo.max_grad_norm",
        "ppo.reward_critic_l2", "ppo.target_kl", "query.min_cv", "refit.lr", "refit.max_grad_norm",
        "refit.target_accuracy", "refit.weight_decay", "rlsf.alpha", "rlsf.bad_above", "rlsf.segment_limit",
        "saute.gamma", "saute.unsafe_reward", "trust_region.critic_lr", "trust_region.damping", "trust_region.shrink",
        "trust_region.target_kl",
    ]  # fmt: skip


# --- Experiments ---------------------------------------------------------------------------------------------------


def test_there_are_experiments():
    assert {path.stem for path in EXPERIMENTS} >= {"ant", "half_cheetah", "hopper", "walker2d"}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_says_only_what_differs(path, monkeypatch):
    """One that repeats the defaults would keep their old values when they change."""
    said = {}
    monkeypatch.setattr(config_lib, "make", lambda **changes: said.update(changes))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.get_config()
    assert said
    defaults = config_lib.to_dict(Config())
    for name, value in said.items():
        changes = value.items() if isinstance(value, dict) else [(name, value)]
        usual = defaults[name] if isinstance(value, dict) else defaults
        for field, given in changes:
            # An experiment names its task in any case.
            assert given != usual[field] or field == "task", f"{name}: {field}"


@pytest.mark.parametrize("seed", [2**32, 2**63])
def test_seeds_whose_keys_would_repeat_are_refused(seed):
    assert sentence({"seed": seed}) == f"seed={seed} is not right: it must be at most 4294967295."
    assert "seeds must stay below 4294967296" in sentence({"seed": 2**32 - 1, "seeds": 2})


def test_a_group_is_not_a_value():
    with pytest.raises(config_lib.ConfigError, match="ppo=3 is not right: it is a group"):
        config_lib.make(ppo=3)


def test_lanes_never_share_a_name():
    assert "the same value twice" in sentence({"sweep": "ppo.clip=0.1,0.10"})
    names = [lane.name for lane in config_lib.lanes(config_lib.from_dict({"sweep": "ppo.clip=0.1,0.10000001"}))]
    assert len(set(names)) == 2


# --- Presets -------------------------------------------------------------------------------------------------------


def load(path):
    """The settings of an experiment file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config().to_dict()


def by_path(config):
    return {path: operator.attrgetter(path)(config) for path in FIELDS}


# The paper's tables, and its program where they are silent.
PAPER = {
    "environment.reset_each_iteration": True, "environment.terminate_when_unhealthy": False,
    "policy.hidden": (64, 64), "policy.activation": "relu", "policy.mean": "free", "policy.initial_log_std": 0.0,
    "policy.min_std": 0.0, "policy.final_noise": 1.0,
    "constraint.beyond_horizon": True, "critic.hidden": (64, 64), "critic.activation": "relu",
    "normalize.observations": True,
    "normalize.rewards": True, "normalize.costs": "learned", "ppo.minibatch": 100,
    "ppo.actor_lr": 3e-4,
    "ppo.critic_lr": 3e-4, "ppo.actor_lr_decay": True, "ppo.clip": 0.2, "ppo.target_kl": 0.02, "ppo.entropy": 0.01,
    "ppo.gamma": 0.99, "ppo.gae_lambda": 0.95, "ppo.cost_gae_lambda": 0.95, "ppo.max_grad_norm": 0.5,
    "ppo.reward_critic_l2": 1e-3, "ppo.cost_critic_l2": 1e-2,
    "lagrange.initial": 1e-3, "lagrange.lr": 0.035,
    "lagrange.maximum": 1e9, "lagrange.proportional": 0.0, "lagrange.window": 50, "method.order": "paper",
    "estimator.hidden": 4, "estimator.depth": 2, "estimator.decoder": (64, 64), "estimator.decoder_reads": "summary",
    "estimator.clamp": -7.0, "estimator.normalize_inputs": False, "estimator.initial_probability": 0.95,
    "estimator.initial_spread": 0.1, "estimator.cost": "mean", "labels.terminal_only": False, "labels.by": "oracle",
    "labels.early_end": "violating", "query.batch": 20, "query.rule": "cv", "query.random_share": 0.0,
    "query.min_cv": 0.0, "refit.passes": 5, "refit.steps": 13, "refit.new_batch": 8, "refit.stored_batch": 24,
    "refit.store": 1000, "refit.lr": 1e-3, "refit.weight_decay": 1e-4, "refit.max_grad_norm": 1e9,
    "refit.target_accuracy": 0.975, "constraint.form": "jensen", "constraint.d": 0.9, "constraint.initial_d": 1.0,
    "constraint.policy": "noisy", "constraint.keep": False, "estimator.memory": False,
    # The rest of the paper's settings, which experiment files say by themselves.
    "constraint.cost_limit": 25.0, "labels.noise": 0.0, "query.budget": 0, "method.source": "traces",
    "method.solver": "ppo_lag",
    "estimator.init": "none",
}  # fmt: skip
BY_FAMILY = {
    "Velocity": {"ppo.passes": 40, "labels.interval": 20, "query.fraction": 0.1, "steps": 10_000_000,
                 "environment.count": 20, "environment.steps": 1000},
    "Circle": {"ppo.passes": 40, "labels.interval": 20, "query.fraction": 0.05, "steps": 10_000_000,
               "environment.count": 20, "environment.steps": 1000},
    "BallRun": {"ppo.passes": 20, "labels.interval": 5, "query.fraction": 0.1, "steps": 1_000_000,
                "lagrange.initial": 1.0,
                "environment.count": 10, "environment.steps": 100},
    "Run": {"ppo.passes": 20, "labels.interval": 5, "query.fraction": 0.1, "steps": 2_000_000,
            "lagrange.initial": 1.0,
            "environment.count": 10, "environment.steps": 200},
    "Fall": {"ppo.passes": 40, "labels.interval": 20, "query.fraction": 0.1, "steps": 150_000, "environment.count": 10,
             "environment.steps": 150, "query.batch": 1, "query.budget": 100, "lagrange.initial": 1e9,
             "lagrange.window": 10, "constraint.cost_limit": 0.0, "labels.by": "people"},
}  # fmt: skip


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_paper_is_the_paper_in_every_experiment(path):
    """Whatever the file says of its own; what is compared is every field that has a say in a run's figures."""
    config = config_lib.from_dict(presets.apply({**load(path), "preset": "paper"}, explicit=["preset"]))
    family = next(name for name in BY_FAMILY if name in config.task)
    idle = config_lib.without_effect(config)
    expected = {name: value for name, value in (PAPER | BY_FAMILY[family]).items() if name not in idle}
    compared = {
        name: value
        for name, value in by_path(config).items()
        if name not in ("preset", "task", "physics", "seed", "seeds", "sweep", *idle)
        and not name.startswith(("run.", "mjx."))
    }
    assert compared == expected


def test_the_paper_knows_other_sources():
    """C-T is refitted every 20 iterations; 10 episodes in each on Run tasks, 20 on others, 40 on circles."""
    found = {}
    for path in EXPERIMENTS:
        tree = load(path)
        tree["method"]["source"] = "ct"
        config = config_lib.from_dict(presets.apply({**tree, "preset": "paper"}, explicit=["preset"]))
        found[path.stem] = (config.query.fraction, config.query.batch)
        assert (config.refit.lr, config.refit.target_accuracy, config.refit.passes) == (1e-3, 0.95, 5)
    half = {"hopper": (0.5, 200), "ant": (0.5, 200), "ant_run": (0.5, 100), "car_run": (0.5, 100)}
    circles = dict.fromkeys(("point_circle1", "point_circle2", "car_circle1", "car_circle2"), (0.1, 80))
    runs = dict.fromkeys(("ball_run", "drone_run"), (0.1, 20))
    assert found == dict.fromkeys(("cheetah_fall", "half_cheetah", "walker2d"), (0.1, 40)) | half | circles | runs
    tree = {**config_lib.make(preset="paper", method={"source": "rlsf"}).to_dict()}
    config = config_lib.from_dict(presets.apply(tree, explicit=[]))
    assert (config.query.fraction, config.refit.passes * config.refit.steps, config.refit.lr) == (1.0, 500, 1e-3)
    assert (config.rlsf.labels, config.rlsf.alpha) == ("prefixes", 0.1)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_command_line_wins_over_the_preset_in_every_experiment(path):
    changes = {"refit": {"lr": 3e-3}, "policy": {"min_std": 0.2}, "ppo": {"passes": 7}}
    tree = load(path)
    for group, fields in changes.items():
        tree[group] |= fields
    given = ["preset", *(f"{group}.{name}" for group, fields in changes.items() for name in fields)]
    config = config_lib.from_dict(presets.apply({**tree, "preset": "paper"}, given))
    assert (config.refit.lr, config.policy.min_std, config.ppo.passes) == (3e-3, 0.2, 7)
    assert config.policy.mean == "free"


def test_a_preset_of_a_file_lies_under_what_is_said():
    """Experiment files and the command line win; the command line even where it repeats a default."""
    said = config_lib.make(preset="paper", query={"batch": 7}).to_dict()
    config = config_lib.from_dict(presets.apply(said, explicit=["constraint.form"]))
    assert config.policy.mean == "free"
    assert config.query.batch == 7
    assert config.constraint.form == Config().constraint.form == "probability"


def test_a_preset_of_the_command_line_lies_over_the_file():
    said = config_lib.make(preset="paper", query={"batch": 7, "fraction": 0.3, "budget": 9}).to_dict()
    config = config_lib.from_dict(presets.apply(said, explicit=["preset", "query.fraction"]))
    assert config.query.batch == 20 and config.query.fraction == 0.3
    # How much may be asked is not for a preset to say.
    assert config.query.budget == 9


def test_our_preset_changes_nothing():
    tree = load(next(path for path in EXPERIMENTS if path.stem == "ball_run"))
    assert presets.apply(tree, explicit=["preset"]) == tree


@pytest.mark.parametrize(("source", "limit"), [("traces", 50.0), ("oracle", 10.0)])
def test_one_threshold_has_one_name(source, limit):
    """Files of earlier versions had one for each source; what they meant is kept."""
    tree = config_lib.to_dict(make_config(method={"source": source}))
    del tree["constraint"]["cost_limit"]
    tree["labels"]["limit"], tree["lagrange"]["cost_limit"] = 50.0, 10.0
    tree["sweep"] = "labels.limit=1,2" if source == "traces" else "lagrange.cost_limit=1,2"
    found = config_lib.from_saved(tree)
    assert found.constraint.cost_limit == limit
    assert [lane.config.constraint.cost_limit for lane in config_lib.lanes(found)] == [1.0, 2.0]
    with pytest.raises(config_lib.ConfigError, match=r"'labels.limit' does not exist; it is called 'constraint.cost_l"):
        config_lib.make(labels={"limit": 50.0})


# --- Whatever JSON can hold -----------------------------------------------------------------------------------------


def nest(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "tree", [[], [{}], 3, 1.5, None, "text", True, nest(100_000)], ids=lambda tree: str(type(tree))
)
@pytest.mark.parametrize("read", [config_lib.from_dict, config_lib.from_saved])
def test_settings_are_a_group_of_fields(tree, read):
    with pytest.raises(ConfigError, match=r"the settings are .*; a group of fields would be right"):
        read(tree)


@pytest.mark.parametrize(
    "tree, expected",
    [
        ({"estimator": {"decoder": ()}}, "decoder=() is not right: it must be a tuple of one or more whole numbers"),
        ({"query": {"fraction": 5e-324}}, "query.fraction=5e-324 is not right: it must be a number from 1e-6 to 1."),
        ({"query": {"batch": 2**31}}, "query.batch=2147483648 is not right: it must be at most 2147483647."),
        ({"query": {"budget": 2**31}}, "it must be at most 2147483647."),
        ({"refit": {"store": 10**30}}, "it must be at most 2147483647."),
        ({"lagrange": {"window": 10**30}}, "it must be at most 2147483647."),
        ({"ppo": {"passes": 2**31}}, "it must be at most 2147483647."),
        ({"steps": 10**30}, f"it must be at most {2**62}."),
        (
            {"steps": 10 * 2**31, "environment": {"count": 1, "steps": 5}, "ppo": {"minibatch": 5}},
            "steps=21474836480 is not right: these are 4294967296 iterations; 10737418235, or more steps in an",
        ),
        ({"seeds": 100_000_000}, "seeds=100000000 is not right: it must be at most 4096."),
        ({"seeds": 4096, "sweep": "ppo.clip=0.1,0.2"}, "these are 8192 lanes; at most 4096 would be right."),
        ({"sweep": "ppo.clip=" + "1," * 5000}, "it gives ppo.clip 5001 values; at most 4096 would be right."),
        ({"policy": {"hidden": [8] * 65}}, "it must have at most 64 numbers."),
        (
            {"policy": {"hidden": [2**21]}},
            "policy.hidden=(2097152,) is not right: each number must be at most 1048576.",
        ),
        ({"ppo": {"clip": 10**400}}, "it must be a number above 0."),
        ({"ppo": {"clip": 10**5000}}, "ppo.clip=a int too large to show is not right"),
        ({"ppo": {"clip": nest(100_000)}}, "ppo.clip=a list too large to show is not right"),
        ({"ppo": {"clip": "x" * 10_000}}, "... (10002 characters) is not right"),
        ({"x" * 10_000: 1}, "does not exist"),
        ({"ppo": {3: 1}}, "field 'ppo.3' does not exist"),
        ({"collect": {"limits": (10**400,)}}, "each number must be at most 1000000000.0."),
        # What is traced becomes a float32.
        (
            {"ppo": {"actor_lr": 1e300}},
            "actor_lr=1e+300 is not right: as a float32 it is inf; it must be a number above 0.",
        ),
        (
            {"ppo": {"actor_lr": 1e-300}},
            "actor_lr=1e-300 is not right: as a float32 it is 0.0; it must be a number above 0.",
        ),
        ({"constraint": {"d": 0.99999999999}}, "as a float32 it is 1.0; it must be a number above 0 and below 1."),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_numbers_beyond_all_reason_get_a_sentence(tree, expected):
    said = sentence(tree)
    assert expected in said and len(said) < 2000


def test_the_nearest_divisor_of_a_huge_number_is_found_or_let_be():
    """Numbers of iterations and samples may have 19 digits."""
    assert checks._nearest_divisor(20_000, 30) == 32
    assert checks._nearest_divisor(500, 7) == 5
    assert checks._nearest_divisor(6, 100) == 6
    prime = 2**61 - 1
    assert checks._nearest_divisor(prime, 10**12) == 1
    assert checks._nearest_divisor(prime, 50) == 1


# --- Settings without effect ---------------------------------------------------------------------------------------


def test_a_sweep_over_what_has_no_effect_is_refused():
    said = sentence({"method": {"source": "oracle"}, "sweep": "constraint.d=0.5,0.9"})
    assert said == (
        "sweep of constraint.d is not right: all lanes would be equal, method.source=oracle is given the true cost."
    )
    assert len(config_lib.lanes(config_lib.from_dict({"sweep": "constraint.d=0.5,0.9"}))) == 2
    # Runs of earlier versions can still be read.
    config_lib.from_saved({"method": {"source": "oracle"}, "sweep": "constraint.d=0.5,0.9"})


@pytest.mark.parametrize("source", ["oracle", "traces", "ct", "rlsf"])
def test_what_shapes_every_run_is_never_without_effect(source):
    idle = config_lib.without_effect(make_config(method={"source": source}))
    assert not [path for path in idle if path.startswith(("ppo.", "policy.", "environment.", "run.", "lagrange."))]
    assert ("estimator.clamp" in idle) == (source != "traces") == ("constraint.form" in idle) == ("query.rule" in idle)
    assert ("constraint.correction" in idle) == (source != "traces")
    assert ("ct.hidden" in idle) == (source != "ct") and ("rlsf.alpha" in idle) == (source != "rlsf")
    assert ("estimator.init" in idle) == (source == "oracle") == ("refit.lr" in idle) == ("query.budget" in idle)
    assert ("labels.interval" in idle) == (source == "oracle")


def test_a_limit_of_segments_is_for_segments():
    def reason(**changes):
        return config_lib.without_effect(make_config(method={"source": "rlsf"}, **changes)).get("rlsf.segment_limit")

    assert reason() is None
    assert reason(labels={"terminal_only": True}) == "labels.terminal_only=true labels whole trajectories"
    assert reason(rlsf={"labels": "prefixes"}) == "rlsf.labels=prefixes has no segments"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--config.method.source=oracle", "--config.query.batch=3", "--config.ppo.clip=0.1"],
         ["query.batch, labels.interval (method.source=oracle is given the true cost)"]),
        (["--config.collect.steps=10000"], ["collect.steps (it is for traces_jax.collect)"]),
        (["--config.query.batch=3"], []),
        (["--config.method.source=ct", "--config.constraint.d=0.8", "--config.rlsf.alpha=1.0"],
         ["constraint.d (it is for method.source=traces); rlsf.alpha (it is for method.source=rlsf)"]),
    ],
)  # fmt: skip
def test_settings_without_effect_are_named(given, expected, monkeypatch):
    """The interval of BallRun's labels is set in its file."""
    own_flags = flags.FlagValues()
    argv = ["train", "--config", str(EXPERIMENTS[0].parent / "ball_run.py"), *given]
    flag = config_flags.DEFINE_config_file("config", None, "", flag_values=own_flags, sys_argv=argv)
    own_flags(argv)
    monkeypatch.setattr(flags, "FLAGS", own_flags)
    notes = []
    experiment.note_idle(flag, experiment.read(flag), notes.append)
    assert notes == [f"note: without effect in this run: {idle}" for idle in expected]


# --- The command line ----------------------------------------------------------------------------------------------


def test_whole_numbers_may_have_an_exponent():
    argv = ["train", "--config.steps=1e5", "--config.seeds", "2.0", "--config.ppo.clip=1e-1", "--config.query.budget=7"]
    assert arguments.readable(argv) == [
        "train", "--config.steps=100000", "--config.seeds", "2", "--config.ppo.clip=1e-1", "--config.query.budget=7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--config.labels.limit=50", "field 'labels.limit' does not exist; it is called 'constraint.cost_limit' now."),
        ("--config.ppo.clop=1", "field 'ppo.clop' does not exist; did you mean 'ppo.clip'?"),
        ("--config.steps=1.5", "steps=1.5 is not right: it must be a whole number of at least 1."),
        ("--config.steps=1e999999999", "steps=1e999999999 is not right: it must be a whole number of at least 1."),
        ("--config.steps=many", "steps=many is not right: it must be a whole number of at least 1."),
        ("--config.steps=nan", "steps=nan is not right: it must be a whole number of at least 1."),
    ],
)
def test_what_ml_collections_cannot_say(argument, expected):
    with pytest.raises(ConfigError) as error:
        arguments.readable(["train", "--config", "experiments/ant.py", argument])
    assert str(error.value) == expected


def test_a_field_without_its_prefix_is_recognised():
    assert arguments.hint("seeds") == "did you mean --config.seeds?"
    assert arguments.hint("ppo.clip") == arguments.hint("clip") == "did you mean --config.ppo.clip?"
    assert arguments.hint("nothing") == ""
