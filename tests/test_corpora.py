"""The prepare scripts that read from the network, against the stand-in of tests/hub.py and the real client."""

import gzip
import json
import subprocess
import sys

import pandas
import pytest

from data.redpajama import prepare as redpajama
from tests.test_data import ROOT, encoded, texts_in


@pytest.fixture
def prepare(hub, tmp_path):
    """Runs a script in a process of its own, since the address of the Hub is read at import -> its texts."""
    def prepare(name, *argv):
        argv = [sys.executable, ROOT / "data" / name / "prepare.py", "--tokenizer=bytes", "--val_fraction=0.3", *argv]
        subprocess.run([*argv, f"--out_dir={tmp_path / 'out'}"], check=True)
        return texts_in(tmp_path / "out")
    return prepare


@pytest.mark.parametrize("repo, commit, folder, snapshot", [
    ("legacy-datasets/wikipedia", "97a0b052c326b45fb68593a14972d9eed884cd17", "data/20220301.en", "20220301.en"),
    ("wikimedia/wikipedia", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa", "20231101.en", "20231101.en")])
def test_wikipedia_is_read_from_all_its_files(repo, commit, folder, snapshot, hub, prepare):
    texts = [[f"article {i} of file {file}\n\nIts text." for i in range(5)] for file in range(41)]
    tables = [pandas.DataFrame(dict(title=["t"] * 5, text=part)) for part in texts]
    files = {f"{folder}/train-{i:05d}-of-00041.parquet": table.to_parquet() for i, table in enumerate(tables)}
    hub.add(f"datasets/{repo}", files, commit=commit)
    assert prepare("wikipedia", f"--snapshot={snapshot}") == encoded(sum(texts, []))


def test_jigsaw_is_read_from_the_copy(hub, prepare):
    texts = [f"comment {i}" for i in range(8)]
    table = pandas.DataFrame(dict(comment_text=texts, toxic=[0] * 8))
    files = {"data/train-00000-of-00001.parquet": table.to_parquet()}
    hub.add("datasets/monology/jigsaw", files, commit="690f4aa8ee63d1c28d6088859bba26b0c8db7b6e")
    assert prepare("jigsaw") == encoded(texts)


def test_redpajama_is_read_from_all_its_shards(hub, tmp_path, monkeypatch):
    names = [f"2023-14/{i:04d}/en_{part}" for i in range(2) for part in ("head", "middle")]
    texts = {name: [f"page {i} of {name} 😀 é\r\n" for i in range(30)] for name in names}
    files = {f"documents/{name}.json.gz": gzip.compress("\n".join(json.dumps(dict(raw_content=page)) for page in pages)
                                                        .encode()) for name, pages in texts.items()}
    hub.add("datasets/org/pages", files | {"listings/en-2023-14-head_middle.txt": "\n".join(names).encode() + b"\n"})
    monkeypatch.setattr(redpajama, "HOST", f"{hub.url}/datasets/org/pages/resolve/main")
    redpajama.main(["--tokenizer=bytes", f"--out_dir={tmp_path}", "--val_fraction=0.05"])
    assert texts_in(tmp_path) == encoded(sum(texts.values(), []))
