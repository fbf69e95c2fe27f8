"""A real FTP server in a process of its own, with write access to one folder; run as a program, it says its port."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

#: the permissions of a user with write access: list, read, append, delete, rename, make folders, store
PERMISSIONS = "elradfmw"


class FtpServer:
    """An FTP server over `folder`, for one user, or for `anonymous` when no user is given."""

    def __init__(self, folder: Path, user: str = "", password: str = "") -> None:
        self.folder, self.user, self.password = folder, user, password
        folder.mkdir(parents=True, exist_ok=True)
        program, pipe, nothing = (
            [sys.executable, __file__, str(folder)],
            subprocess.PIPE,
            subprocess.DEVNULL,
        )
        self._process = subprocess.Popen(
            program, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True
        )
        assert self._process.stdin
        assert self._process.stdout
        # Over standard input: a password does not belong into a process list.
        self._process.stdin.write(json.dumps({"user": user, "password": password}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the FTP server did not start"
        self.port: int = json.loads(line)["port"]

    @property
    def url(self) -> str:
        """Its address with user name and password, without a slash at the end."""
        login = (
            f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@"
            if self.user
            else "anonymous:guest@"
        )
        return f"ftp://{login}127.0.0.1:{self.port}"

    def files(self) -> dict[str, bytes]:
        """Path from the folder -> content of all files it holds."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(folder: str) -> None:
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import FTPServer

    login = json.loads(sys.stdin.readline())
    authorizer = DummyAuthorizer()
    if login["user"]:
        authorizer.add_user(login["user"], login["password"], folder, perm=PERMISSIONS)
    else:
        authorizer.add_anonymous(folder, perm=PERMISSIONS)
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer})
    server = FTPServer(("127.0.0.1", 0), handler)
    print(json.dumps({"port": server.socket.getsockname()[1]}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1])
