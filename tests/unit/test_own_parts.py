"""The files with the producer's own items are told from the parts of batches, whatever the crawl is called."""

from pathlib import Path

from scrapyd_dist.items.delivery import own_parts


def test_a_crawl_whose_name_begins_like_the_producers_own_files(tmp_path: Path) -> None:
    own = ["own-0.jl", "own-2.jl", "own-10.jl"]
    others = ["own-20260102T030405Z.b1.a1.jl", "own-2.b1.a1.jl", "own-.jl", "own-2.jl.part"]
    for name in (*own, *others):
        (tmp_path / name).touch()
    assert [path.name for path in own_parts(tmp_path)] == own
