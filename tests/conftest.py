"""The fixtures every test may ask for; what they hand out lives in tests/rig."""

import asyncio
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from rig.commands import READING, SCRAPY, SDIST, Command, Result, path_of, run_here
from rig.durations import DurationRecorder, longest_first
from rig.failure_report import FailurePrinter, describe_failure
from rig.fixtures import StartCommand, StartSite
from rig.ftp import FtpServer
from rig.nodes import Nodes, ScrapydNode
from rig.processes import VARIABLE
from rig.processes import node_python as find_node_python
from rig.processor_time import ProcessorTime
from rig.projects import Project
from rig.sites import SiteProcess
from scrapyd_dist.examples.pages import Site

# A shell that runs something in the background has it ignore Ctrl-C and SIGQUIT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if "PYTEST_XDIST_WORKER" in os.environ:
    # The same of `nohup` and SIGHUP, which pytest itself goes on ignoring.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Neither does a proxy of the machine stand between a test and its site, nor in what a crawl says.
for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
    os.environ.pop(name, None)

# No test fails because the machine is slow, or by chance: the same examples are drawn each time, and none is kept.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.load_profile("any machine")


PROCESSOR_TIME = pytest.StashKey[ProcessorTime]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write tests/durations.json; see rig/durations.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("record_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder(config.rootpath))
    if not hasattr(config, "workerinput"):
        config.stash[PROCESSOR_TIME] = ProcessorTime()
    if config.getoption("numprocesses", default=None):
        config.pluginmanager.register(FailurePrinter(config))
        # The nodes' interpreter is made here, once, before several workers want it.
        os.environ[VARIABLE] = str(find_node_python(config.cache.mkdir("node-env")))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash[PROCESSOR_TIME].close()
    terminalreporter.write_sep("=", "where the processors' seconds went")
    for kind, count, seconds in rows[:12]:
        terminalreporter.write_line(f"{seconds:8.1f} s  {count:5} x  {kind}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)  # after `-m` has taken its part


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """An async test has a loop of its own, in a thread, unless pytest-twisted is to run it in the reactor's."""
    if inspect.iscoroutinefunction(test := pyfuncitem.obj) and not hasattr(
        test, "_pytest_twisted_mark"
    ):

        def in_thread(**fixtures: Any) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, test(**fixtures)).result()

        pyfuncitem.obj = in_thread


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed row says what it saw.

    Pytest's workers send reports as UTF-8: half of a surrogate pair in a captured log would end the whole run.
    """
    report = yield
    fixtures = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and "tmp_path" in fixtures:
        report.sections += describe_failure(fixtures["tmp_path"], fixtures)
    report.sections = [
        (title, text.encode(errors="replace").decode()) for title, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def _no_project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that runs in this process may import its project; those of other tests have the same name."""
    monkeypatch.setenv(
        "SCRAPY_SETTINGS_MODULE", ""
    )  # so that it is taken out again if a test leaves one
    monkeypatch.delenv("SCRAPY_SETTINGS_MODULE")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in {"properties", "small"}]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """What a row, or Scrapy's own set-up in it, makes a logger write is no other row's."""
    loggers = [logging.getLogger(name) for name in (None, "scrapy", "twisted", "scrapyd_dist")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def node_python(pytestconfig: pytest.Config) -> Path:
    """An interpreter with Scrapy and Scrapyd, and without this project."""
    return find_node_python(pytestconfig.cache.mkdir("node-env"))


def _starts_really(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("real_start") is not None


@pytest.fixture
def nodes(node_python: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """The maker of nodes, for a test that wants one not yet started."""
    with closing(Nodes(node_python, tmp_path / "nodes", fork=not _starts_really(request))) as maker:
        yield maker


@pytest.fixture
def fleet(nodes: Nodes) -> Callable[..., list[ScrapydNode]]:
    """`fleet(3, max_proc=2, poll_interval=0.5, username=…, password=…, …)`: real nodes, ready, in a list."""
    return nodes.fleet


@pytest.fixture
def scrapyd_node(nodes: Nodes) -> Callable[..., ScrapydNode]:
    """`scrapyd_node(max_proc=2, …)`: one real node, ready."""
    return lambda **options: nodes.fleet(1, **options)[0]


@pytest.fixture(scope="module")
def module_fleet(
    node_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Any]]:
    """Like `fleet`, but the nodes live until the last test of the module."""
    with closing(Nodes(node_python, tmp_path_factory.mktemp("nodes"))) as maker:
        yield maker.fleet


def _site_maker(folder: Path, stack: ExitStack) -> Callable[..., SiteProcess]:
    def make(items: int = 300, *options: str, **fields: Any) -> SiteProcess:
        where = folder / f"site{len(list(folder.glob('site*')))}"
        return stack.enter_context(
            closing(SiteProcess(where, Site(items=items, **fields), *options))
        )

    return make


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StartSite]:
    """`site(300, "--latency=0.1", url_style="long", …)`: the demo site, listening; keywords are the fields of Site."""
    with ExitStack() as stack:
        yield _site_maker(tmp_path, stack)


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSite]:
    """Like `site`, but it lives until the last test of the module."""
    with ExitStack() as stack:
        yield _site_maker(tmp_path_factory.mktemp("sites"), stack)


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Project]:
    """`project(nodes=…, settings={…})`: the demo project; with `spiders={module: source}` a small one of only these.

    Its crawls send their batches, unless the settings say otherwise: a row is about one way of work.
    """

    def make(
        *, nodes: Iterable[ScrapydNode] = (), settings: dict[str, Any] | None = None,
        spiders: dict[str, str] | None = None, name: str = "small", extra: str = "",
    ) -> Project:  # fmt: skip
        path = tmp_path / f"project{len(list(tmp_path.glob('project?')))}"
        made = Project.demo(path) if spiders is None else Project.small(path, name, spiders, {})
        # Two jobs that start in one moment may choose one telnet port, which is an error in the log of one of them.
        made.settings(
            **{"DISTRIBUTED_MODE": "push", "TELNETCONSOLE_ENABLED": False, **(settings or {})}
        )
        made.targets(nodes, extra)
        return made

    return make


@pytest.fixture
def start_command(request: pytest.FixtureRequest) -> Iterator[StartCommand]:
    """`start_command(project, program, *arguments, env={…})`: started, not awaited; ended with the test.

    It is forked, unless the test is marked with `real_start`.
    """
    fork = not _starts_really(request)
    with ExitStack() as stack:

        def start(
            project: Project,
            program: tuple[str, ...],
            *arguments: object,
            env: dict[str, str] | None = None,
        ) -> Command:
            line = [*program, *map(str, arguments)]
            command = Command(
                line, cwd=project.path, folder=project.output, home=project.home, env=env, fork=fork
            )
            return stack.enter_context(closing(command))

        yield start


@pytest.fixture
def start_cli(start_command: StartCommand) -> Callable[..., Command]:
    """`start_cli(project, "crawl", "easy", …)`: `sdist` in the background."""
    return lambda project, *arguments, **options: start_command(
        project, SDIST, *arguments, **options
    )


@pytest.fixture
def start_scrapy(start_command: StartCommand) -> Callable[..., Command]:
    """`start_scrapy(project, "crawl", "easy", …)`: `scrapy` in the background."""
    return lambda project, *arguments, **options: start_command(
        project, SCRAPY, *arguments, **options
    )


@pytest.fixture
def run_cli(start_cli: StartCommand, request: pytest.FixtureRequest) -> Callable[..., Result]:
    """`run_cli(project, "crawl", "easy", …, timeout=120, code=0)`: `sdist` to its end: code, out, err.

    With `code`, it has to end with that. What only reads runs in this process, unless the test is marked with
    `real_start`.
    """
    here = not _starts_really(request)

    def run(
        project: Project,
        *arguments: object,
        timeout: float = 120.0,
        code: int | None = None,
        **options: Any,
    ) -> Result:
        words = list(map(str, arguments))
        if here and not options and path_of(words) in READING:
            return run_here(words, cwd=project.path, home=project.home).expect(code)
        return start_cli(project, *words, **options).wait(timeout, code)

    return run


@pytest.fixture
def run_sdist_here() -> Callable[..., Result]:
    """`run_sdist_here(project, "jobs", …)`: `sdist` in this process, as `rig.commands.run_here` has it."""
    return lambda project, *arguments: run_here(
        list(map(str, arguments)), cwd=project.path, home=project.home
    )


@pytest.fixture
def run_scrapy(start_scrapy: StartCommand) -> Callable[..., Result]:
    """`run_scrapy(project, "crawl", "easy", …, timeout=120, code=0)`: `scrapy` to its end, as `run_cli`."""

    def run(
        *arguments: Any, timeout: float = 120.0, code: int | None = None, **options: Any
    ) -> Result:
        return start_scrapy(*arguments, **options).wait(timeout, code)

    return run


@pytest.fixture
def ftp_server(tmp_path: Path) -> Iterator[Callable[..., FtpServer]]:
    """`ftp_server(user="", password="")`: a real FTP server over a folder; without a user, anonymous may write."""
    with ExitStack() as stack:

        def make(user: str = "", password: str = "") -> FtpServer:
            folder = tmp_path / f"ftp{len(list(tmp_path.glob('ftp*')))}"
            return stack.enter_context(closing(FtpServer(folder, user, password)))

        yield make
