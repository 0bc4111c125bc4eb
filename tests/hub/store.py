"""Storage of the test Hub: repositories, their commits and files, in memory."""

from dataclasses import dataclass, field
from hashlib import sha1, sha256
from typing import Any


@dataclass(frozen=True)
class File:
    """A file's bytes, and whether it is stored as a large file."""

    content: bytes
    large: bool = False

    @property
    def sha256(self) -> str:
        return sha256(self.content).hexdigest()

    @property
    def git_oid(self) -> str:
        return sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.git_oid


@dataclass(frozen=True)
class Commit:
    """A snapshot of a repository."""

    sha: str
    title: str
    files: dict[str, File]
    parent: str | None


@dataclass
class Repository:
    """Commits by name, and the branches and tags that point to them."""

    name: str
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def find(self, revision: str) -> Commit | None:
        """The commit that a branch, a tag, or at least 7 digits of a commit hash name."""
        for references in (self.branches, self.tags):
            if revision in references:
                return self.commits[references[revision]]
        matching = [commit for sha, commit in self.commits.items() if len(revision) >= 7 and sha.startswith(revision)]
        return matching[0] if len(matching) == 1 else None

    def head(self, branch: str = "main") -> Commit:
        return self.commits[self.branches[branch]]

    def commit(self, title: str, files: dict[str, File], branch: str = "main") -> Commit:
        parent = self.branches.get(branch)
        content = "".join(f"{path} {file.sha256}\n" for path, file in sorted(files.items()))
        sha = sha1(f"{parent} {title} {len(self.commits)}\n{content}".encode()).hexdigest()
        self.commits[sha] = Commit(sha, title, files, parent)
        self.branches[branch] = sha
        return self.commits[sha]


def describe(path: str, file: File) -> dict[str, Any]:
    """A file as the Hub lists it."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(file.content), "oid": file.git_oid}
    if file.large:
        entry["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": 130}
    return entry


def describe_folder(path: str) -> dict[str, Any]:
    """A folder as the Hub lists it."""
    return {"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode()).hexdigest()}
