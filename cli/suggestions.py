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
#: endpoints of Scrapyd's API, without `.json`, and opposites of verbs -> what does that here
_MEANT = {
    "addversion": "deploy",
    "cancel": "jobs cancel",
    "daemonstatus": "nodes",
    "delproject": "nodes api NODE delproject project=NAME",
    "delversion": "nodes api NODE delversion project=NAME version=NAME",
    "listjobs": "jobs",
    "listprojects": "code versions --projects",
    "listspiders": "code versions --spiders",
    "listversions": "code versions",
    "schedule": "jobs schedule",
    "status": "jobs",
    "undrain": "nodes resume",
}
#: a command for all there are -> what does the like for some
_FOR_SOME = {"nodes down": "nodes drain"}
#: group, empty for none -> the command for a crawl, a frontier or a node that is named behind it
_FOR_CRAWL = {"": "status", "crawls": "crawls show", "items": "items pull", "jobs": "jobs stats"}
_FOR_FRONTIER = {"": "frontier count", "frontier": "frontier count"}
_FOR_NODE = {"": "nodes --node", "nodes": "nodes --node"}


def suggest_commands(word: str, group: str, verbs_of: Mapping[str, Collection[str]]) -> list[str]:
    """Return the commands, without `sdist`, that a wrong word probably means.

    group: the one before the word, empty for none; verbs_of: the verbs of each command, which has
    none where it is no group.
    """
    named = _command_for_name(word, group) or _MEANT.get(word.removesuffix(".json"), "")
    if named:
        return [named]
    verbs = [f"{name} {verb}" for name, own in verbs_of.items() for verb in own]
    exact = [command for command in verbs if command.endswith(f" {word}")]
    if group:
        found = _with_group(group, _alike_or_near(word, verbs_of[group])) or exact
        return [*found, *filter(None, map(_FOR_SOME.get, found))]
    found = _alike_in(word, verbs_of) + exact
    return (found or _alike_or_near(word, verbs, verbs_of))[:_MOST]


def _with_group(group: str, verbs: Collection[str]) -> list[str]:
    return [f"{group} {verb}" for verb in verbs]


def _alike_in(word: str, commands: Collection[str]) -> list[str]:
    """Return the commands whose last word means the same."""
    alike: set[str] = set()
    for words in _ALIKE:
        if word in words:
            alike |= words
    return [command for command in commands if command.split()[-1] in alike]


def _alike_or_near(
    word: str, commands: Collection[str], names: Collection[str] | None = None
) -> list[str]:
    """Return the commands whose last word means the same, else the nearest of the names.

    names: the commands, if left out.
    """
    alike = _alike_in(word, commands)
    near = nearest(word, names or commands)
    if alike or near is None:
        return alike
    return [near]


def _command_for_name(word: str, group: str) -> str:
    """Return the command for what is called so, if it is a crawl, a frontier or a node."""
    for commands, known in ((_FOR_FRONTIER, frontiers), (_FOR_CRAWL, crawls), (_FOR_NODE, nodes)):
        if group in commands and word in dict(known()):
            return f"{commands[group]} {word}"
    return ""
