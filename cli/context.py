"""What a command works on: the project of the folder, and what is said of its nodes."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from scrapyd_dist.config import STATE_FOLDER
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.jobs.job_site import JobSite, open_site
from scrapyd_dist.nodes import Node, names_of, nodes_by_url

from .output import PrintingMessenger, say


class Context(Workspace):
    """The project of the current folder, or of the given one.

    A command gets it by a parameter of this type.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self.messenger = PrintingMessenger()

    @cached_property
    def job_site(self) -> JobSite:
        """What the project's jobs are found and judged with; to be asked for after the nodes."""
        return open_site(self, self.messenger)

    def nodes_if_any(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return `known_nodes`, for a command that also shows what the store remembers.

        Where no node is listed, that is said, and there is none.
        """
        if patterns or self.knows_nodes or self.store_if_any is None:
            return self.known_nodes(patterns)
        say(
            f"{self.root / 'scrapy.cfg'} names no node, and no local one runs: this is what the"
            " store remembers."
        )
        return ()

    def nodes_or_all(
        self, patterns: Sequence[str] | None, *, everyone: bool, verb: str
    ) -> tuple[Node, ...]:
        """Return the nodes that these names and globs mean, or all of them.

        ConfigError without one of the two, or with both. verb: what is done to them.
        """
        if everyone and patterns:
            raise ConfigError(f"--all, and names of nodes to {verb}: one of the two has to go.")
        if not everyone and not patterns:
            raise ConfigError(
                f"Name the targets to {verb}, or globs like 'eu-*'. For all of them: --all."
            )
        return self.nodes(patterns)

    def note_unused_nodes(self) -> None:
        """Say which local nodes run and get no work, since others are named."""
        from scrapyd_dist.deploy.local_nodes import list_path

        added = self.added
        urls = nodes_by_url((*self.project.targets, *added))
        idle = [node for node in self.local_nodes if urls and node.url not in urls]
        if not idle:
            return
        to_use_again = ""
        if added and not self.project.targets:
            to_use_again = f" To use these again: sdist nodes remove {names_of(added, ' ')}."
        first = idle[0]
        say(
            f"Note: local nodes run that get no work ({names_of(idle)}): they are used only where"
            " scrapy.cfg and `sdist nodes add` name no other. To use both, give each a section in"
            f" scrapy.cfg, such as [deploy:{first.name}] with url = {first.url}, username ="
            f" {first.username} and its password, which is in"
            f" {list_path(self.root / STATE_FOLDER)}; or stop them: sdist nodes down.{to_use_again}"
        )
