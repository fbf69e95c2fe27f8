"""scrapy.cfg: found as Scrapy finds it, read as scrapyd-client reads it, and never quoted in an error."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from scrapyd_dist import config
from scrapyd_dist.errors import AuthRefused, ConfigError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports.reply_intake import ReplyIntake

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, and none of the variables that Scrapy heeds."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("SCRAPY_PROJECT", "SCRAPY_SETTINGS_MODULE", "XDG_CONFIG_HOME", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write scrapy.cfg and give its folder; a [settings] section is there already."""

    def make(text: str) -> Path:
        root = tmp_path / "project"
        root.mkdir(exist_ok=True)
        (root / "scrapy.cfg").write_text(f"[settings]\ndefault = shop.settings\n{text}", "utf-8")
        return root

    return make


class TestFinding:
    def test_the_closest_one_upward_from_the_current_folder_or_another(
        self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = farther.settings\n", "utf-8")
        root = write("")
        deep = root / "shop" / "spiders"
        deep.mkdir(parents=True)
        monkeypatch.chdir(root)
        assert config.find_root(deep) == root
        assert config.load(deep) == config.load()
        assert (config.load().root, config.load().settings_module) == (root, "shop.settings")

    def test_none_and_a_folder_of_that_name_is_none(self, tmp_path: Path) -> None:
        assert config.find_root(tmp_path) is None
        (tmp_path / "scrapy.cfg").mkdir()
        assert config.find_root(tmp_path) is None
        with pytest.raises(ConfigError, match=r"no scrapy\.cfg") as caught:
            config.load(tmp_path)
        assert str(tmp_path) in str(caught.value)

    @pytest.mark.parametrize("name", [".scrapy.cfg", ".config/scrapy.cfg"])
    def test_the_users_file_is_read_first(self, write: Write, home: Path, name: str) -> None:
        file = home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            "[deploy:mine]\nurl = http://mine:1/\n[deploy:both]\nurl = http://mine:2/\n", "utf-8"
        )
        root = write("[deploy:both]\nurl = http://project:2/\n")
        urls = {node.name: node.url for node in config.load(root).targets}
        assert urls == {"mine": "http://mine:1", "both": "http://project:2"}


class TestSettingsModule:
    def test_the_environment_chooses_one_that_is_there(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = write("Other = other.settings\n")
        monkeypatch.setenv("SCRAPY_PROJECT", "Other")
        assert config.load(root).settings_module == "other.settings"
        monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "third.settings")
        assert config.load(root).settings_module == "third.settings"
        monkeypatch.delenv("SCRAPY_SETTINGS_MODULE")
        monkeypatch.setenv("SCRAPY_PROJECT", "unknown")
        with pytest.raises(ConfigError, match=r"needs a line like `unknown = myproject\.settings`"):
            config.load(root)


class TestSeveralProjects:
    TWO = "two = two.settings\n[deploy:a]\nurl = http://n1/\nproject = one\n[deploy:b]\nurl = http://n1/\nproject = Two\n"

    def test_a_targets_project_says_its_settings_module(self, write: Write) -> None:
        found = config.load(write(self.TWO))
        modules = {name: found.module_of(name) for name in ("one", "two", "TWO", None)}
        assert modules == {
            "one": "shop.settings",
            "two": "two.settings",
            "TWO": "two.settings",
            None: "shop.settings",
        }
        assert [(node.name, node.project) for node in found.own_targets] == [("a", "one")]
        with pytest.raises(
            ConfigError, match=r"b .*project Two.*two\.settings.*SCRAPY_PROJECT=Two.*: a\."
        ):
            found.check_own(found.targets)

    def test_a_node_has_one_name_for_all_of_them(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCRAPY_PROJECT", "two")
        found = config.load(write(self.TWO))
        assert (found.module_of("one"), found.module_of("two")) == ("shop.settings", "two.settings")
        assert [(node.name, node.project) for node in found.own_targets] == [("a", "Two")]

    @pytest.mark.parametrize(
        "variable", ["SCRAPY_PROJECT=other", "SCRAPY_SETTINGS_MODULE=x.settings"]
    )
    def test_what_the_environment_chooses_is_meant_where_no_target_is_for_it_by_name(
        self, write: Write, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
        found = config.load(
            write("other = x.settings\n[deploy:a]\nurl = http://n1/\nproject = shop\n")
        )
        assert found.module_of("shop") == found.settings_module == "x.settings"
        assert found.own_targets == found.targets


class TestTargets:
    def test_as_scrapy_startproject_writes_it(self, write: Write) -> None:
        found = config.load(write("\n[deploy]\n#url = http://localhost:6800/\nproject = shop\n"))
        assert (found.targets, found.project) == ((), "shop")

    def test_deploy_is_inherited_and_named_default_if_it_has_a_url(self, write: Write) -> None:
        found = config.load(
            write(
                "[deploy:before]\nurl = http://web0:6800/\n"
                "[deploy]\nurl = http://web1:6800/\nusername = me\npassword = hush\nproject = shop\nversion = GIT\n"
                "slots = 4\n"
                "[deploy:two]\nurl = https://web2/base/\npassword = other\nverify = no\nslots = 8\nproject = second\n"
                "[deploy:alias]\n"
            )
        )
        by_name = {node.name: node for node in found.targets}
        assert list(by_name) == ["default", "before", "two", "alias"]
        default, two = by_name["default"], by_name["two"]
        assert (default.url, default.username, default.password) == (
            "http://web1:6800",
            "me",
            "hush",
        )
        assert (default.slots, default.verify, default.version, default.project) == (
            4,
            True,
            "GIT",
            "shop",
        )
        assert (two.url, two.username, two.password) == ("https://web2/base", "me", "other")
        assert (two.slots, two.verify, two.project) == (8, False, "second")
        assert by_name["alias"] == default

    @pytest.mark.parametrize(
        ("written", "meant"),
        [("50%", "50%"), ("50%%", "50%"), ("%(home)s", "%(home)s"), ("${NODE_PASSWORD}", "hu$sh%")],
    )
    def test_the_environment_fills_in_and_percent_signs_stay(
        self, write: Write, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
    ) -> None:
        monkeypatch.setenv("NODE_HOST", "web7")
        monkeypatch.setenv("NODE_PASSWORD", "hu$sh%")
        text = f"[deploy:x]\nurl = http://$NODE_HOST:6800/\nusername = me\npassword = {written}\n"
        (node,) = config.load(write(text)).targets
        assert (node.url, node.password) == ("http://web7:6800", meant)

    @pytest.mark.parametrize(
        ("lines", "why"),
        [
            ("username = me", r"\[deploy:x\] of scrapy\.cfg has no url"),
            ("url =", "has no url"),
            ("url = ftp://web1", "only http and https"),
            ("url = web1\nslots = many", "slots = 'many'"),
            ("url = web1\nslots = 0", "slots = '0'"),
            ("url = web1\nslots = -2", "slots = '-2'"),
            ("url = web1\nslots = ٣", "slots"),
            ("url = web1\nverify = maybe", "yes or no"),
            ("url = web1\nca = nothing.pem", "names no file"),
        ],
    )
    def test_what_makes_no_sense(self, write: Write, lines: str, why: str) -> None:
        with pytest.raises(ConfigError, match=why) as caught:
            config.load(write(f"[deploy:x]\n{lines}\n"))
        assert "[deploy:x]" in str(caught.value)

    @pytest.mark.parametrize(
        ("word", "verify"), [("yes", True), ("TRUE", True), ("0", False), ("Off", False)]
    )
    def test_yes_and_no_and_a_ca_file_beside_scrapy_cfg(
        self, write: Write, word: str, verify: bool
    ) -> None:
        root = write(f"[deploy:x]\nurl = https://web1\nverify = {word}\nca = ca.pem\n")
        (root / "ca.pem").touch()
        (node,) = config.load(root).targets
        assert (node.verify, node.ca) == (verify, str(root / "ca.pem"))

    def test_our_own_section(self, write: Write) -> None:
        assert config.load(write("[sdist]\nshards = 20\n")).options == {"shards": "20"}
        assert config.load(write("")).options == {}


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("data", "why", "cause"),
        [
            (
                b"[deploy:x]\nurl=a\n[deploy:x]\npassword = hush\n",
                r"\[deploy:x\] comes twice, again in line 3",
                None,
            ),
            (
                b"[deploy:x]\nurl=a\npassword = hush\npassword = hush2\n",
                "'password' comes twice, again in line 4",
                None,
            ),
            (b"[deploy:x]\nhush hush\n", "line 2 is neither", None),
            (b"[deploy:x]\nhush\nurl=a\nhush2\n", "line 2, 4", None),
            (b"password = hush\n", "line 1 stands before", None),
            (b"[settings]\nhush = \xff\n", "not UTF-8", UnicodeDecodeError),
        ],
    )
    def test_the_line_is_named_and_not_quoted(
        self, tmp_path: Path, data: bytes, why: str, cause: type[Exception] | None
    ) -> None:
        (tmp_path / "scrapy.cfg").write_bytes(data)
        with pytest.raises(ConfigError, match=why) as caught:
            config.load(tmp_path)
        assert str(tmp_path / "scrapy.cfg") in str(caught.value)
        assert "hush" not in str(caught.value)
        assert type(caught.value.__cause__) is (cause or type(None)), "that of a line quotes it"


class TestNetrc:
    @pytest.fixture
    def netrc(self, home: Path) -> Path:
        file = home / ".netrc"
        file.write_text("machine web1 login me password hush\n", "utf-8")
        file.chmod(0o600)
        return file

    @pytest.mark.usefixtures("netrc")
    def test_it_knows_the_host_and_the_target_goes_first(self, write: Write) -> None:
        urls = ("http://web1:6800/", "http://web2/", "http://you:other@web1/")
        text = "".join(f"[deploy:{number}]\nurl = {url}\n" for number, url in enumerate(urls))
        entries = [(node.username, node.password) for node in config.load(write(text)).targets]
        assert entries == [("me", "hush"), (None, None), ("you", "other")]

    def test_another_file(self, netrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        elsewhere = netrc.rename(netrc.parent / "elsewhere")
        assert config.with_netrc(Node.parse("web1")).username is None
        monkeypatch.setenv("NETRC", str(elsewhere))
        assert config.with_netrc(Node.parse("web1")).username == "me"

    def test_a_change_is_seen(self, netrc: Path) -> None:
        assert config.with_netrc(Node.parse("web1")).password == "hush"
        other = netrc.with_name("other")
        other.write_text("machine web1 login me password shut\n", "utf-8")
        other.chmod(0o600)
        other.rename(netrc)
        assert config.with_netrc(Node.parse("web1")).password == "shut"
        netrc.unlink()
        assert config.with_netrc(Node.parse("web1")).password is None

    @pytest.mark.parametrize("named", [False, True], ids=["~/.netrc", "$NETRC"])
    def test_a_broken_one_is_passed_over(
        self, netrc: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
    ) -> None:
        netrc.write_text("nonsense hush\n", "utf-8")
        if named:
            monkeypatch.setenv("NETRC", str(netrc.rename(netrc.parent / "elsewhere")))
        assert config.with_netrc(Node.parse("web1")).username is None


class TestStateFolder:
    def test_it_is_ours_alone_and_what_is_there_stays(self, tmp_path: Path) -> None:
        folder = config.state_dir(tmp_path)
        assert folder == tmp_path / ".sdist"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / ".gitignore").read_text("utf-8") == "*\n"
        (folder / ".gitignore").write_text("mine\n", "utf-8")
        assert config.state_dir(tmp_path) == folder
        assert (folder / ".gitignore").read_text("utf-8") == "mine\n"

    def test_where_none_can_be(self, tmp_path: Path) -> None:
        (tmp_path / ".sdist").write_text("a file", "utf-8")
        with pytest.raises(ConfigError, match="cannot be made"):
            config.state_dir(tmp_path)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("$WEB2_PASSWORD", True),
        ("${WEB2_PASSWORD}", True),
        ("$SET_PASSWORD", False),
        ("$ecret", False),
        ("a$B", False),
    ],
)
def test_a_password_that_is_an_unset_variable_is_told_when_it_is_refused(
    write: Write, written: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEB2_PASSWORD", raising=False)
    monkeypatch.setenv("SET_PASSWORD", "x")
    root = write(f"[deploy:web2]\nurl = http://web2:6800/\nusername = me\npassword = {written}\n")
    (node,) = config.load(root).targets
    with pytest.raises(AuthRefused) as refused:
        ReplyIntake(node, api.daemonstatus(), 401, ()).done()
    text = str(refused.value)
    assert (
        "[deploy:web2]" in text and "WEB2_PASSWORD is not set in this environment" in text
    ) is told
    assert "Set `username`" not in text, "they are set"
    assert "ecret" not in text
    assert "a$B" not in text
