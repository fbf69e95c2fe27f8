"""The file of jobs that a command starts: what its columns mean, and what is wrong with it."""

from pathlib import Path

import pytest
from scrapyd_dist.cli.jobs.job_file import read_jobs

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.jobs.job_posts import JobOrder


def test_a_file_of_jobs(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(
        '\ufeffspider,node,priority,s:DEPTH,category\neasy,web1,2,1,"a, b"\nhard,,,,\n', "utf-8"
    )
    first, second = read_jobs(file, JobOrder(spider=""))
    assert first == JobOrder(
        spider="easy", node="web1", priority=2.0, args={"category": "a, b"}, settings={"DEPTH": "1"}
    )
    assert second == JobOrder(spider="hard")
    file.write_text("spider,l:site,l:kind\neasy,shop.com,\n", "utf-8")
    (row,) = read_jobs(file, JobOrder(spider="", labels=("night=1",)))
    assert (row.labels, row.args) == (("night=1", "site=shop.com"), {})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "cannot be read"),
        (b"", "no column `spider`"),
        (b"node\nweb1\n", "no column `spider`"),
        (b"spider,node\n,web1\n", "line 2: it names no spider"),
        (b"spider\neasy\nhard,1\n", "line 3: it has more cells"),
        (b"spider,priority\neasy,high\n", "line 2: the priority is 'high', and must be a number"),
        (b"spider\n\xff\n", "UTF-8"),
    ],
)
def test_a_file_that_makes_no_sense_or_is_not_there(
    tmp_path: Path, data: bytes | None, said: str
) -> None:
    file = tmp_path / "jobs.csv"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        read_jobs(file, JobOrder(spider=""))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_jobs(tmp_path, JobOrder(spider=""))
