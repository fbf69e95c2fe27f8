"""Another checkout of the project with a crawl of the same name, on the same nodes."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager

from faults.trial import Trial
from rig.bad_days import arguments
from rig.commands import SDIST, Command
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

#: of both crawls
NAME = "both"


def stop_namesake(trial: Trial) -> None:
    """Another user's crawl of the same name begins, and is stopped; it has a store and a site of its own."""
    folder = trial.project.path.parent / "checkout"
    with closing(SiteProcess(folder / "site", trial.site.site, "--latency=0.3")) as site:
        other = _check_out(trial, site)
        program, spider, *options = arguments("sdist", site)
        with _started(trial, other, program, spider, "--name", NAME, *options) as crawling:
            wait_for(
                lambda: site.item_hits().total() or trial.row.state.ended, 90, "its first pages"
            )
            with _started(trial, other, "stop", NAME) as stopping:
                stopping.wait(90)
            crawling.wait(90)


def _check_out(trial: Trial, site: SiteProcess) -> Project:
    """Return a copy of the project as it is, without its state, which crawls another site."""
    path = trial.project.path
    copy = path.parent / "checkout" / path.name
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns(".sdist", "*.jl", "__pycache__"))
    other = Project(copy, trial.project.name)
    other.settings(START_URL=site.start_url)
    return other


@contextmanager
def _started(trial: Trial, project: Project, *words: str) -> Iterator[Command]:
    """Run `sdist` in the other checkout; its store is a file there, or another database of the same server."""
    env = {"SDIST_STORE": trial.redis.url.removesuffix("0") + "1"} if trial.redis else None
    command = Command(
        [*SDIST, *words], cwd=project.path, folder=project.output, home=project.home, env=env
    )
    with closing(command):
        yield command
