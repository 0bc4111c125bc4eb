"""A test Hub on loopback that answers the requests of the unmodified `huggingface_hub` client from memory.

    with Hub() as hub:
        subprocess.run(command, env={**os.environ, **hub.environment(home, token=WRITER)})
        hub.repository("user/name").head().files["config.json"].content

It knows repositories of models and of data sets, commits as immutable snapshots, branches, tags, large files behind a
redirect to another host name (as on the Hub, so that a client which sends its token there is found out), parts of
files (`Range`), and the Hub's error headers. It does not know the Xet protocol, pull requests and gated repositories.

`Hub.faults` holds what is to go wrong; `Hub.requests` what was asked.
"""

import base64
import json
import re
import threading
from collections.abc import Callable
from hashlib import sha256
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.hub.card_rules import card_errors
from tests.hub.http import Answer, Fault, Handler, RefusedError, Request, part_of
from tests.hub.store import Commit, File, Repository, describe, describe_folder


WRITER, READER = "hf_writer", "hf_reader"
USER = "user"
ROLES = {WRITER: "write", READER: "read"}
LARGE_FILES = re.compile(r"\.(safetensors|bin|parquet|arrow|pt|zip)$")

_REPO = r"(?P<name>[^/]+(?:/[^/]+)?)"
_API = rf"/api/(?P<repo_type>models|datasets)/{_REPO}"
_GIT = rf"/(?:(?P<repo_type>datasets)/)?{_REPO}\.git"
_ROUTES: list[tuple[str, re.Pattern, str]] = []


def route(method: str, pattern: str) -> Callable:
    """Route requests for these paths to the method below; named groups become arguments."""

    def register(function: Callable) -> Callable:
        _ROUTES.append((method, re.compile(pattern), function.__name__))
        return function

    return register


class Hub:
    """The server; see the head of the file."""

    def __init__(self, part_size: int | None = None):
        """`part_size`: request larger files in parts of this many bytes."""
        self.part_size = part_size
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.large_files: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.port = 0
        self.lock = threading.Lock()

    def __enter__(self) -> "Hub":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; after a `stop`, on the same port again."""
        handler = type("Handler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Environment variables that make a process use this server as the Hub, with separate caches."""
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        settings |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*"}
        return settings | ({"HF_TOKEN": token} if token else {})

    def repository(self, name: str, repo_type: str = "models") -> Repository:
        return self.repositories[repo_type, name]

    def create(self, name: str, repo_type: str = "models", private: bool = False) -> Repository:
        """Create a repository with a first commit, as the Hub does."""
        repository = self.repositories[repo_type, name] = Repository(name, private)
        first = {".gitattributes": File(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n")}
        repository.commit("initial commit", first)
        return repository

    def requests_to(self, method: str, pattern: str) -> list[Request]:
        """Requests so far with this method whose path matches the pattern."""
        return [request for request in self.requests if request.method == method and re.search(pattern, request.path)]

    def fault_of(self, request: Request) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == request.method and re.search(fault.pattern, request.path):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, request: Request) -> Answer:
        """Answer any request."""
        method = "GET" if request.method == "HEAD" else request.method
        try:
            if request.token is not None and request.token not in ROLES:
                raise RefusedError(401, "Invalid credentials in Authorization header")
            for route_method, pattern, name in _ROUTES:
                match = pattern.fullmatch(request.path)
                if match and route_method == method:
                    groups = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
                    with self.lock:
                        return getattr(self, name)(request, **groups)
            raise RefusedError(404, f"this server knows no {request.method} {request.path}")
        except RefusedError as error:
            return error.answer

    def _find(self, request: Request, repo_type: str, name: str) -> Repository:
        repository = self.repositories.get((repo_type, name))
        if repository is not None and (request.token or not repository.private):
            return repository
        # The Hub does not reveal private repositories to other users.
        raise RefusedError(404 if request.token else 401, "Repository not found", "RepoNotFound")

    def _find_commit(self, request: Request, repo_type: str, name: str, revision: str) -> Commit:
        commit = self._find(request, repo_type, name).find(revision)
        if commit is None:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def _check_may_write(self, request: Request, name: str) -> None:
        if request.token is None:
            raise RefusedError(401, "Invalid username or password.")
        if ROLES[request.token] != "write" or name.split("/")[0] != USER:
            raise RefusedError(403, f"You don't have the rights to write to {name}")

    # Who is asking, and what is there

    @route("GET", "/api/whoami-v2")
    def whoami(self, request: Request) -> Answer:
        if request.token is None:
            raise RefusedError(401, "Invalid username or password.")
        token = {"displayName": "a token", "role": ROLES[request.token]}
        return Answer(body={"type": "user", "name": USER, "orgs": [], "auth": {"accessToken": token}})

    @route("POST", "/api/validate-yaml")
    def validate_yaml(self, request: Request) -> Answer:
        errors = card_errors(request.json()["content"])
        status = 400 if errors else 200
        if request.accept == "text/plain":
            return Answer(status, "\n".join(f"- Error: {error}" for error in errors).encode())
        return Answer(status, {"errors": [{"message": error} for error in errors], "warnings": []})

    @route("POST", "/api/repos/create")
    def create_repository(self, request: Request) -> Answer:
        repository = request.json()
        repo_type = f"{repository.get('type', 'model')}s"
        name = f"{repository.get('organization') or USER}/{repository['name']}"
        self._check_may_write(request, name)
        address = f"{self.url}/{name}" if repo_type == "models" else f"{self.url}/{repo_type}/{name}"
        if (repo_type, name) in self.repositories:
            return Answer(409, {"error": "You already created this repo", "url": address})
        private = repository.get("visibility") == "private" or bool(repository.get("private"))
        self.create(name, repo_type, private)
        return Answer(body={"url": address, "name": name})

    @route("GET", rf"{_API}/auth-check")
    def check_may_read(self, request: Request, repo_type: str, name: str) -> Answer:
        self._find(request, repo_type, name)
        return Answer()

    @route("GET", rf"{_API}/auth-check/write")
    def check_may_write(self, request: Request, repo_type: str, name: str) -> Answer:
        self._find(request, repo_type, name)
        self._check_may_write(request, name)
        return Answer()

    @route("GET", rf"{_API}/refs")
    def references(self, request: Request, repo_type: str, name: str) -> Answer:
        repository = self._find(request, repo_type, name)

        def listed(folder: str, references: dict[str, str]) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{folder}/{n}", "targetCommit": sha} for n, sha in references.items()]

        branches, tags = listed("heads", repository.branches), listed("tags", repository.tags)
        return Answer(body={"branches": branches, "tags": tags, "converts": []})

    @route("GET", rf"{_API}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
    def tree(self, request: Request, repo_type: str, name: str, revision: str, path: str = "") -> Answer:
        files = self._find_commit(request, repo_type, name, revision).files
        prefix = f"{path.rstrip('/')}/" if path else ""
        inside = {p: file for p, file in files.items() if p.startswith(prefix)}
        if path and not inside:
            raise RefusedError(404, f"{path} does not exist on {revision}", "EntryNotFound")
        folders = {str(parent) for p in inside for parent in Path(p).parents if str(parent).startswith(prefix or "")}
        folders -= {".", path}
        entries = [describe_folder(folder) for folder in sorted(folders)]
        entries += [describe(p, file) for p, file in sorted(inside.items())]
        if request.query.get("recursive", ["false"])[0].lower() != "true":
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
        return Answer(body=entries)

    @route("POST", rf"{_API}/paths-info/(?P<revision>[^/]+)")
    def paths_info(self, request: Request, repo_type: str, name: str, revision: str) -> Answer:
        files = self._find_commit(request, repo_type, name, revision).files
        requested_paths = parse_qs(request.body.decode()).get("paths", [])
        entries = [describe(path, files[path]) for path in requested_paths if path in files]
        folders = [path for path in requested_paths if any(file.startswith(f"{path}/") for file in files)]
        return Answer(body=entries + [describe_folder(path) for path in folders])

    @route("GET", rf"{_API}(?:/revision/(?P<revision>[^/]+))?")
    def info(self, request: Request, repo_type: str, name: str, revision: str = "main") -> Answer:
        commit = self._find_commit(request, repo_type, name, revision)
        private = self._find(request, repo_type, name).private
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        facts = {"id": name, "sha": commit.sha, "private": private, "siblings": siblings, "tags": []}
        return Answer(body=facts | {"downloads": 0, "likes": 0})

    # Writing

    @route("POST", rf"{_API}/branch/(?P<branch>[^/]+)")
    def create_branch(self, request: Request, repo_type: str, name: str, branch: str) -> Answer:
        repository = self._find(request, repo_type, name)
        self._check_may_write(request, name)
        if branch in repository.branches:
            raise RefusedError(409, f"Reference already exists: refs/heads/{branch}")
        start = request.json().get("startingPoint", "main")
        repository.branches[branch] = self._find_commit(request, repo_type, name, start).sha
        return Answer(body={})

    @route("POST", rf"{_API}/tag/(?P<revision>[^/]+)")
    def create_tag(self, request: Request, repo_type: str, name: str, revision: str) -> Answer:
        repository = self._find(request, repo_type, name)
        self._check_may_write(request, name)
        tag = request.json()["tag"]
        if tag in repository.tags:
            raise RefusedError(409, f"Reference already exists: refs/tags/{tag}")
        repository.tags[tag] = self._find_commit(request, repo_type, name, revision).sha
        return Answer(body={})

    @route("POST", rf"{_API}/preupload/(?P<revision>[^/]+)")
    def preupload(self, request: Request, repo_type: str, name: str, revision: str) -> Answer:
        self._find(request, repo_type, name)
        self._check_may_write(request, name)
        there = self._find_commit(request, repo_type, name, revision).files
        return Answer(
            body={
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if LARGE_FILES.search(file["path"]) else "regular",
                        "shouldIgnore": False,
                        "oid": there[file["path"]].etag if file["path"] in there else None,
                    }
                    for file in request.json()["files"]
                ]
            }
        )

    @route("POST", rf"{_GIT}/info/lfs/objects/batch")
    def large_file_batch(self, request: Request, name: str, repo_type: str = "models") -> Answer:
        self._find(request, repo_type, name)
        self._check_may_write(request, name)
        return Answer(body={"transfer": "basic", "objects": [self._upload(o) for o in request.json()["objects"]]})

    def _upload(self, file: dict[str, Any]) -> dict[str, Any]:
        """How to upload a large file: skip it, in one part, or in several."""
        oid, size = file["oid"], file["size"]
        if oid in self.large_files:
            return {"oid": oid, "size": size}
        upload: dict[str, Any] = {"href": f"{self.url}/large/{oid}"}
        if self.part_size and size > self.part_size:
            count = -(-size // self.part_size)
            parts = {str(n): f"{self.url}/large/{oid}/{n}" for n in range(1, count + 1)}
            upload["header"] = {"chunk_size": str(self.part_size), **parts}
        return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": {"href": f"{self.url}/verify"}}}

    @route("PUT", "/large/(?P<oid>[0-9a-f]{64})")
    def put_large_file(self, request: Request, oid: str) -> Answer:
        return self._keep(oid, request.body)

    @route("PUT", "/large/(?P<oid>[0-9a-f]{64})/(?P<number>[0-9]+)")
    def putpart_of(self, request: Request, oid: str, number: str) -> Answer:
        self.parts.setdefault(oid, {})[int(number)] = request.body
        return Answer(headers={"ETag": sha256(request.body).hexdigest()})

    @route("POST", "/large/(?P<oid>[0-9a-f]{64})")
    def join_parts(self, request: Request, oid: str) -> Answer:
        parts = self.parts.pop(oid, {})
        return self._keep(oid, b"".join(parts[part["partNumber"]] for part in request.json()["parts"]))

    def _keep(self, oid: str, content: bytes) -> Answer:
        if sha256(content).hexdigest() != oid:
            raise RefusedError(400, "the content is not what its name says")
        self.large_files[oid] = content
        return Answer()

    @route("POST", "/verify")
    def verify(self, request: Request) -> Answer:
        file = request.json()
        if len(self.large_files.get(file["oid"], b"")) != file["size"]:
            raise RefusedError(404, "the file is not there")
        return Answer()

    @route("POST", rf"{_API}/commit/(?P<branch>[^/]+)")
    def commit(self, request: Request, repo_type: str, name: str, branch: str) -> Answer:
        repository = self._find(request, repo_type, name)
        self._check_may_write(request, name)
        if branch not in repository.branches:
            raise RefusedError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        lines = [json.loads(line) for line in request.body.splitlines()]
        header = lines[0]["value"]
        if not repository.branches[branch].startswith(header.get("parentCommit", "")):
            raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.head(branch).files)
        for line in lines[1:]:
            self._change(files, line["key"], line["value"])
        commit = repository.commit(header["summary"], files, branch)
        where = f"{self.url}/{name}/commit/{commit.sha}"
        return Answer(body={"success": True, "commitUrl": where, "commitOid": commit.sha})

    def _change(self, files: dict[str, File], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            files[path] = File(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            if value["oid"] not in self.large_files:
                raise RefusedError(400, f"{path} has not been uploaded")
            files[path] = File(self.large_files[value["oid"]], large=True)
        elif key == "deletedFile" and path in files:
            del files[path]
        elif key == "deletedFolder":
            for inside in [file for file in files if file.startswith(f"{path.rstrip('/')}/")]:
                del files[inside]
        else:
            raise RefusedError(404, f"{key}: A file with this name doesn't exist: {path}", "EntryNotFound")

    # Reading

    @route("GET", rf"/(?:(?P<repo_type>datasets)/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    def resolve(self, request: Request, name: str, revision: str, path: str, repo_type: str = "models") -> Answer:
        commit = self._find_commit(request, repo_type, name, revision)
        file = commit.files.get(path)
        if file is None:
            raise RefusedError(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit.sha)
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if not file.large:
            return part_of(file.content, request.range, headers)
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
        location = f"http://localhost:{self.port}/storage/{file.sha256}"
        return Answer(302, b"", {**headers, **linked, "Location": location})

    @route("GET", "/storage/(?P<oid>[0-9a-f]{64})")
    def storage(self, request: Request, oid: str) -> Answer:
        """Large files have their own URL, which is readable without a token and must not receive one."""
        if request.token is not None:
            raise RefusedError(400, "a token was sent to the storage")
        return part_of(self.large_files[oid], request.range, {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})
