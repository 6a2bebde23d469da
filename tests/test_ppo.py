"""The policy update: the losses on paper, the optimiser against Optax, and how often it runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_trees_close, make_config

from traces_jax import tasks
from traces_jax.config import PPOConfig
from traces_jax.core import agent as agent_lib
from traces_jax.core import distributions, learner
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.solvers import critics, ppo

# --- Distributions -------------------------------------------------------------------------------------------------

MEAN = np.asarray([[0.5, -1.0], [0.0, 2.0], [1.5, 0.3]])
OTHER_MEAN = np.asarray([[0.0, -1.5], [1.0, 2.0], [1.5, -0.3]])
LOG_STD = np.asarray([0.3, -0.7])
OTHER_LOG_STD = np.asarray([-0.2, 0.4])
ACTION = np.asarray([[1.0, 0.0], [-2.0, 2.0], [0.1, 0.2]])


def test_log_prob_is_the_normal_density_summed_over_actions():
    std = np.exp(LOG_STD)
    density = np.exp(-0.5 * ((ACTION - MEAN) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    actual = distributions.log_prob(jnp.asarray(MEAN), jnp.asarray(LOG_STD), jnp.asarray(ACTION))
    np.testing.assert_allclose(actual, np.log(density).sum(axis=-1), rtol=1e-5)


def test_entropy_is_per_action_dimension():
    # A normal's entropy is log std + log(2 pi e) / 2; the mean over dimensions, not the sum.
    expected = LOG_STD.mean() + 0.5 * np.log(2 * np.pi * np.e)
    np.testing.assert_allclose(distributions.entropy(jnp.asarray(LOG_STD)), expected, rtol=1e-6)


def test_kl_is_from_old_to_new_and_summed_over_actions():
    def closed_form(mean, log_std, other_mean, other_log_std):
        variance, other_variance = np.exp(2 * log_std), np.exp(2 * other_log_std)
        terms = other_log_std - log_std + (variance + (mean - other_mean) ** 2) / (2 * other_variance) - 0.5
        return terms.sum(axis=-1)

    arguments = (MEAN, LOG_STD, OTHER_MEAN, OTHER_LOG_STD)
    expected = closed_form(*arguments)
    assert not np.allclose(expected, closed_form(*arguments[2:], *arguments[:2]), rtol=0.1), "direction must show"
    np.testing.assert_allclose(distributions.kl(*map(jnp.asarray, arguments)), expected, rtol=1e-5)
    np.testing.assert_allclose(distributions.kl(*map(jnp.asarray, (MEAN, LOG_STD, MEAN, LOG_STD))), 0.0, atol=1e-6)


# --- Networks ------------------------------------------------------------------------------------------------------


def test_networks_start_as_linear_layers_of_pytorch_do():
    """Weights and biases uniform within 1 / sqrt(inputs), the last layer included."""
    inputs, width = 50, 60
    params = Critic(hidden=(width,), activation="relu").init(jax.random.key(0), jnp.zeros(inputs))["params"]["MLP_0"]
    for layer, name, fan_in in [
        ("Dense_0", "kernel", inputs),
        ("Dense_0", "bias", inputs),
        ("Dense_1", "kernel", width),
    ]:
        leaf = np.asarray(params[layer][name])
        assert np.abs(leaf).max() <= fan_in**-0.5
        # A uniform variable's deviation is its bound over sqrt(3).
        np.testing.assert_allclose(leaf.std(), fan_in**-0.5 / np.sqrt(3), rtol=0.2)


@pytest.mark.parametrize("mean, bounded", [("tanh", True), ("free", False)])
def test_only_a_tanh_mean_is_bounded(mean, bounded):
    actor = GaussianActor(hidden=(), actions=2, activation="relu", mean=mean, initial_log_std=-0.5, min_std=0.0)
    params = actor.init(jax.random.key(0), jnp.zeros(3))
    output, log_std = actor.apply(params, 100.0 * jnp.eye(3))
    assert output.shape == (3, 2) and bool(np.abs(output).max() <= 1.0) == bounded
    np.testing.assert_array_equal(log_std, [-0.5, -0.5])


def test_the_smallest_deviation_is_added_to_the_learned_one():
    actor = GaussianActor(hidden=(), actions=2, activation="relu", mean="tanh", initial_log_std=-30.0, min_std=0.05)
    params = actor.init(jax.random.key(0), jnp.zeros(3))
    _, log_std = actor.apply(params, jnp.zeros(3))
    np.testing.assert_allclose(jnp.exp(log_std), 0.05, rtol=1e-5)
    params = {"params": params["params"] | {"log_std": jnp.log(jnp.full(2, 0.3))}}
    _, log_std = actor.apply(params, jnp.zeros(3))
    np.testing.assert_allclose(jnp.exp(log_std), 0.35, rtol=1e-5)


# --- Losses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ratio, advantage, expected",
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # too likely already and good: clipped at 1.2
        (1.5, -2.0, 3.0),  # too likely and bad: not clipped, it must come back
        (0.5, 2.0, -1.0),  # too unlikely and good: not clipped
        (0.5, -2.0, 1.6),  # unlikely enough and bad: clipped at 0.8
        (1.1, -2.0, 2.2),  # inside
    ],
)
def test_clipped_loss_by_hand(ratio, advantage, expected):
    def loss(log_prob):
        return ppo.clipped_loss(log_prob, jnp.asarray([-3.0]), jnp.asarray([advantage]), 0.2)

    log_prob = jnp.log(jnp.asarray([ratio])) - 3.0
    np.testing.assert_allclose(loss(log_prob), expected, rtol=1e-5)
    # Where the clip holds there is no pull; elsewhere the gradient is -ratio * advantage.
    clipped = (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0)
    np.testing.assert_allclose(jax.grad(loss)(log_prob), [0.0 if clipped else -ratio * advantage], rtol=1e-5)


def test_clipped_loss_is_a_mean():
    # Ratios 1: the loss is minus the mean advantage.
    assert float(ppo.clipped_loss(jnp.zeros(3), jnp.zeros(3), jnp.asarray([1.0, 2.0, 6.0]), 0.2)) == -3.0


def test_critic_loss_by_hand():
    assert float(critics.loss(jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 5.0]))) == (4 + 9) / 2


# --- The update ----------------------------------------------------------------------------------------------------

SAMPLES = 24
OBSERVATIONS, ACTIONS = 3, 2
# Nothing in the way: no penalty, no clipping of gradients, no early stop.
PLAIN = dataclasses.replace(
    PPOConfig(), passes=1, minibatch=SAMPLES, actor_lr=1e-2, critic_lr=1e-2, target_kl=1e6, entropy=0.0,
    max_grad_norm=1e6, reward_critic_l2=0.0, cost_critic_l2=0.0,
)  # fmt: skip


def make_modules(hidden=(8,)):
    return agent_lib.Modules(
        actor=GaussianActor(
            hidden=hidden, actions=ACTIONS, activation="tanh", mean="free", initial_log_std=-0.5, min_std=0.0
        ),
        critic=Critic(hidden=hidden, activation="tanh"),
    )


def make_samples(modules, agent, scale=1.0):
    """Samples of the agent's own policy. scale: size of advantages and targets."""
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    observation = draw(SAMPLES, OBSERVATIONS)
    mean, log_std = modules.policy(agent.actor.params, observation)
    action = mean + jnp.exp(log_std) * draw(SAMPLES, ACTIONS)
    return ppo.Samples(
        observation=observation,
        context=observation,
        action=action,
        log_prob=distributions.log_prob(mean, log_std, action),
        advantage=scale * draw(SAMPLES),
        reward_target=scale * draw(SAMPLES),
        cost_target=scale * (2.0 + draw(SAMPLES)),
    )


def start(hidden=(8,), scale=1.0):
    modules = make_modules(hidden)
    agent = agent_lib.init(modules, jax.random.key(0), OBSERVATIONS, OBSERVATIONS)
    return modules, agent, make_samples(modules, agent, scale)


# Settings are arguments, so that tests which differ in rates and penalties alone share a compilation.
compiled_update = jax.jit(ppo.update, static_argnums=0)


def run_update(modules, agent, samples, update=compiled_update, **settings):
    config = dataclasses.replace(PLAIN, **settings)
    return update(modules, agent, samples, jax.random.key(1), ppo=config, actor_lr=config.actor_lr)


def test_one_full_batch_step_equals_optax():
    """The oracle: plain losses over rows that belong together, Optax's clip and Adam. Shuffling must be invisible."""
    modules, agent, samples = start(scale=3.0)
    entropy, reward_l2, cost_l2, bound, actor_lr, critic_lr = 0.3, 0.02, 0.05, 0.7, 1e-2, 3e-2
    updated, scalars = run_update(
        modules, agent, samples, entropy=entropy, reward_critic_l2=reward_l2, cost_critic_l2=cost_l2,
        max_grad_norm=bound, actor_lr=actor_lr, critic_lr=critic_lr,
    )  # fmt: skip

    def actor_loss(params):
        mean, log_std = modules.policy(params, samples.observation)
        log_prob = jax.scipy.stats.norm.logpdf(samples.action, mean, jnp.exp(log_std)).sum(axis=-1)
        return -jnp.mean(jnp.exp(log_prob - samples.log_prob) * samples.advantage) - entropy * jnp.mean(log_std)

    def critic_loss(target, weight):
        def loss(params):
            penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
            return jnp.mean((modules.value(params, samples.observation) - target) ** 2) + weight * penalty

        return loss

    for network, new, loss, lr in [
        (agent.actor, updated.actor, actor_loss, actor_lr),
        (agent.reward_critic, updated.reward_critic, critic_loss(samples.reward_target, reward_l2), critic_lr),
        (agent.cost_critic, updated.cost_critic, critic_loss(samples.cost_target, cost_l2), critic_lr),
    ]:
        optimizer = optax.chain(optax.clip_by_global_norm(bound), optax.scale_by_adam(), optax.scale(-lr))
        step, (_, moments, _) = optimizer.update(jax.grad(loss)(network.params), optimizer.init(network.params))
        assert_trees_close(new.params, optax.apply_updates(network.params, step), rtol=1e-3, atol=1e-5)
        # Adam's first step has the same size whatever the gradient; its moments show the gradient itself.
        assert_trees_close(new.optimizer, moments, rtol=1e-3, atol=1e-7)
    # What is reported leaves the penalties out; in the first step every ratio is 1.
    value = modules.value(agent.reward_critic.params, samples.observation)
    np.testing.assert_allclose(scalars["loss/reward_critic"], jnp.mean((value - samples.reward_target) ** 2), rtol=1e-5)
    np.testing.assert_allclose(scalars["loss/actor"], -jnp.mean(samples.advantage), rtol=1e-3, atol=1e-5)


def test_critic_gradient_with_penalty_by_hand():
    """A critic without hidden layers is v = w x + b. Adam's first moment holds a tenth of the gradient."""
    modules, agent, samples = start(hidden=())
    penalty = 0.25
    updated, _ = run_update(modules, agent, samples, reward_critic_l2=penalty)
    layer = agent.reward_critic.params["params"]["MLP_0"]["Dense_0"]
    weight, bias = np.asarray(layer["kernel"])[:, 0], float(layer["bias"][0])
    x, target = np.asarray(samples.observation), np.asarray(samples.reward_target)
    error = x @ weight + bias - target
    moment = updated.reward_critic.optimizer.mu["params"]["MLP_0"]["Dense_0"]
    expected_weight = 2 * (error[:, None] * x).mean(axis=0) + 2 * penalty * weight
    np.testing.assert_allclose(np.asarray(moment["kernel"])[:, 0], 0.1 * expected_weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moment["bias"], [0.1 * (2 * error.mean() + 2 * penalty * bias)], rtol=1e-4, atol=1e-6)


def test_each_critic_has_its_own_penalty():
    """An enormous penalty on one critic must pull that one to zero and leave the other alone."""
    modules, agent, samples = start()
    plain, _ = run_update(modules, agent, samples)
    penalised, _ = run_update(modules, agent, samples, cost_critic_l2=1e3)
    assert_trees_close(penalised.reward_critic.params, plain.reward_critic.params, rtol=0)
    assert optax.tree.norm(penalised.cost_critic.params) < optax.tree.norm(plain.cost_critic.params)


@pytest.mark.parametrize(("penalty", "stays"), [(PPOConfig().cost_critic_l2, True), (1e-3, False)])
def test_a_critic_of_what_does_not_cost_yet_keeps_its_weights(penalty, stays):
    """Four thousand steps without a cost. Adam takes whole steps of a penalty, however small, until nothing is left."""
    modules = dataclasses.replace(make_modules(), critic=Critic(hidden=(32, 32), activation="relu"))
    agent = agent_lib.init(modules, jax.random.key(0), OBSERVATIONS, OBSERVATIONS)
    samples = dataclasses.replace(make_samples(modules, agent), cost_target=jnp.zeros(SAMPLES))
    updated, _ = run_update(modules, agent, samples, cost_critic_l2=penalty, passes=4000, critic_lr=3e-4, actor_lr=0.0)
    size = [float(optax.tree.norm(of.cost_critic.params)) for of in (agent, updated)]
    assert (size[1] > 0.5 * size[0]) if stays else (size[1] < 0.01 * size[0]), size


@pytest.mark.parametrize("bound", [0.5, 0.01])
def test_gradient_norm_bound_applies_to_every_network(bound):
    """Adam hides the size of one gradient from its step, but its first moment is a tenth of it."""
    modules, agent, samples = start(scale=1e3)
    free, _ = run_update(modules, agent, samples)
    bounded, _ = run_update(modules, agent, samples, max_grad_norm=bound)
    for name in ("actor", "reward_critic", "cost_critic"):
        unbounded_norm = optax.tree.norm(getattr(free, name).optimizer.mu) / 0.1
        norm = optax.tree.norm(getattr(bounded, name).optimizer.mu) / 0.1
        assert unbounded_norm > 10.0, f"{name}: the gradient must be large for the bound to matter"
        np.testing.assert_allclose(norm, bound, rtol=1e-3, err_msg=name)


def test_a_tiny_target_stops_after_one_pass():
    """The pass that crossed the target is kept, and the reported KL is that of the kept policy."""
    modules, agent, samples = start()
    updated, scalars = run_update(modules, agent, samples, passes=7, target_kl=1e-12)
    assert float(scalars["ppo/passes"]) == 1.0
    once, _ = run_update(modules, agent, samples, passes=1)
    assert_trees_close(updated, once, rtol=1e-5, atol=1e-7)
    old, new = (modules.policy(a.actor.params, samples.observation) for a in (agent, updated))
    np.testing.assert_allclose(scalars["ppo/kl"], jnp.mean(distributions.kl(*old, *new)), rtol=1e-3)
    assert float(scalars["ppo/kl"]) > 1e-12


def test_stops_in_the_pass_that_crosses_the_target():
    modules, agent, samples = start()
    kl_of_one = float(run_update(modules, agent, samples, passes=7, target_kl=1e-12)[1]["ppo/kl"])
    # A KL equal to the target has not exceeded it.
    _, two = run_update(modules, agent, samples, passes=7, target_kl=kl_of_one)
    assert float(two["ppo/passes"]) == 2.0
    _, three = run_update(modules, agent, samples, passes=7, target_kl=float(two["ppo/kl"]))
    assert float(three["ppo/passes"]) == 3.0
    assert kl_of_one < float(two["ppo/kl"]) < float(three["ppo/kl"])


def test_a_huge_target_allows_all_passes():
    modules, agent, samples = start()
    updated, scalars = run_update(modules, agent, samples, passes=7, minibatch=6)
    assert float(scalars["ppo/passes"]) == 7.0
    # Adam counts its steps: 7 passes of 4 minibatches.
    assert int(updated.actor.optimizer.count) == int(updated.cost_critic.optimizer.count) == 28


def test_every_sample_is_used_once_in_a_pass(monkeypatch):
    """A spy on the loss reads the minibatches; without jit they are concrete."""
    modules, agent, samples = start()
    samples = samples.replace(advantage=jnp.arange(float(SAMPLES)))
    seen, real = [], ppo.clipped_loss

    def spy(log_prob, old_log_prob, advantage, clip):
        # The loop first looks at the shapes of its losses.
        if not isinstance(advantage, jax.core.Tracer):
            seen.append(np.asarray(advantage))
        return real(log_prob, old_log_prob, advantage, clip)

    monkeypatch.setattr(ppo, "clipped_loss", spy)
    with jax.disable_jit():
        run_update(modules, agent, samples, update=ppo.update, passes=2, minibatch=8)
    assert [len(batch) for batch in seen] == [8] * 6
    first, second = np.concatenate(seen[:3]), np.concatenate(seen[3:])
    np.testing.assert_array_equal(np.sort(first), np.arange(SAMPLES))
    np.testing.assert_array_equal(np.sort(second), np.arange(SAMPLES))
    # Shuffled, and anew in every pass.
    assert not np.array_equal(first, np.arange(SAMPLES)) and not np.array_equal(first, second)


# --- In the learner ------------------------------------------------------------------------------------------------


def small_learner(task="ProbeObservation", steps=2, ppo=None, **changes):
    """A learner of one lane on one device. Observations are normalised, so that a wrong choice of statistics shows."""
    config = make_config(
        task=task, steps=4 * 2 * steps, environment={"count": 2, "steps": steps}, policy={"hidden": (4,)},
        critic={"hidden": (4,)}, ppo={"minibatch": 2, "passes": 1} | (ppo or {}), **changes,
    )  # fmt: skip
    built = learner.make(config, tasks.make(config.task), environments=learner.Spread(), one_lane_at_a_time=False)
    return config, built, jax.jit(built.init)(config, jax.random.key(3))


@pytest.fixture
def rows_show_inputs(monkeypatch):
    """Instead of an update, the row of an iteration shows what the update was given."""

    def update(modules, agent, samples, key, *, ppo, actor_lr, **_):
        return agent, {"samples": samples, "actor_lr": actor_lr}

    monkeypatch.setattr(ppo, "update", update)


@pytest.mark.usefixtures("rows_show_inputs")
def test_first_ratio_is_one():
    """An update starts from the log-probabilities of the policy that acted.

    Statistics of observations move in every iteration; using the new ones too early would break this.
    """
    config, built, state = small_learner()
    iteration, collect = jax.jit(built.iteration), jax.jit(built.collect)
    state, _ = iteration(config, state, 0)
    _, transitions, _ = collect(config, state, 1)
    samples = iteration(config, state, 1)[1]["samples"]
    acted_with = built.act(config, state, transitions.observation, None, jnp.zeros_like(transitions.action))
    mean, log_std = built.solver.modules.policy(state.agent.actor.params, samples.observation)
    np.testing.assert_allclose(mean, acted_with.reshape(mean.shape), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(samples.action, transitions.action.reshape(mean.shape), rtol=1e-5, atol=1e-6)
    expected = jax.scipy.stats.norm.logpdf(samples.action, mean, jnp.exp(log_std)).sum(axis=-1)
    np.testing.assert_allclose(samples.log_prob, expected, rtol=1e-4, atol=1e-5)


def scaled(statistics, values, mean_stays=False):
    """Values [T, B, ...] as a normaliser should scale them, flattened to [T * B, ...]."""
    std = np.maximum(np.sqrt(statistics.squares / (statistics.count - 1)), 0.01)
    values = np.clip((values - statistics.mean) / std, -5, 5)
    if mean_stays:
        values = values + statistics.mean / std
    return values.reshape(-1, *values.shape[2:])


@pytest.mark.usefixtures("rows_show_inputs")
def test_observations_are_scaled_by_the_statistics_they_were_acted_on_with():
    config, built, state = small_learner()
    iteration, collect = jax.jit(built.iteration), jax.jit(built.collect)
    state, _ = iteration(config, state, 0)
    _, transitions, _ = collect(config, state, 1)
    after, row = iteration(config, state, 1)
    old, new = state.normalizers.observation, after.normalizers.observation
    assert (float(old.count), float(new.count)) == (4.0, 8.0)
    assert not np.allclose(old.mean, new.mean), "the statistics must differ for this to matter"
    np.testing.assert_allclose(row["samples"].observation, scaled(old, transitions.observation), rtol=1e-4)


@pytest.mark.usefixtures("rows_show_inputs")
@pytest.mark.parametrize(("costs", "are_scaled"), [("learned", False), ("always", True), ("never", False)])
def test_rewards_are_scaled_by_the_newest_statistics_and_costs_if_asked(costs, are_scaled):
    """Without discounting, the target of a value is what was earned in the step. ProbeBudget earns what it costs."""
    config, built, state = small_learner("ProbeBudget", ppo={"gamma": 0.0}, normalize={"costs": costs})
    _, transitions, truth = jax.jit(built.collect)(config, state, 0)
    after, row = jax.jit(built.iteration)(config, state, 0)
    assert np.std(truth.cost) > 0.1, "steps must differ for scaling to matter"
    expected = scaled(after.normalizers.reward, transitions.reward, mean_stays=True)
    np.testing.assert_allclose(row["samples"].reward_target, expected, rtol=1e-4, atol=1e-5)
    expected = scaled(after.normalizers.cost, truth.cost, mean_stays=True) if are_scaled else truth.cost.reshape(-1)
    np.testing.assert_allclose(row["samples"].cost_target, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("rows_show_inputs")
def test_the_advantage_is_mixed_by_the_newest_multiplier():
    """Reward advantages standardised, cost advantages centred alone, and a multiplier that has seen this iteration."""
    config, built, state = small_learner(
        "ProbeBudget",
        steps=10,
        ppo={"gamma": 0.0},
        constraint={"cost_limit": 0.0},
        lagrange={"initial": 3.0, "lr": 1.0, "proportional": 2.0},
        normalize={"costs": "never"},
    )
    _, row = jax.jit(built.iteration)(config, state, 0)
    # Any cost is above the limit, and Adam's first step is the rate. The violation is larger than the limit.
    np.testing.assert_allclose(row["constraint/multiplier"], 4.0, rtol=1e-5)
    np.testing.assert_allclose(row["constraint/in_force"], 6.0, rtol=1e-5)
    samples, agent = row["samples"], state.agent
    # Without discounting, an advantage is what was earned beyond the value.
    reward = samples.reward_target - built.solver.modules.value(agent.reward_critic.params, samples.observation)
    cost = samples.cost_target - built.solver.modules.value(agent.cost_critic.params, samples.observation)
    expected = ((reward - reward.mean()) / reward.std() - 6.0 * (cost - cost.mean())) / 7.0
    np.testing.assert_allclose(samples.advantage, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("rows_show_inputs")
@pytest.mark.parametrize("decay, expected", [(True, [4e-4, 3e-4, 2e-4, 1e-4]), (False, [4e-4] * 4)])
def test_actor_rate_falls_linearly_if_asked(decay, expected):
    """Of four iterations the first has the whole rate and the last still a quarter."""
    config, built, state = small_learner(ppo={"actor_lr": 4e-4, "actor_lr_decay": decay})
    iteration = jax.jit(built.iteration)
    rates = [float(iteration(config, state, index)[1]["actor_lr"]) for index in range(4)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_iteration_is_the_same_without_jit():
    config, built, state = small_learner()
    compiled_state, compiled_row = jax.jit(built.iteration)(config, state, 0)
    with jax.disable_jit():
        plain_state, plain_row = built.iteration(config, state, jnp.int32(0))
    assert_trees_close(compiled_row, plain_row, rtol=1e-3, atol=1e-4)
    assert_trees_close(compiled_state.agent, plain_state.agent, rtol=1e-3, atol=1e-4)
