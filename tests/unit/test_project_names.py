"""The name of a project, as far as it is known without running the project's code."""

from dataclasses import replace
from pathlib import Path

import pytest

from scrapyd_dist.config import ProjectConfig
from scrapyd_dist.nodes import Node
from scrapyd_dist.project_names import quick_project


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('BOT_NAME = "shop"\n', "shop"),
        ('BOT_NAME = "old"\nBOT_NAME = "shop"\n', "shop"),
        ('import os\nBOT_NAME = os.environ["X"]\n', None),
        ("not python", None),
        (None, None),
    ],
)
def test_the_project_is_named_without_running_it(
    tmp_path: Path, text: str | None, name: str | None
) -> None:
    if text is not None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "settings.py").write_text(text, "utf-8")
    found = ProjectConfig(root=tmp_path, settings_module="shop.settings", targets=(), project=None)
    assert quick_project(found) == name
    assert quick_project(found, "chosen") == "chosen"
    one, other = replace(Node.parse("a"), project="ours"), Node.parse("b")
    assert quick_project(found, nodes=[one, one]) == "ours", "as deploy and jobs call it"
    assert quick_project(found, nodes=[one, other]) == name
