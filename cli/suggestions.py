"""Says what a wrong word in the place of a command probably means: a command, a crawl or a node."""

from collections.abc import Collection, Mapping

from scrapyd_dist.near_names import nearest

from .options import crawls, frontiers, nodes

#: commands that are named at most
_MOST = 5
#: words that people type for the same thing
_ALIKE = (
    {"rm", "del", "delete", "remove", "clean", "clear", "purge", "prune", "drop"},
    {"stop", "down", "kill", "cancel", "halt", "end", "abort", "terminate", "shutdown"},
    {"start", "up", "run", "schedule", "launch", "begin", "crawl"},
    {"ls", "list", "show", "versions", "ps", "info", "describe", "all"},
    {"export", "download", "fetch", "get", "pull", "merge", "save"},
    {"tail", "follow", "log", "logs"},
    {"find", "search", "grep"},
    {"undo", "revert", "rollback"},
    {"set", "apply", "create", "new", "add"},
    {"continue", "unpause", "resume"},
    {"state", "stat", "stats", "status"},
)
#: group, empty for none -> the command for a crawl, a frontier or a node that is named behind it
_FOR_CRAWL = {"": "status", "crawls": "crawls show", "items": "items pull", "jobs": "jobs stats"}
_FOR_FRONTIER = {"": "frontier count", "frontier": "frontier count"}
_FOR_NODE = {"": "nodes --node", "nodes": "nodes --node"}


def suggest_commands(word: str, group: str, verbs_of: Mapping[str, Collection[str]]) -> list[str]:
    """Return the commands, without `sdist`, that a wrong word probably means.

    group: the one before the word, empty for none; verbs_of: the verbs of each command, which has
    none where it is no group.
    """
    named = _command_for_name(word, group)
    if named:
        return [named]
    own = verbs_of[group] if group else verbs_of
    alike = _words_like(word)
    found = [verb for verb in own if verb in alike]
    elsewhere = [f"{name} {verb}" for name in verbs_of for verb in verbs_of[name]]
    exact = [command for command in elsewhere if command.endswith(f" {word}")]
    if not group:
        found += exact
        found = found or [command for command in elsewhere if command.split()[-1] in alike]
        return _or_nearest(found, word, own)
    return [f"{group} {verb}" for verb in _or_nearest(found, word, own)] or exact


def _or_nearest(found: list[str], word: str, words: Collection[str]) -> list[str]:
    """Return the first of what was found, else the nearest of the words."""
    near = nearest(word, words)
    if found or near is None:
        return found[:_MOST]
    return [near]


def _words_like(word: str) -> set[str]:
    return set().union(*(words for words in _ALIKE if word in words))


def _command_for_name(word: str, group: str) -> str:
    """Return the command for what is called so, if it is a crawl, a frontier or a node."""
    for commands, known in ((_FOR_FRONTIER, frontiers), (_FOR_CRAWL, crawls), (_FOR_NODE, nodes)):
        if group in commands and word in dict(known()):
            return f"{commands[group]} {word}"
    return ""
