"""The race: its judge refuses what the rules forbid, before the runs and after them. pytest tests/test_race.py"""

import re
import shutil

import pytest

from config import ROOT, ConfigError, race
from config.plan import main, read_plan
from data.sympy.prepare import DIGESTS
from tests.test_runs import edit, printed, run, write_run

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


def test_runs_of_an_entry_are_all_there_and_made_alike_from_the_text_of_the_race(tmp_path):
    plan = read_plan(entry(tmp_path / "mine.py"))
    folders, kept = {}, {}  # of each arm: its runs, and a file of them
    for i, name in enumerate(plan.arms):
        folders[name], kept[name] = [], tmp_path / f"{name}.csv"
        for seed in plan.seeds:
            keys = plan.keys_of(name, seed=seed)[1] | dict(out_dir="")
            losses = [5, 1.9 - i / 10, 1.6 - seed / 10**4]
            folder = write_run(tmp_path / f"{name}-{seed}", losses, steps=[0, 800, 1600], **keys)
            edit(folder, "origin", commit=["a" * 40], torch=["2.13.0"], device_name=["cpu"])
            folders[name].append(edit(folder, "data", sha256=DIGESTS["bytes"]))
        assert not run(*folders[name], "--csv", kept[name])
    *_, shown = [line for line in printed(*kept.values(), "--plan", plan.path) if "<" in line]
    assert shown.startswith(f"steps_to_1.8 template < {RECORD} 8 ") and shown.endswith(" 0.0078 shown")

    only, all_seeds = slice(2, 3), slice(None)
    two = f"one commit for all runs, and these have {'a' * 40}; {'b' * 40}"
    for name, which, part, changes, words in [
        ("template", only, "config", dict(micro_batch_size=64), "for all runs, and these have micro_batch_size=128"),
        ("template", only, "config", dict(threads=2), "a race has one made_with for all runs"),
        ("template", only, "origin", dict(commit=["b" * 40]), two),
        ("template", only, "config", dict(skip_eval_iters=8), "skip_eval_iters"),
        ("template", all_seeds, "data", dict(sha256=DIGESTS["gpt2"]), "template: this is not the text of the race"),
        (RECORD, all_seeds, "", dict(n_params=200_000), f"{RECORD} has 200,000 parameters"),
    ]:
        before = [(folder / "run.json").read_text() for folder in folders[name]]
        for folder in folders[name][which]:
            edit(folder, part, **changes)
        others = [path for other, path in kept.items() if other != name]
        assert words in run(*others, *folders[name], "--plan", plan.path)
        for folder, text in zip(folders[name], before):
            (folder / "run.json").write_text(text)
    said = run(*folders["learned"][:-1], kept[RECORD], kept["template"], "--plan", plan.path)
    assert "learned has no run of seed 508, and a race needs all" in said

    shutil.copy(folders["learned"][0] / "log.csv", folders["learned"][1])
    said = run(*folders["learned"], kept[RECORD], kept["template"], "--plan", plan.path)
    assert "two seeds of learned have the same losses" in said
    for commit in f"{'a' * 40}-dirty", "no repository":
        for name, path in kept.items():
            path.write_text(re.sub("a{40}(-dirty)?", commit, path.read_text()))
        assert run(*kept.values(), "--plan", plan.path).endswith(f"its runs are of {commit}, no commit")
