"""Results of the TraCeS paper (traces.tex): mean and standard deviation over seeds."""

import dataclasses

LIMIT, SEEDS = 25.0, 8


@dataclasses.dataclass(frozen=True)
class Published:
    """Each is (mean, std). labels: labelled trajectories, None where there are none or none are given."""

    returns: tuple[float, float]
    cost: tuple[float, float]
    labels: tuple[float, float] | None = None


# Tables tab:safety_gym_eval_perf (Circle, Velocity) and tab:bullet_eval_perf (Run).
_TRACES = {
    "SafetyPointCircle1-v0": Published((43.2, 1.5), (16.2, 7.2), (5830, 918)),
    "SafetyPointCircle2-v0": Published((41.1, 0.9), (19.8, 9.5), (5465, 1328)),
    "SafetyCarCircle1-v0": Published((17.4, 0.9), (11.3, 8.0), (4005, 7)),
    "SafetyCarCircle2-v0": Published((15.2, 0.9), (11.9, 10.0), (4341, 243)),
    "SafetyAntVelocity-v1": Published((2885.4, 12.3), (19.5, 5.3), (4657, 551)),
    "SafetyHalfCheetahVelocity-v1": Published((2372.5, 272.6), (22.4, 5.3), (2749, 557)),
    "SafetyHopperVelocity-v1": Published((1610.7, 48.9), (17.1, 4.7), (2993, 484)),
    "SafetyWalker2dVelocity-v1": Published((2211.2, 182.0), (24.1, 3.9), (5735, 1041)),
    "SafetyAntRun-v0": Published((590.5, 32.3), (21.4, 1.9), (6521, 1008)),
    "SafetyBallRun-v0": Published((457.0, 30.1), (24.7, 0.8), (2627, 229)),
    "SafetyCarRun-v0": Published((568.3, 9.4), (23.3, 1.1), (8832, 988)),
    "SafetyDroneRun-v0": Published((440.0, 3.3), (13.6, 10.5), (3494, 541)),
}

# Table tab:random_init: no labels before the run, as ours without estimator.init.
_TRACES_FRESH = {
    "SafetyAntVelocity-v1": Published((2655.3, 201.0), (17.7, 2.7)),
    "SafetyHalfCheetahVelocity-v1": Published((1934.5, 439.2), (22.9, 2.7)),
    "SafetyAntRun-v0": Published((500.3, 35.9), (23.5, 1.9)),
    "SafetyCarRun-v0": Published((559.0, 17.1), (22.3, 3.4)),
}

# The same tables as the first.
_ORACLE = {
    "SafetyPointCircle1-v0": Published((46.6, 1.4), (21.5, 7.2)),
    "SafetyPointCircle2-v0": Published((41.7, 0.9), (29.1, 6.0)),
    "SafetyCarCircle1-v0": Published((18.3, 0.4), (23.5, 5.9)),
    "SafetyCarCircle2-v0": Published((16.2, 0.2), (28.3, 5.2)),
    "SafetyAntVelocity-v1": Published((3313.1, 53.8), (14.4, 6.8)),
    "SafetyHalfCheetahVelocity-v1": Published((3008.3, 52.9), (2.1, 1.2)),
    "SafetyHopperVelocity-v1": Published((1046.1, 345.2), (29.1, 36.2)),
    "SafetyWalker2dVelocity-v1": Published((2682.2, 333.2), (10.3, 5.5)),
    "SafetyAntRun-v0": Published((683.7, 24.7), (25.4, 25.3)),
    "SafetyBallRun-v0": Published((579.5, 332.2), (17.8, 28.9)),
    "SafetyCarRun-v0": Published((577.7, 17.8), (22.0, 8.9)),
    "SafetyDroneRun-v0": Published((459.0, 10.4), (33.2, 8.1)),
}

# The same tables. The released code of RLSF could not run the Run tasks.
_CT = {
    "SafetyPointCircle1-v0": Published((40.2, 1.1), (25.3, 15.9), (12000, 0)),
    "SafetyPointCircle2-v0": Published((40.2, 0.8), (22.7, 13.5), (12000, 0)),
    "SafetyCarCircle1-v0": Published((18.0, 0.5), (28.2, 11.7), (12000, 0)),
    "SafetyCarCircle2-v0": Published((15.3, 0.9), (44.0, 24.0), (12000, 0)),
    "SafetyAntVelocity-v1": Published((3096.7, 63.7), (20.3, 4.1), (6000, 0)),
    "SafetyHalfCheetahVelocity-v1": Published((2623.5, 264.6), (99.7, 74.5), (6000, 0)),
    "SafetyHopperVelocity-v1": Published((1620.1, 139.9), (284.2, 289.2), (6000, 0)),
    "SafetyWalker2dVelocity-v1": Published((2491.0, 478.3), (16.7, 9.1), (6000, 0)),
    "SafetyAntRun-v0": Published((654.6, 39.8), (33.3, 21.5), (6000, 0)),
    "SafetyBallRun-v0": Published((485.8, 29.7), (35.3, 22.3), (6000, 0)),
    "SafetyCarRun-v0": Published((569.1, 8.2), (13.3, 11.9), (6000, 0)),
    "SafetyDroneRun-v0": Published((446.4, 5.1), (18.1, 7.2), (6000, 0)),
}
_RLSF = {
    "SafetyPointCircle1-v0": Published((41.9, 1.8), (1.6, 2.2), (3244, 966)),
    "SafetyPointCircle2-v0": Published((39.9, 0.8), (2.6, 4.5), (3422, 589)),
    "SafetyCarCircle1-v0": Published((14.3, 2.2), (33.8, 41.7), (7479, 645)),
    "SafetyCarCircle2-v0": Published((13.7, 1.1), (20.2, 17.0), (7601, 597)),
    "SafetyAntVelocity-v1": Published((2220.7, 91.8), (5.8, 2.6), (9036, 1289)),
    "SafetyHalfCheetahVelocity-v1": Published((2468.8, 177.0), (0.5, 0.9), (4349, 793)),
    "SafetyHopperVelocity-v1": Published((1577.7, 42.1), (20.4, 44.2), (6690, 736)),
    "SafetyWalker2dVelocity-v1": Published((2797.7, 122.0), (0.3, 0.3), (15227, 1920)),
}

TASKS = tuple(_TRACES)

# method.source -> column heading -> task -> results.
PAPER: dict[str, dict[str, dict[str, Published]]] = {
    "traces": {"paper, TraCeS": _TRACES, "paper, TraCeS from a fresh estimator": _TRACES_FRESH},
    "ct": {"paper, C-T": _CT},
    "rlsf": {"paper, RLSF": _RLSF},
    "oracle": {"paper, PPO-Lagrangian": _ORACLE},
}
