"""
The tests that a comparison plans before its first run. A file of config/plans may set

    planned = [
        ("symmetry", "learned", ">", "learned_causal"),                    # the symmetry of one arm is above another's
        ("loss", "symmetric - random", "<", "untied_symmetric - untied"),  # a difference of arms is below another one
    ]

Each is (measure, left, direction, right). The second one is a test of an interaction: for every seed,
(symmetric - random) - (untied_symmetric - untied). All p are corrected together, so a plan has no test too many.
"""

import re

from config import HOW, ConfigError

# What is measured at the end of a run. A score is a median over layers, and the mean over the single heads of a layer.
MEASURES = {
    "loss": "validation loss [nats/token]",
    "symmetry": "of W_qk",
    "chance": "mean symmetry of random matrices in the directions of W_qk",
    "heads": "symmetry of single heads",
    "directionality": "of W_qk",
    "positions": "symmetry of the matrix that untied positions have of their own",
    "positions_heads": "symmetry of single heads of that matrix of positions",
}
OF_LAYERS = ["symmetry", "directionality", "heads", "positions"]  # symmetry_1 is that of layer 1, the second one
# Runs that differ in these keys have the same task, and their losses mean the same. A key that is not named here, as a
# new one of a fork, makes another task. data_dir is the place of a corpus, which sha256 identifies.
WITHIN_TASK = HOW | {
    "seed", "data_dir", "dtype", "n_params", "score_interval", "n_layer", "n_head", "n_embd", "positions", "qk_norm",
    "init", "init_std", "qk_std", "v_std", "dropout", "attn_dropout", "constraint", "constraint_weight", "warmup_iters",
    "learning_rate", "qkv_rate", "optimizer", "weight_decay", "beta2", "grad_clip"}


def require_names(arms):
    """Raises ConfigError unless the names of arms can stand in a path and in a CSV file."""
    for arm in arms:
        if not re.fullmatch(r"[\w.-]+", str(arm)):
            raise ConfigError(f"an arm is called {arm!r}: expected letters, digits, _, - and . (as of its folder)")


def task_of(config):
    """Returns the keys of a run that make its task, with their values. Losses of equal ones may be compared."""
    task = {key: config[key] for key in sorted(config.keys() - WITHIN_TASK)}
    if task["objective"] == "auto":  # as TrainConfig.predicts_next
        task["objective"] = "next" if config["causal"] else "masked"
    return task


def differing_keys(configs):
    """Returns the keys in which some dicts differ, which are configurations or their tasks."""
    return sorted(key for key in set().union(*configs) if any(c.get(key) != configs[0].get(key) for c in configs))


def split_measure(measure):
    """Returns the name of a measure, and its layer or None. Raises ConfigError if there is no such measure."""
    name, _, layer = measure.rpartition("_")
    if name in OF_LAYERS and layer.isdecimal():
        return name, int(layer)
    if measure not in MEASURES:
        raise ConfigError(f"there is no measure {measure}: expected {', '.join(MEASURES)}, or a layer's "
                          f"{', '.join(f'{name}_0' for name in OF_LAYERS)}")
    return measure, None


def column_of(measure):
    """Returns the column that a measure has in the table of a run."""
    return "val_loss" if measure == "loss" else measure


def arms_of(side):
    """Returns the arms in one side of a test, which is an arm or 'arm - arm'."""
    return side.split(" - ")


def arms_of_test(test):
    _, left, _, right = test
    return arms_of(left) + arms_of(right)


def require_planned(path, planned, configs, arms):
    """
    Raises ConfigError, with the name of the file at path, unless planned is a list of tests that can be done.

    configs: {arm: its keys} of the arms that are known. arms: the names of all that there are, or None if any may be.
    """
    for test in planned if isinstance(planned, list | tuple) else [planned]:
        try:
            if not isinstance(test, list | tuple) or [type(word) for word in test] != 4 * [str]:
                raise ConfigError("expected (measure, left, '>' or '<', right)")
            require_test(*test, configs, arms)
        except ConfigError as e:
            raise ConfigError(f"{path}: planned test {test!r}: {e}") from e


def require_test(measure, left, direction, right, configs, arms):
    """Raises ConfigError unless this is a test of these arms."""
    name, layer = split_measure(measure)
    if direction not in (">", "<"):
        raise ConfigError(f"the direction is {direction!r}, expected '>' or '<'")
    if not len(arms_of(left)) == len(arms_of(right)) <= 2:
        raise ConfigError("left and right are two arms, or two differences such as 'symmetric - random'")
    of_arms = {}
    for arm in arms_of(left) + arms_of(right):
        if arms is not None and arm not in arms:
            raise ConfigError(f"no arm is called {arm}: there are {', '.join(arms)}")
        if arm in configs:
            of_arms[arm] = configs[arm]
    for arm, config in of_arms.items():
        if layer is not None and layer >= config["n_layer"]:
            raise ConfigError(f"{arm} has {config['n_layer']} layers, and the first one is {name}_0")
        if name.startswith("positions") and config["positions"] != "untied":
            raise ConfigError(f"{arm} has positions = {config['positions']!r}, and no matrix of untied positions")
    keys = differing_keys([task_of(config) for config in of_arms.values()])
    if measure == "loss" and keys:
        raise ConfigError(f"losses of different tasks cannot be compared, and these arms differ in {', '.join(keys)}")
