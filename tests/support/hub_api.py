"""What a Hub answers to each request of its clients; `hub_server.py` serves it."""

import json
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote

from support.hub_store import HubError, upload_mode, validate_card


_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_API = r"/api/(?P<kind>models|datasets|spaces)/(?P<id>[^/]+/[^/]+)"
_PAGE = r"/(?:(?P<kind>datasets|spaces)/)?(?P<id>[^/]+/[^/]+)"
_SIGNATURE = "X-Amz-Signature=signed-for-this-file"


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict = field(default_factory=dict)


@dataclass
class Request:
    """A request as it came in; `query` and `form` hold lists."""

    method: str
    path: str
    query: dict
    authorization: str | None
    headers: dict
    body: bytes
    groups: dict = field(default_factory=dict)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def revision(self):
        return unquote(self.groups.get("revision") or "main")

    @property
    def kind(self):
        return _KINDS[self.groups.get("kind") or "models"]


def _json(value, status=200, **headers):
    return Answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **headers})


def refuse(error, headers=None):
    lines = {"X-Error-Message": error.message.replace("\n", " "), **(headers or {})}
    if error.code:
        lines["X-Error-Code"] = error.code
    return _json({"error": error.message}, error.status, **lines)


def _content(content, request, **headers):
    """Answer with a file, or with the range that was asked for."""
    headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", **headers}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", request.headers.get("range", "")))
    if not asked:
        return Answer(content, 200, headers)
    start, end = int(asked[1]), int(asked[2] or len(content) - 1)
    if start >= len(content):
        return Answer(b"", 416, {**headers, "Content-Range": f"bytes */{len(content)}"})
    part = content[start : end + 1]
    return Answer(part, 206, {**headers, "Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"})


def _whoami(hub, request):
    account = hub.store.account(request.authorization)
    if account is None:
        raise HubError(401, "Invalid username or password.")
    organizations = [{"type": "org", "name": name, "roleInOrg": "write"} for name in account.organizations]
    return _json({"type": "user", "name": account.name, "orgs": organizations, "auth": {"type": "access_token"}})


def _create(hub, request):
    repository = hub.store.create(hub.store.account(request.authorization), request.json)
    prefix = "" if repository.kind == "model" else f"{repository.kind}s/"
    return _json({"url": f"{hub.url}/{prefix}{repository.id}", "name": repository.id})


def _validate(hub, request):
    errors, warnings = validate_card(request.json["content"], request.json["repoType"])
    body = {"errors": [{"message": text} for text in errors], "warnings": [{"message": text} for text in warnings]}
    return _json(body, 400 if errors else 200)


def _settings(hub, request):
    repository = hub.open(request, "write")
    repository.gated = request.json.get("gated", repository.gated)
    if "visibility" in request.json:
        repository.is_private = request.json["visibility"] == "private"
    return _json({"gated": repository.gated, "private": repository.is_private})


def _info(hub, request):
    return _json(hub.open(request).info(request.revision))


def _refs(hub, request):
    repository = hub.open(request)
    branches = [(name, f"refs/heads/{name}", commit) for name, commit in repository.branches.items()]
    tags = [(name, f"refs/tags/{name}", commit) for name, commit in repository.tags.items()]
    pulls = [(f"refs/pr/{number}", f"refs/pr/{number}", c) for number, c in repository.pull_requests.items()]
    lists = {"branches": branches, "converts": [], "tags": tags, "pullRequests": pulls}
    keys = ("name", "ref", "targetCommit")
    return _json({name: [dict(zip(keys, ref, strict=True)) for ref in refs] for name, refs in lists.items()})


def _branch(hub, request):
    repository, name = hub.open(request, "write"), request.revision
    if name in repository.branches:
        raise HubError(409, f"Reference already exists: refs/heads/{name}")
    repository.branches[name] = repository.find(request.json.get("startingPoint", "main"))
    return _json({})


def _tag(hub, request):
    repository, name = hub.open(request, "write"), request.json["tag"]
    if name in repository.tags:
        raise HubError(409, f"Tag reference exists already: refs/tags/{name}")
    repository.tags[name] = repository.find(request.revision)
    return _json({})


def _tree(hub, request):
    folder = unquote(request.groups.get("path") or "")
    recursive = request.query.get("recursive", ["false"])[0].lower() in ("true", "1")
    entries = hub.open(request).tree(request.revision, folder, recursive)
    start = int(request.query.get("cursor", ["0"])[0])
    end = start + hub.page_entries
    more = {}
    if end < len(entries):
        more["Link"] = f'<{hub.url}{request.path}?recursive={str(recursive).lower()}&cursor={end}>; rel="next"'
    return _json(entries[start:end], **more)


def _paths_info(hub, request):
    repository, found = hub.open(request), []
    paths = parse_qs(request.body.decode()).get("paths", [])
    for path in paths:
        try:
            found.append(repository.file(request.revision, path).describe(path))
        except HubError:
            folders = repository.tree(request.revision, "", recursive=True)
            found += [entry for entry in folders if entry["path"] == path]
    return _json(found)


def _need(request):
    return "propose" if request.query.get("create_pr") == ["1"] else "write"


def _preupload(hub, request):
    repository = hub.open(request, _need(request))
    present, answers = repository.files(request.revision), []
    ignored = (present.get(".gitignore") and present[".gitignore"].content.decode().split()) or []
    for file in request.json["files"]:
        blob = present.get(file["path"])
        known = {"oid": blob.sha256 or blob.oid} if blob else {}
        mode = upload_mode(file["path"], file["size"])
        answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": file["path"] in ignored, **known})
    return _json({"files": answers})


def _batch(hub, request):
    hub.open(request, "propose")
    objects = []
    for asked in request.json["objects"]:
        sha, size = asked["oid"], asked["size"]
        entry = {"oid": sha, "size": size}
        if sha not in hub.store.objects:
            upload = {"href": f"{hub.storage_url}/objects/{sha}?{_SIGNATURE}"}
            if size > hub.part_bytes:
                numbers = range(1, -(-size // hub.part_bytes) + 1)
                parts = {str(n): f"{hub.storage_url}/parts/{sha}/{n}?{_SIGNATURE}" for n in numbers}
                header = {"chunk_size": str(hub.part_bytes), **parts}
                upload = {"href": f"{hub.url}/api/complete/{sha}", "header": header}
            entry["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/api/verify/{sha}"}}
        objects.append(entry)
    return _json({"transfer": "basic", "objects": objects})


def _verify(hub, request):
    if len(hub.store.objects.get(request.groups["sha"], b"")) != request.json["size"]:
        raise HubError(404, "Object not found")
    return _json({})


def _complete(hub, request):
    sha = request.groups["sha"]
    parts = [hub.store.parts[sha, part["partNumber"]] for part in request.json["parts"]]
    hub.store.receive(sha, b"".join(parts))
    return _json({})


def _commit(hub, request):
    as_pull_request = _need(request) == "propose"
    repository = hub.open(request, _need(request))
    lines = [json.loads(line) for line in request.body.splitlines()]
    commit, number = repository.commit(request.revision, lines, hub.store.objects, as_pull_request)
    page = f"{hub.url}/{'' if repository.kind == 'model' else repository.kind + 's/'}{repository.id}"
    answer = {"success": True, "commitOid": commit, "commitUrl": f"{page}/commit/{commit}"}
    if number:
        answer["pullRequestUrl"] = f"{page}/discussions/{number}"
    return _json(answer)


def _resolve(hub, request):
    repository = hub.open(request, "content")
    commit = repository.find(request.revision)
    try:
        blob = repository.file(commit, unquote(request.groups["path"]))
    except HubError as error:
        return refuse(error, {"X-Repo-Commit": commit})
    headers = {"X-Repo-Commit": commit, "ETag": f'"{blob.oid}"'}
    if blob.sha256 is None:
        return _content(blob.content, request, **headers)
    linked = {"X-Linked-Size": str(blob.size), "X-Linked-Etag": f'"{blob.sha256}"'}
    location = f"{hub.storage_url}/objects/{blob.sha256}?{_SIGNATURE}"
    return Answer(b"", 302, {**headers, **linked, "Location": location})


def _put_object(hub, request):
    hub.store.receive(request.groups["sha"], _signed(request).body)
    return Answer(headers={"ETag": f'"{request.groups["sha"]}"'})


def _put_part(hub, request):
    hub.store.parts[request.groups["sha"], int(request.groups["number"])] = _signed(request).body
    return Answer(headers={"ETag": f'"part-{request.groups["number"]}"'})


def _get_object(hub, request):
    sha = request.groups["sha"]
    return _content(hub.store.objects[sha], _signed(request), ETag=f'"{sha}"')


def _signed(request):
    if "X-Amz-Signature" not in request.query:
        raise HubError(403, "SignatureDoesNotMatch")
    return request


HUB_ROUTES = [
    (["GET"], "/api/whoami-v2", _whoami),
    (["POST"], "/api/repos/create", _create),
    (["POST"], "/api/validate-yaml", _validate),
    (["POST"], r"/api/verify/(?P<sha>\w+)", _verify),
    (["POST"], r"/api/complete/(?P<sha>\w+)", _complete),
    (["PUT"], _API + "/settings", _settings),
    (["GET"], _API + "(?:/revision/(?P<revision>[^/]+))?", _info),
    (["GET"], _API + "/refs", _refs),
    (["POST"], _API + "/branch/(?P<revision>[^/]+)", _branch),
    (["POST"], _API + "/tag/(?P<revision>[^/]+)", _tag),
    (["GET"], _API + "/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", _tree),
    (["POST"], _API + "/paths-info/(?P<revision>[^/]+)", _paths_info),
    (["POST"], _API + "/preupload/(?P<revision>[^/]+)", _preupload),
    (["POST"], _API + "/commit/(?P<revision>[^/]+)", _commit),
    (["POST"], _PAGE + r"\.git/info/lfs/objects/batch", _batch),
    (["GET", "HEAD"], _PAGE + "/(?:resolve|raw)/(?P<revision>[^/]+)/(?P<path>.+)", _resolve),
]
STORAGE_ROUTES = [
    (["PUT"], r"/objects/(?P<sha>\w+)", _put_object),
    (["PUT"], r"/parts/(?P<sha>\w+)/(?P<number>\d+)", _put_part),
    (["GET", "HEAD"], r"/objects/(?P<sha>\w+)", _get_object),
]
