"""Each end of a job or crawl is new once."""

from scrapyd_dist.fleet.trouble_log import EndWatch


def test_each_end_is_new_once() -> None:
    watch, row = EndWatch(), ("a", 1000.0, True)
    looks: list[tuple[list[tuple[str, float, bool]], set[str]]] = [
        ([row, ("b", 1001.0, False)], set()),
        ([row, ("b", 1001.0, True), ("c", 1002.0, True)], {"b", "c"}),
        ([row, ("b", 1001.0, True), ("c", 1002.0, True), ("d", 1003.0, False)], set()),
        ([("d", 1003.0, True)], {"d"}),
    ]
    for at, (rows, new) in enumerate(looks):
        assert watch.new(rows, 1010.0 + at) == new
        watch = EndWatch(watch.since, set(watch.ended))
