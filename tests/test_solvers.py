"""The equations of the solvers, on paper: controllers, losses, budgets, and CPO's dual."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from traces_jax import config as config_lib
from traces_jax import solvers, sources, tasks
from traces_jax.solvers import cpo, cup, focops, p3o, pid, saute

# --- CPPO-PID ------------------------------------------------------------------------------------------------------

# The published gains, for violations as they are.
GAINS = dataclasses.replace(config_lib.PIDConfig(), proportional=0.1, integral=0.01, derivative=0.01)
LIMIT = 25.0


def pid_trace(measures, gains=GAINS, initial=0.001, limit=LIMIT):
    state, found = pid.init(initial, gains.delay), []
    for measure in measures:
        state = pid.update(state, jnp.float32(measure), limit, True, pid=gains)
        found.append(float(state.multiplier))
    return found


def test_the_controller_by_hand():
    """Costs 45, 35, 25 and then none; smoothing 0.95 for both averages."""
    # I: 0.001 + 0.01 * 20; P: 0.05 * 20 = 1; C: 0.05 * 45 = 2.25, up from 0.
    first = 0.1 * 1.0 + 0.201 + 0.01 * 2.25
    # I: 0.201 + 0.1; P: 0.95 + 0.05 * 10 = 1.45; C: 0.95 * 2.25 + 0.05 * 35 = 3.8875.
    second = 0.1 * 1.45 + 0.301 + 0.01 * 3.8875
    # I: unchanged; P: 1.3775; C: 0.95 * 3.8875 + 0.05 * 25 = 4.943125.
    third = 0.1 * 1.3775 + 0.301 + 0.01 * 4.943125
    # I: 0.301 - 0.25 = 0.051; P: 0.95 * 1.3775 - 1.25 = 0.058625; C: 4.69596875, still above 0.
    fourth = 0.1 * 0.058625 + 0.051 + 0.01 * 4.69596875
    np.testing.assert_allclose(pid_trace([45, 35, 25, 0]), [first, second, third, fourth], rtol=1e-5)


def test_the_derivative_looks_back_ten_iterations():
    """Without smoothing the average is the measure, so the rise over ten iterations can be read off."""
    gains = dataclasses.replace(GAINS, proportional=0.0, integral=0.0, derivative=1.0, derivative_smoothing=0.0)
    measures = [float(n * n) for n in range(1, 16)]
    expected = [n * n - max(n - 10, 0) ** 2 for n in range(1, 16)]
    np.testing.assert_allclose(pid_trace(measures, gains, initial=0.0), expected, rtol=1e-6)
    assert pid_trace([9.0, 4.0, 4.0], dataclasses.replace(gains, delay=1), initial=0.0) == [9.0, 0.0, 0.0]


def test_the_controller_is_not_negative_and_does_not_wind_below_zero():
    trace = pid_trace([0.0] * 50 + [45.0], dataclasses.replace(GAINS, proportional=0.0, derivative=0.0))
    assert trace[49] == 0.0
    np.testing.assert_allclose(trace[50], 0.2, rtol=1e-5)


@pytest.mark.parametrize(("measure", "fresh"), [(np.nan, True), (40.0, False)])
def test_the_controller_waits_for_news(measure, fresh):
    state = pid.update(pid.init(0.5, 3), jnp.float32(30.0), LIMIT, True, pid=GAINS)
    same = pid.update(state, jnp.float32(measure), LIMIT, fresh, pid=GAINS)
    jax.tree.map(np.testing.assert_array_equal, same, state)


def test_our_gains_are_the_published_ones_at_the_published_limit():
    """And a limit that is a probability has the same controller as one in costs."""
    measures = [45.0, 35.0, 25.0, 0.0, 60.0]
    unit = float(pid.unit(jnp.float32(LIMIT)))
    ours = pid_trace(np.asarray(measures) / unit, config_lib.PIDConfig(), limit=LIMIT / unit)
    np.testing.assert_allclose(ours, pid_trace(measures), rtol=1e-5)
    assert [float(pid.unit(jnp.float32(limit))) for limit in (0.0, -0.9, 0.1, 3.0)] == [1.0, 1.0, 1.0, 3.0]


# --- CUP, FOCOPS, P3O ----------------------------------------------------------------------------------------------


def test_the_price_of_costs_in_cups_projection():
    np.testing.assert_allclose(cup.price_factor(0.99, 0.95), 5.95, rtol=1e-5)
    assert cup.price_factor(0.0, 0.95) == 1.0


KL = np.asarray([0.001, 0.03, 0.01, 0.02])
RATIO = np.asarray([1.1, 0.7, 0.9, 1.3])
ADVANTAGE = np.asarray([2.0, -1.0, -3.0, 0.5])


def focops_loss(gates_batch):
    return float(
        focops.loss(*map(jnp.asarray, (KL, RATIO, ADVANTAGE)), temperature=1.5, trust=0.02, gates_batch=gates_batch)
    )


def test_focops_loss_by_hand():
    """The second state has moved too far; the last one just has not."""
    kept = (0.001 - 2.2 / 1.5) + (0.01 + 2.7 / 1.5) + (0.02 - 0.65 / 1.5)
    np.testing.assert_allclose(focops_loss(gates_batch=False), kept / 4, rtol=1e-5)


def test_focops_as_released_is_the_mean_of_a_matrix():
    """(near [N, 1]) * (kl [N, 1] - gain [N]) is N x N there."""
    near = (KL <= 0.02).astype(float)[:, None]
    matrix = near * (KL[:, None] - (RATIO * ADVANTAGE / 1.5)[None, :])
    assert matrix.shape == (4, 4)
    np.testing.assert_allclose(focops_loss(gates_batch=True), matrix.mean(), rtol=1e-5)
    assert abs(focops_loss(gates_batch=True) - focops_loss(gates_batch=False)) > 0.05


def test_p3o_expects_the_worse_of_the_clipped_and_the_plain_cost():
    # 1.1 * 2; -0.7 where 0.8 * -1 would be better; 0.9 * -3; 1.3 * 0.5 where 1.2 * 0.5 would be better.
    expected = (2.2 - 0.7 - 2.7 + 0.65) / 4
    ratio, advantage = jnp.asarray(RATIO), jnp.asarray(ADVANTAGE)
    np.testing.assert_allclose(p3o.cost_surrogate(ratio, advantage, 0.2), expected, rtol=1e-5)
    # A cost that the ratio makes smaller than allowed: clipped at 0.8 * -1 from the other side.
    low = p3o.cost_surrogate(jnp.asarray([1.5]), jnp.asarray([-1.0]), 0.2)
    np.testing.assert_allclose(low, -1.2, rtol=1e-5)
    np.testing.assert_allclose(p3o.cost_surrogate(ratio, advantage, jnp.inf), (RATIO * ADVANTAGE).mean(), rtol=1e-5)


# --- Saute ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "expected"), [(0.999, 15.8076), (0.9999, 23.7918), (1.0, 25.0)])
def test_the_discounted_budget(gamma, expected):
    np.testing.assert_allclose(saute.discounted(25.0, gamma, 1000), expected, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_is_spent_when_the_discounted_cost_reaches_it(seed):
    """The sign of z after t steps: positive if and only if the discounted cost of these steps is below the budget."""
    random = np.random.default_rng(seed)
    cost, gamma, budget = random.random(60) * (random.random(60) < 0.5), 0.97, 4.0
    left, positive = jnp.ones(()), []
    for step_cost in cost:
        left = saute.spend(left, jnp.asarray(step_cost), budget, gamma)
        positive.append(bool(left > 0))
    spent = np.cumsum(gamma ** np.arange(60) * cost)
    assert (np.asarray(positive) == (spent < budget)).all()
    assert any(positive) and not all(positive), "the budget must run out on the way"


def make_solver(name, **changes):
    config = make_config(task="ProbeBudget", method={"source": "oracle", "solver": name, **changes})
    return config, solvers.make(config, tasks.make("ProbeBudget"), one_lane_at_a_time=False)


def test_saute_takes_the_reward_when_nothing_is_left():
    config, solver = make_solver("trpo_saute")
    shaped = solver.shape_reward(config, jnp.asarray([[3.0, 3.0, 3.0]]), jnp.asarray([[[0.1], [0.0], [-2.0]]]))
    np.testing.assert_array_equal(shaped, [[3.0, -1.0, -1.0]])


def test_saute_scales_its_budget_for_the_tasks_episodes():
    """ProbeBudget has ten steps; the released program always counts on a thousand."""
    cost, start = jnp.asarray([1.0]), jnp.ones((1, 1))
    config, solver = make_solver("ppo_saute")
    for version, steps in (("as_published", 10), ("as_released", 1000)):
        config = dataclasses.replace(config, method=dataclasses.replace(config.method, solver_version=version))
        budget = 25.0 * (1 - 0.999**steps) / (0.001 * steps)
        left = solver.carry(config, start, cost, jnp.float32(25.0))
        np.testing.assert_allclose(left, [[(1 - 1 / budget) / 0.999]], rtol=1e-5)
        at_end = solver.carried_at_end(config, jnp.asarray([[[0.3]]]))
        np.testing.assert_allclose(at_end, [[[0.3 if version == "as_published" else 1.0]]], rtol=1e-6)


# --- CPO -----------------------------------------------------------------------------------------------------------

DELTA = 0.01


def cpo_step(g, b, c):
    """CPO's step where the Fisher matrix is one: H^-1 g is g."""
    plan = cpo.best(
        **{name: jnp.float32(value) for name, value in dict(q=g @ g, r=-g @ b, s=b @ b, c=c).items()},
        flat=jnp.asarray(b @ b <= 1e-6),
        delta=DELTA,
    )
    return float(plan.along_reward) * g - float(plan.along_cost) * b, plan


@pytest.mark.parametrize("c", [-0.3, -0.05, -0.01, 0.01, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_cpo_finds_the_best_step_in_the_region(c, seed):
    """Maximize g'x with c + b'x <= 0 and x'x / 2 <= delta: the ball's top, or the top of its cut with the plane."""
    random = np.random.default_rng(seed)
    g, b = random.normal(size=3), random.normal(size=3)
    step, plan = cpo_step(g, b, c)
    assert not bool(plan.recovers), "these violations can be mended in one step"
    top = np.sqrt(2 * DELTA) * g / np.linalg.norm(g)
    if c + b @ top > 0:
        nearest, along = -c * b / (b @ b), g - (g @ b) / (b @ b) * b
        top = nearest + np.sqrt(2 * DELTA - nearest @ nearest) * along / np.linalg.norm(along)
    np.testing.assert_allclose(g @ step, g @ top, rtol=1e-3, atol=1e-5)
    assert c + b @ step <= 1e-4 and step @ step / 2 <= DELTA * 1.001


def test_cpo_lowers_the_cost_alone_where_no_step_suffices():
    g, b = np.asarray([1.0, 0.0]), np.asarray([0.0, 2.0])
    step, plan = cpo_step(g, b, 3.0)
    assert bool(plan.recovers) and not bool(plan.within)
    np.testing.assert_allclose(step, [0.0, -np.sqrt(2 * DELTA)], rtol=1e-4)


@pytest.mark.parametrize(("b", "c"), [([1e-5, 0.0], -0.01), ([0.1, 0.0], -1.0)])
def test_cpo_is_trpo_where_the_constraint_is_out_of_reach(b, c):
    g = np.asarray([3.0, 4.0])
    step, _ = cpo_step(g, np.asarray(b), c)
    np.testing.assert_allclose(step, np.sqrt(2 * DELTA) * g / 5.0, rtol=1e-4)


@pytest.mark.parametrize("name", ["cpo", "p3o"])
def test_the_gap_is_in_the_unit_of_advantages(name):
    """Costs of 35 with a limit of 25: 0.1 for each step of a discounted future of a hundred; 10 as released."""
    verdict = sources.Verdict(
        cost=jnp.zeros((1, 1)),
        measure=jnp.float32(35.0),
        deployed=jnp.float32(35.0),
        limit=jnp.float32(25.0),
        final=jnp.float32(25.0),
        tolerance=jnp.float32(2.5),
        fresh=jnp.asarray(True),
    )
    gaps = []
    for version in ("as_published", "as_released"):
        config, solver = make_solver(name, solver_version=version)
        gaps.append(float(solver.gap(config, verdict)))
        unknown = solver.gap(config, verdict.replace(measure=jnp.float32(jnp.nan)))
        assert -1e7 < float(unknown) < -1e3, "no episode has ended: the constraint does not bind"
    np.testing.assert_allclose(gaps, [0.1, 10.0], rtol=1e-4)


# --- Which source goes with which solver ---------------------------------------------------------------------------


def refusal(source, solver, **changes):
    config = make_config(task="ProbeBudget", method={"source": source, "solver": solver}, **changes)
    task = tasks.make("ProbeBudget")
    solvers.make(config, task, one_lane_at_a_time=True).check(config, sources.make(config, task))


@pytest.mark.parametrize("solver", ["trpo_saute", "ppo_saute", "cpo", "p3o"])
def test_a_solver_that_needs_a_budget_says_so(solver):
    with pytest.raises(config_lib.ConfigError) as caught:
        refusal("traces", solver)
    assert str(caught.value) == (
        f"method.solver={solver} is not right with method.source=traces and constraint.form=probability: it needs a "
        "limit of the summed cost of an episode, and this is one of a probability; constraint.form=jensen, or "
        "method.solver=ppo_lag, would be right."
    )
    refusal("traces", solver, constraint={"form": "jensen"}, normalize={"costs": "never"})
    refusal("oracle", solver)


def test_costs_are_compared_with_their_limit_as_they_are():
    with pytest.raises(config_lib.ConfigError) as caught:
        refusal("traces", "cpo", constraint={"form": "jensen"})
    assert str(caught.value) == (
        "normalize.costs=iteration is not right with method.solver=cpo: it compares costs with their limit, which is "
        "not normalized; never would be right."
    )


@pytest.mark.parametrize("source", [*config_lib.SOURCES, "examples.noisy_or:NoisyOr"])
def test_every_pair_goes_together_or_says_why_not(source):
    """All of the table in docs/solvers.md, with costs that are scaled and with costs as they are."""
    found = {}
    for costs in ("iteration", "never"):
        for solver in config_lib.SOLVERS:
            try:
                refusal(source, solver, normalize={"costs": costs})
            except config_lib.ConfigError as error:
                found[solver, costs] = str(error)
    if source == "traces":
        budget = ("cpo", "p3o", "trpo_saute", "ppo_saute")
        assert found.keys() == {(solver, costs) for solver in budget for costs in ("iteration", "never")}
        assert all(
            "constraint.form=jensen, or method.solver=ppo_lag, would be right." in said for said in found.values()
        )
    else:
        assert found.keys() == (set() if source == "oracle" else {("cpo", "iteration"), ("p3o", "iteration")})
        assert all(said.endswith("which is not normalized; never would be right.") for said in found.values())


@pytest.mark.parametrize("solver", config_lib.SOLVERS)
def test_every_solver_has_a_class_and_its_settings(solver):
    """Its own group has an effect, those of others have none."""
    config = make_config(task="ProbeBudget", method={"source": "oracle", "solver": solver})
    solvers.make(config, tasks.make("ProbeBudget"), one_lane_at_a_time=True)
    paths = config_lib.without_effect(config)
    read = {path.split(".")[0] for path in config_lib.all_fields() if path not in paths}
    groups = {
        "pid": ["cppo_pid"], "cup": ["cup"], "focops": ["focops"], "p3o": ["p3o"], "cpo": ["cpo"],
        "saute": ["ppo_saute", "trpo_saute"],
    }  # fmt: skip
    for group, readers in groups.items():
        assert (group in read) == (solver in readers), group
    second_order = solver.startswith("trpo") or solver == "cpo"
    assert ("trust_region.target_kl" in paths) != second_order == ("ppo.passes" in paths)
    assert "ppo.gamma" not in paths and "lagrange.window" not in paths
