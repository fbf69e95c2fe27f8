"""Which name Scrapyd has for a project: as it is configured, else its BOT_NAME."""

import ast
import json
from collections.abc import Sequence

from scrapyd_dist.config import ProjectConfig
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import Node, check_project
from scrapyd_dist.project_settings import with_settings, written_setting

#: prints the project's name as JSON, whatever characters it has
_BOT_NAME = (
    "import json; from scrapy.utils.project import get_project_settings as settings;"
    " print(json.dumps(str(settings()['BOT_NAME'])))"
)


def quick_project(
    found: ProjectConfig, chosen: str | None = None, nodes: Sequence[Node] = ()
) -> str | None:
    """Return Scrapyd's name of the project, if it is known without running the project's code.

    nodes: those that are meant, whose targets may name the project.
    """
    known = chosen or found.project or common_project(nodes)
    if known:
        return known
    value = written_setting(found.root, found.settings_module, "BOT_NAME")
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return None


def project_name(project: ProjectConfig, nodes: Sequence[Node], chosen: str | None) -> str:
    """Return Scrapyd's name of the project.

    That is the chosen one, else that of [deploy] or of all targets, else BOT_NAME of the settings;
    ConfigError if there is none.
    """
    named = chosen or project.project
    if named:
        return check_project(named)
    common = common_project(nodes)
    if common:
        return common
    if not project.settings_module:
        raise ConfigError(
            "There is no scrapy.cfg here that names the project: add -p NAME, or set SDIST_PROJECT."
        )
    lines, why = with_settings(project.root, _BOT_NAME)
    if why or not lines:
        raise ConfigError(
            "The project's name is its BOT_NAME, and the settings cannot be loaded:"
            f" {why or 'it is empty'}. Correct them, or name the project with -p, or by `project ="
            " NAME` in [deploy] of scrapy.cfg."
        )
    return check_project(str(json.loads(lines[-1])))


def common_project(nodes: Sequence[Node]) -> str | None:
    """Return the project of the first node, if all nodes have one."""
    if not nodes:
        return None
    for node in nodes:
        if not node.project:
            return None
    return nodes[0].project
