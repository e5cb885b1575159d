"""
The prepare scripts that read from the network, against the stand-in of tests/hub.py: the real scripts and the real
client, in a process of their own, since the address of the Hub is read at import.
"""

import gzip
import json
import pathlib
import subprocess
import sys

import pandas
import pytest

from tests.hub import hub  # noqa: F401 (a fixture)
from tests.test_data import encoded, texts_in

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAPER = "legacy-datasets/wikipedia@97a0b052c326b45fb68593a14972d9eed884cd17"
NEWER = "wikimedia/wikipedia@b04c8d1ceb2f5cd4588862100d08de323dccfbaa"
JIGSAW = "monology/jigsaw@690f4aa8ee63d1c28d6088859bba26b0c8db7b6e"
SAMPLE = "togethercomputer/RedPajama-Data-V2@a6472f517d2cf7541afb695fa2bbe7c8474256e5"
SHARDS = [f"2023-06/{i:04d}/en_{part}" for i in range(10) for part in ("head", "middle")]  # of the sample


def add(hub, dataset, files):
    """The files of owner/name@commit."""
    name, commit = dataset.split("@")
    hub.add(f"datasets/{name}", files, commit=commit)


@pytest.fixture
def prepare(hub, tmp_path):
    """Runs a script -> the texts that it has written, and what it said; if it fails, None and the error."""
    def prepare(name, *argv):
        argv = [sys.executable, ROOT / "data" / name / "prepare.py", "--tokenizer=bytes", *argv]
        run = subprocess.run([*argv, f"--out_dir={tmp_path / 'out'}"], cwd=tmp_path, capture_output=True, text=True)
        return (texts_in(tmp_path / "out"), run.stdout) if run.returncode == 0 else (None, run.stderr)
    return prepare


def parquet(columns):
    return pandas.DataFrame(columns).to_parquet()


@pytest.mark.parametrize("repo, folder, argv", [
    (PAPER, "data/20220301.en", ["--snapshot=20220301.en", "--max_tokens=300"]),
    (NEWER, "20231101.en", []),
])
def test_wikipedia_is_read_from_all_its_files(repo, folder, argv, hub, prepare):
    texts = [[f"article {i} of file {file}\n\nIts text." for i in range(5)] for file in range(41)]
    add(hub, repo, {f"{folder}/train-{file:05d}-of-00041.parquet": parquet(
        dict(id=["0"] * 5, url=["u"] * 5, title=["t"] * 5, text=part)) for file, part in enumerate(texts)})
    found, _ = prepare("wikipedia", "--val_fraction=0.1", *argv)
    expected = encoded(sum(texts, []))
    assert len(found) == 10 and set(found) < set(expected) if argv else found == expected


@pytest.mark.parametrize("argv", [[], ["--csv=train.csv"]])
def test_jigsaw_is_read_from_the_copy_and_from_the_csv_of_kaggle(argv, hub, prepare, tmp_path):
    texts = ['a "quote", and a comma', "two\nlines", "NA", "null", "", "crlf\r\ninside", "é 😀", "0001"]
    table = pandas.DataFrame(dict(id=[f"{i:016x}" for i in range(8)], comment_text=texts, toxic=[0] * 8))
    table.to_csv(tmp_path / "train.csv", index=False)
    add(hub, JIGSAW, {"data/train-00000-of-00001.parquet": b"" if argv else parquet(table)})
    assert prepare("jigsaw", *argv)[0] == encoded(filter(None, texts))


def shard(texts):
    return gzip.compress("".join(json.dumps(dict(url="u", raw_content=text)) + "\n" for text in texts).encode())


def test_redpajama_skips_and_names_what_the_host_lacks(hub, prepare):
    names = [f"2023-14/{i:04d}/en_{part}" for i in range(4) for part in ("head", "middle")]
    texts = {name: [f"page {i} of {name} 😀 é\r\n" for i in range(300)] for name in names}
    files = {f"documents/{name}.json.gz": shard(part) for name, part in texts.items()}
    gone, forbidden, cut, other, empty = (f"documents/{name}.json.gz" for name in names[1:6])
    del files[gone]
    files |= {cut: files[cut][: len(files[cut]) // 2], other: b"<html>no</html>", empty: b""}
    hub.add("datasets/org/pages", files | {"listings/en-2023-14-head_middle.txt": "\n".join(names).encode() + b"\n"})
    hub.forbidden = forbidden
    base = f"--base_url={hub.url}/datasets/org/pages/resolve/main"
    found, output = prepare("redpajama", base, "--chunk_size=5000", "--val_fraction=0.05")
    found, whole = set(found), set(encoded(sum((texts[names[i]] for i in (0, 6, 7)), [])))
    assert whole < found and found - whole < set(encoded(texts[names[3]]))
    said = {tuple(line.split(f" shard: {base.removeprefix('--base_url=')}/")) for line in output.splitlines()}
    assert said > {("missing", gone), ("missing", forbidden), ("broken", cut), ("broken", other)}


def test_redpajama_sample_is_read_from_the_hub(hub, prepare):
    add(hub, SAMPLE, {f"sample/documents/{name}.json.gz": shard([f"page of {name}"]) for name in SHARDS})
    assert prepare("redpajama", "--sample")[0] == encoded(f"page of {name}" for name in SHARDS)


@pytest.mark.parametrize("script", ["jigsaw", "redpajama"])
def test_a_corpus_that_is_not_there_ends_in_one_line(script, hub, prepare, tmp_path):
    add(hub, JIGSAW, {})
    texts, error = prepare(script, *([f"--base_url={hub.url}"] if script == "redpajama" else []))
    assert texts is None and error.splitlines()[-1].startswith("error: ") and "Traceback" not in error
    assert not [*tmp_path.glob("out/[!.]*")]
