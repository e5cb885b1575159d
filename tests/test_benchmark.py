"""The corpus of the benchmark, and its record."""

import hashlib
import json
import pathlib

import pytest
import torch

from config import load
from data.pytorch import prepare as pytorch
from data.results import record
from data.results.compare import MEDIANS
from data.results.runs import SCORES
from tests.test_data import documents
from tests.toy import folder

FILES = {  # of a small torch
    "version.py": "__version__ = '0'\n",  # another one in every wheel
    "nn/a.py": "class A:\n    pass\n",
    "nn/b.py": "x = 'é'\n",
    "nn/copy_of_a.py": "class A:\n    pass\n",
    "nn/empty.py": "",
    "nn/notes.txt": "no code\n",
    "sparse/_triton_ops_meta.py": "meta = {1: 2}\n",
    "z.py": "z = 1\n",
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_another_torch_makes_another_corpus_and_says_so_whatever_the_ends_of_lines(tmp_path, monkeypatch, capsys, ends):
    files = {name: text.replace("\n", ends).encode() for name, text in FILES.items()}
    folder(tmp_path / "torch", files, config=None)
    monkeypatch.setattr(pytorch, "find_torch", lambda: tmp_path / "torch")
    train, val = documents(pytorch.main([f"--out_dir={tmp_path / 'out'}"])).values()
    assert sorted(train + val) == sorted(FILES[name].encode() for name in ("nn/a.py", "nn/b.py", "z.py"))
    assert "not the benchmark's corpus" in capsys.readouterr().out


def test_the_corpus_of_this_torch_is_known_and_every_file_stands_in_one_split_in_the_order_of_paths(tmp_path, capsys):
    folder = pytorch.main([f"--out_dir={tmp_path}"])
    if torch.__version__.startswith(pytorch.VERSION):
        digests = {name: hashlib.sha256((folder / f"{name}.bin").read_bytes()).hexdigest() for name in ("train", "val")}
        assert digests == pytorch.DIGESTS["bytes"]
        assert "not the benchmark's corpus" not in capsys.readouterr().out
    texts = [text.encode() for text in pytorch.read_files(pytorch.find_torch()).values()]
    train, val = documents(folder).values()
    in_train = set(train)
    assert train == [text for text in texts if text in in_train]
    assert val == [text for text in texts if text not in in_train]


def test_train_makes_the_folder_of_this_corpus_if_it_is_missing_and_no_other(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(pytorch, "main", made.append)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("there/pytorch/bytes").mkdir(parents=True)
    pathlib.Path("there/pytorch/bytes/meta.json").touch()
    for name in "data/text/bytes", "data/pytorch/foo", "data/pytorch/gpt2/", "there/pytorch/bytes":
        pytorch.make(pathlib.Path(name))
    assert made == [["--tokenizer=gpt2", "--out_dir=data/pytorch/gpt2"]]


# ---- the record --------------------------------------------------------------------------------------------------


def write_entry(path, arrives_at, seeds=record.SEEDS, rows=slice(None), patch=None, **changes):
    """An entry whose losses fall below that of the track at the step arrives_at (or at a list of steps, by seed)."""
    config = vars(load(["config/record.py"])) | dict(sha256=" ".join(pytorch.DIGESTS["bytes"].values()))
    config |= dict(tokenizer="bytes", n_params=123_202, commit=40 * "a") | changes
    header = ["arm", "seed", "step", "train_loss", "val_loss", *MEDIANS, "symmetry_std",
              *(f"{score}_{layer}" for layer in (0, 1) for score in SCORES)]
    lines = [f"# config {json.dumps(config)}", f"# config of {path.stem} {{}}", ",".join(header)]
    steps = [arrives_at] * len(seeds) if isinstance(arrives_at, int) else arrives_at
    track = record.TRACKS[path.parent.name]
    for seed, arrival in zip(seeds, steps):
        losses = {step: track.loss + (0.5 if step < arrival else -0.01)
                  for step in range(0, config["max_iters"] + 1, config["eval_interval"])}
        lines += [f"{path.stem},{seed},{step},,{loss:.4f}" + "," * 9 for step, loss in losses.items()][rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    if patch is not None:
        path.with_suffix(".patch").write_text(patch)
    return path


def say(capsys, *paths):
    record.main(list(map(str, paths)))
    return capsys.readouterr().out


@pytest.fixture
def standing(tmp_path, monkeypatch):
    """A folder of entries, in which every run of the standing record arrives at step 400."""
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    for name, track in record.TRACKS.items():
        write_entry(tmp_path / name / f"{track.baseline}.csv", 500)
        write_entry(tmp_path / name / f"{track.record}.csv", 400)
    return tmp_path


def test_an_entry_that_is_faster_with_every_seed_is_a_record_and_one_that_is_not_is_none(standing, capsys):
    fast = say(capsys, write_entry(standing / "start" / "fast.csv", 300, qk_std=0.1))
    assert "300.0 updates" in fast and "-100.0 updates, p = 0.008: a new record" in fast
    mixed = [300, 300, 300, 300, 420, 420, 420, 420]  # 40 updates less in the mean: half of the signs would do
    assert "-40.0 updates" in say(capsys, write_entry(standing / "start" / "mixed.csv", mixed))
    assert "no new record" in say(capsys, standing / "start" / "mixed.csv")
    slow = say(capsys, write_entry(standing / "start" / "slow.csv", 500))
    assert "p = 0.008: no new record" in slow


def test_a_run_that_does_not_arrive_counts_with_all_steps_that_a_run_may_have(standing, capsys):
    never = [300] * 7 + [10**6]
    limit = record.TRACKS["open"].limit
    text = say(capsys, write_entry(standing / "open" / "short.csv", never, max_iters=400))
    assert f"{(7 * 300 + limit) / 8:.1f} updates" in text and f"300, {limit})" in text


REFUSED = {
    "a seed is missing": (dict(seeds=range(11, 18)), "lacks the seeds [18]"),
    "another corpus": (dict(sha256="0 0"), "another corpus"),
    "another learning rate": (dict(learning_rate=0.01), "learning_rate = 0.01"),
    "a model that is too large": (dict(n_params=10**6), "1000000 parameters"),
    "weights that have learned before": (dict(init_from="out/tiny"), "init_from = 'out/tiny'"),
    "rows cut at the end": (dict(rows=slice(None, -1)), "the run of seed 11 has losses at"),
    "code that is not known": (dict(commit="no repository"), "does not say of which commit"),
    "code that was changed, and no patch": (dict(commit=40 * "a" + "-dirty"), "expected entry.patch"),
    "a patch of more than the start": (dict(patch="+++ b/model.py\n"), "changes model.py"),
}


@pytest.mark.parametrize("changes, said", REFUSED.values(), ids=REFUSED)
def test_an_entry_against_a_rule_is_refused_in_one_line_that_says_which(standing, changes, said):
    path = write_entry(standing / "start" / "entry.csv", 300, **changes)
    with pytest.raises(SystemExit) as refused:
        record.main([str(path)])
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_the_open_track_lets_all_change_but_the_task(standing, capsys):
    free = dict(learning_rate=0.01, n_layer=1, weight_decay=0.1, patch="+++ b/model.py\n", commit=40 * "a" + "-dirty")
    assert "a valid entry" in say(capsys, write_entry(standing / "open" / "free.csv", 300, **free))
    for changes in dict(max_iters=10**4), dict(batch_size=256), dict(mlm_probability=0.5):
        path = write_entry(standing / "open" / "other.csv", 300, **changes)
        with pytest.raises(SystemExit, match=next(iter(changes))):
            record.main([str(path)])


def test_every_entry_that_is_here_is_valid_and_the_readme_has_the_table_of_them():
    text = (record.FOLDER / "README.md").read_text()
    for name in record.TRACKS:
        assert record.TRACKS[name].record in record.find_entries(name)
        assert record.table(name) in text
