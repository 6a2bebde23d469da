"""Every learned cost beside the others: TraCeS, C-T and RLSF, with no more labels than the paper's column has."""

from traces_jax.host.study.rows import Row, Study

# Labelled trajectories of the paper: of TraCeS, and of C-T. RLSF could not be run there; it may ask as often as TraCeS.
_RUN = {"BallRun": (2627, 6000), "CarRun": (8832, 6000), "DroneRun": (3494, 6000), "AntRun": (6521, 6000)}


def get_study():
    """From fresh cost models. RLSF asks for all that is novel, the others for the share of the experiment files."""
    rows = []
    for task, (traces, ct) in _RUN.items():
        rows += [
            Row(task, "traces", settings={"query.budget": traces}),
            Row(task, "ct", settings={"query.budget": ct}),
            Row(task, "rlsf", settings={"query.budget": traces, "query.fraction": 1.0}),
        ]
    rows += [
        Row("HalfCheetah", "ct", settings={"query.budget": 6000}, seeds=2),
        Row("HalfCheetah", "rlsf", settings={"query.budget": 4349, "query.fraction": 1.0}, seeds=2),
    ]
    return Study(rows, compare=[("traces", "ct"), ("traces", "rlsf"), ("ct", "rlsf")])
