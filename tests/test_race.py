"""The race: its judge refuses what the rules forbid, before the runs and after them. pytest tests/test_race.py"""

import itertools
import json
import shutil

import pytest

from config import ROOT, ConfigError, race
from config.plan import main, read_plan
from data.sympy.prepare import DIGESTS
from tests.test_runs import printed, run, write_run

TEMPLATE = ROOT / "config/records/template.py"
*_, RECORD = race.RECORDS  # what the template is held against
OF_RECORD = f'"{RECORD}": _records["{RECORD}"]'


def entry(path, *changes):
    """A copy of the template with other words, each a pair."""
    text = TEMPLATE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_every_file_of_records_is_an_entry_by_the_rules_and_what_it_lacks_is_said(tmp_path, capsys):
    assert all(read_plan(path).is_entry() for path in ROOT.glob("config/records/*.py"))
    main([str(entry(tmp_path / "mine.py"))])
    out, err = capsys.readouterr()
    assert out.count("\n") == 24
    assert "still lacks: the number of trials in its docstring" in err and "24 of its 24 runs" in err
    main([str(entry(tmp_path / "mine.py", ("in N trials", "in 12 trials")))])
    assert "trials" not in capsys.readouterr().err


ARM = "dict(learning_rate=8e-3)"


@pytest.mark.parametrize("change, words", [
    (("}\n", "}\nseeds = range(501, 507)\n"), "seeds is [501, 502, 503, 504, 505, 506], and in the race"),
    (("}\n", "}\nmost_params = 10**9\n"), "most_params is 1000000000, and in the race it is 140000"),
    (("}\n", "}\nbase = 'config/small.py'\n"), "base is 'config/small.py'"),
    (('_arms["learned"]', '_arms["learned"] | dict(learning_rate=1e-3)'), "its learned is {"),
    ((OF_RECORD, f'"{RECORD}": _arms["rotary"]'), f"its {RECORD} is {{"),
    (("}\n", "}\narms['again'] = arms['template']\n"), f"expected learned, {RECORD}, again"),
    ((f'"template", "<", "{RECORD}"', '"template", "<", "learned"'),
     f"in the race it is [('steps_to_1.8', 'template', '<', '{RECORD}')]"),
    ((ARM, "dict(n_embd=64, n_head=4)"), "template has 171,138 parameters, and at most 140,000"),
    ((ARM, "dict(data_dir='data/text/bytes')"), "template has data_dir = 'data/text/bytes', and in the race it is"),
    ((ARM, "dict(max_iters=3200)"), "max_iters"),
    ((ARM, "dict(skip_iters=1600)"), "template has skip_iters = 1600"),
    ((ARM, "dict(skip_eval_iters=8)"), "skip_eval_iters"),
    ((ARM, "dict(parent='learned')"), "template has parent = 'learned'"),
    ((ARM, "dict(eval_interval=1)"), "these differ in eval_interval"),
    ((ARM, "dict(micro_batch_size=32)"), "template has micro_batch_size = 32"),
])
def test_what_the_rules_forbid_is_refused_before_the_first_run(tmp_path, capsys, change, words):
    plan = entry(tmp_path / "mine.py", change)
    with pytest.raises(SystemExit) as e:
        main([str(plan), "--run"])
    assert words in e.value.code and "\n" not in e.value.code and capsys.readouterr().out == ""


def test_code_in_no_commit_is_refused_before_the_first_run_and_a_file_of_records_is_always_judged(monkeypatch, tmp_path,
                                                                                                 capsys):
    monkeypatch.setattr("data.runs.write.find_commit", lambda: f"{'a' * 40}-dirty")
    with pytest.raises(SystemExit, match="commit all Python files first"):
        main([str(entry(tmp_path / "mine.py")), "--run"])
    assert capsys.readouterr().out == ""
    without = read_plan(TEMPLATE)._replace(most_params=0)
    assert without.is_entry() and not without._replace(path=tmp_path / "mine.py").is_entry()
    with pytest.raises(ConfigError, match="most_params is 0, and in the race it is 140000"):
        race.require_entry(without)


def test_a_record_is_tested_against_the_record_before_it(tmp_path, monkeypatch):
    first, second = (entry(tmp_path / f"{name}.py", ("template", name)) for name in ("first", "second"))
    assert read_plan(first).arms and read_plan(second).arms
    monkeypatch.setattr(race, "RECORDS", race.RECORDS | dict(first=str(first)))
    assert read_plan(first).arms
    with pytest.raises(ConfigError, match=f"are learned, {RECORD}, second, expected learned, first, second"):
        read_plan(second)
    entry(second, ("template", "second"), (OF_RECORD, f'"first": _records["{RECORD}"] | {ARM}'),
          (f'"{RECORD}")', '"first")'))
    assert read_plan(second).arms


def edit(folder, part, **changes):
    values = json.loads((folder / "run.json").read_text())
    (values[part] if part else values).update(changes)
    (folder / "run.json").write_text(json.dumps(values))


def test_runs_of_an_entry_are_all_there_and_made_alike_from_the_text_of_the_race(tmp_path):
    plan = read_plan(entry(tmp_path / "mine.py"))
    folders = {}
    for (i, name), seed in itertools.product(enumerate(plan.arms), plan.seeds):
        keys = plan.keys_of(name, seed=seed)[1]
        folder = tmp_path / f"{name}-{seed}"
        losses = [5, 1.9 - i / 10, 1.6 - seed / 10**4]
        folders[name, seed] = write_run(folder, losses, steps=[0, 800, 1600], **keys | dict(out_dir=""))
        edit(folder, "data", sha256=DIGESTS["bytes"])
        edit(folder, "origin", commit=["a" * 40], torch=["2.13.0"], device_name=["cpu"])
    *_, shown = [line for line in printed(*folders.values(), "--plan", plan.path) if "<" in line]
    assert shown[:5] == ["steps_to_1.8", "template", "<", RECORD, "8"] and shown[-2:] == ["0.0078", "shown"]

    chosen = folders["template", 503]
    for part, changes, words in [
        ("config", dict(micro_batch_size=64), "one made_with for all runs, and these have micro_batch_size=128"),
        ("config", dict(threads=2), "a race has one made_with for all runs"),
        ("origin", dict(commit=["b" * 40]), f"one commit for all runs, and these have {'a' * 40}; {'b' * 40}"),
        ("config", dict(skip_eval_iters=8), "skip_eval_iters"),
    ]:
        before = shutil.copy(chosen / "run.json", tmp_path)
        edit(chosen, part, **changes)
        assert words in run(*folders.values(), "--plan", plan.path)
        shutil.copy(before, chosen)
    for commit in f"{'a' * 40}-dirty", "no repository":
        for folder in folders.values():
            edit(folder, "origin", commit=[commit])
        assert run(*folders.values(), "--plan", plan.path).endswith(f"its runs are of {commit}, no commit")
    for name, part, changes, words in [
        ("template", "data", dict(sha256=DIGESTS["gpt2"]), "template: this is not the text of the race"),
        (RECORD, "", dict(n_params=200_000), f"{RECORD} has 200,000 parameters"),
    ]:
        for seed in plan.seeds:
            edit(folders[name, seed], part, **changes)
        assert words in run(*folders.values(), "--plan", plan.path)
    shutil.copy(folders["learned", 507] / "log.csv", folders["learned", 508])
    assert "two seeds of learned have the same losses" in run(*folders.values(), "--plan", plan.path)
    del folders["learned", 508]
    assert "learned has no run of seed 508, and a race needs all" in run(*folders.values(), "--plan", plan.path)
