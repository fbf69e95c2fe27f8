"""The types of the fixtures that make things, for the signatures of tests."""

from collections.abc import Callable

from rig.commands import Command, Result
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

MakeProject = Callable[..., Project]
StartFleet = Callable[..., list[ScrapydNode]]
StartSite = Callable[..., SiteProcess]
StartCommand = Callable[..., Command]
RunCommand = Callable[..., Result]
