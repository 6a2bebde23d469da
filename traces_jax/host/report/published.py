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

# Tables tab:safety_gym_eval_perf, tab:bullet_eval_perf (CPPO-PID), tab:safety_gym_eval_perf2_appendix and
# tab:bullet_eval_perf2 (the others).
_CPPO_PID = {
    "SafetyPointCircle1-v0": Published((46.8, 1.72), (29.4, 4.9)),
    "SafetyPointCircle2-v0": Published((41.3, 0.8), (22.8, 7.3)),
    "SafetyCarCircle1-v0": Published((17.9, 0.3), (23.7, 4.4)),
    "SafetyCarCircle2-v0": Published((14.9, 1.4), (22.6, 4.3)),
    "SafetyAntVelocity-v1": Published((3284.7, 48.0), (12.8, 4.5)),
    "SafetyHalfCheetahVelocity-v1": Published((3007.9, 44.9), (3.6, 0.9)),
    "SafetyHopperVelocity-v1": Published((1357.3, 403.5), (12.7, 7.6)),
    "SafetyWalker2dVelocity-v1": Published((2562.8, 224.5), (14.0, 4.8)),
    "SafetyAntRun-v0": Published((675.5, 26.6), (22.6, 12.2)),
    "SafetyBallRun-v0": Published((455.2, 27.6), (3.7, 6.3)),
    "SafetyCarRun-v0": Published((568.2, 2.7), (14.8, 5.6)),
    "SafetyDroneRun-v0": Published((449.9, 4.5), (10.2, 14.3)),
}

_CUP = {
    "SafetyPointCircle1-v0": Published((44.3, 3.1), (16.1, 12.9)),
    "SafetyPointCircle2-v0": Published((41.2, 0.4), (31.8, 19.7)),
    "SafetyCarCircle1-v0": Published((17.5, 0.7), (27.5, 6.1)),
    "SafetyCarCircle2-v0": Published((15.4, 0.5), (28.3, 10.7)),
    "SafetyAntVelocity-v1": Published((3119.7, 64.2), (5.1, 3.0)),
    "SafetyHalfCheetahVelocity-v1": Published((2441.4, 663.4), (7.6, 10.1)),
    "SafetyHopperVelocity-v1": Published((1273.5, 541.2), (13.0, 7.4)),
    "SafetyWalker2dVelocity-v1": Published((2388.1, 207.0), (6.6, 5.5)),
    "SafetyAntRun-v0": Published((649.1, 40.1), (55.2, 47.6)),
    "SafetyBallRun-v0": Published((443.9, 35.0), (27.0, 38.2)),
    "SafetyCarRun-v0": Published((567.8, 2.5), (6.9, 5.0)),
    "SafetyDroneRun-v0": Published((381.0, 88.4), (37.2, 47.7)),
}

_FOCOPS = {
    "SafetyPointCircle1-v0": Published((42.0, 5.9), (16.3, 28.1)),
    "SafetyPointCircle2-v0": Published((39.0, 1.8), (12.9, 9.3)),
    "SafetyCarCircle1-v0": Published((18.6, 0.5), (40.7, 12.8)),
    "SafetyCarCircle2-v0": Published((16.0, 0.6), (29.2, 13.6)),
    "SafetyAntVelocity-v1": Published((3177.6, 131.6), (12.7, 5.5)),
    "SafetyHalfCheetahVelocity-v1": Published((2951.7, 92.5), (3.1, 2.2)),
    "SafetyHopperVelocity-v1": Published((1330.1, 421.0), (31.9, 32.6)),
    "SafetyWalker2dVelocity-v1": Published((2455.3, 356.3), (8.3, 5.1)),
    "SafetyAntRun-v0": Published((684.8, 13.7), (23.3, 26.7)),
    "SafetyBallRun-v0": Published((603.2, 368.2), (17.2, 28.9)),
    "SafetyCarRun-v0": Published((573.7, 28.0), (44.9, 27.5)),
    "SafetyDroneRun-v0": Published((342.2, 168.5), (53.0, 28.2)),
}

_TRPO_SAUTE = {
    "SafetyPointCircle1-v0": Published((39.6, 0.7), (8.3, 7.8)),
    "SafetyPointCircle2-v0": Published((39.5, 1.0), (3.7, 4.3)),
    "SafetyCarCircle1-v0": Published((14.4, 0.5), (26.4, 17.8)),
    "SafetyCarCircle2-v0": Published((12.8, 1.0), (35.1, 23.0)),
    "SafetyAntVelocity-v1": Published((3102.0, 90.8), (17.0, 0.3)),
    "SafetyHalfCheetahVelocity-v1": Published((2448.6, 498.9), (16.7, 1.0)),
    "SafetyHopperVelocity-v1": Published((1357.8, 296.2), (16.3, 4.3)),
    "SafetyWalker2dVelocity-v1": Published((2138.7, 373.8), (18.1, 0.8)),
    "SafetyAntRun-v0": Published((652.0, 9.9), (13.8, 0.8)),
    "SafetyBallRun-v0": Published((135.8, 431.5), (41.3, 34.3)),
    "SafetyCarRun-v0": Published((552.0, 59.8), (22.4, 20.4)),
    "SafetyDroneRun-v0": Published((447.1, 7.8), (15.5, 22.5)),
}

# The tables of the methods that learn. The released code of RLSF could not run the Run tasks.
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

# Method, as `groups.METHODS` names it -> column heading -> task -> results.
PAPER: dict[str, dict[str, dict[str, Published]]] = {
    "traces": {"paper, TraCeS": _TRACES, "paper, TraCeS from a fresh estimator": _TRACES_FRESH},
    "ct": {"paper, C-T": _CT},
    "rlsf": {"paper, RLSF": _RLSF},
    "oracle": {"paper, PPO-Lagrangian": _ORACLE},
    "oracle+cppo_pid": {"paper, CPPO-PID": _CPPO_PID},
    "oracle+cup": {"paper, CUP": _CUP},
    "oracle+focops": {"paper, FOCOPS": _FOCOPS},
    "oracle+trpo_saute": {"paper, TRPO-Saute": _TRPO_SAUTE},
}
