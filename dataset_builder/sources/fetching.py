"""Fetch recordings from the web with `yt-dlp` as a library (section B.1: best audio, never overwriting).

Slow on purpose: the rate is limited, there is a pause before each download, and one runs at a time. A line of the
manifest is written when its file is complete, so a killed fetch resumes: complete files are not requested again, and a
partial file (`.part`) is continued if the server allows it.

YouTube itself needs what `yt-dlp[default]` installs and a JavaScript runtime such as Deno.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.settings import make_settings, require_known, require_mapping, require_minimums

from ..episodes import SkipError
from .corpora import DEFAULT_LICENSE, FETCHED


if TYPE_CHECKING:
    from yt_dlp import YoutubeDL

logger = logging.getLogger(__name__)
# Errors of an extractor when a site has changed; they skip one recording.
_EXTRACTOR_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_VIDEO_ID = re.compile(r"[\w-]{11}")
_SCHEME = re.compile(r"(https?|file)://", re.IGNORECASE)
# fmt: off
# Options of yt-dlp that the fields of `FetchSettings` set, or that would break what this module promises: finished
# files are never fetched again, none that hold names are written, and the command writes its own report.
_SET_HERE = {
    "format", "ratelimit", "sleep_interval", "retries", "fragment_retries", "extractor_retries", "enable_file_urls",
    "playlistend", "playlist_items", "playliststart", "extract_flat", "outtmpl", "paths", "overwrites",
    "download_archive", "match_filter", "simulate", "skip_download", "test", "logger", "noprogress", "quiet", "color",
    "daterange", "download_ranges", "retry_sleep_functions", "allow_playlist_files", "writeinfojson",
    "writedescription", "writethumbnail", "write_all_thumbnails",
}
# fmt: on
# The page of a channel lists its tabs, not its videos.
_CHANNEL_PAGE = re.compile(r"https?://(?:www\.)?youtube\.com/(?:@[^/]+|(?:channel|c|user)/[^/]+)/?")


@dataclass(frozen=True)
class Channel:
    """A channel, playlist or podcast feed of anything that yt-dlp lists."""

    url: str
    title_keywords: tuple[str, ...] = ("podcast", "interview")  # Empty takes all; in any case.
    limit: int | None = field(default=None, metadata={"minimum": 1})  # Number of its newest recordings to look at.

    def __post_init__(self) -> None:
        require_minimums(self, f"channel {self.url}: ")
        object.__setattr__(self, "title_keywords", tuple(self.title_keywords))


@dataclass(frozen=True)
class FetchSettings:
    output_dir: str
    channels: tuple[Channel, ...] = ()
    videos: tuple[str, ...] = ()  # YouTube ids, or addresses of single recordings.
    searches: tuple[str, ...] = ()
    results_per_search: int = field(default=20, metadata={"minimum": 1})
    format: str = "bestaudio/best"
    rate_limit_bytes_per_s: int | None = field(default=4_000_000, metadata={"minimum": 1})
    sleep_s: float = field(default=5.0, metadata={"minimum": 0})
    retries: int = field(default=5, metadata={"minimum": 0})
    language: str = "en"  # BCP-47; sites do not state it reliably.
    license: str = DEFAULT_LICENSE  # Of recordings without a licence on their site.
    allow_file_urls: bool = False  # Only for your own lists.
    # Further options of `yt_dlp.YoutubeDL`, such as `cookiefile`.
    yt_dlp: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [c if isinstance(c, Channel) else make_settings(Channel, c, "channels") for c in self.channels]
        object.__setattr__(self, "channels", tuple(given))
        if not (self.channels or self.videos or self.searches):
            raise ValueError("channels, videos and searches are all empty; name something to fetch.")
        addresses = [channel.url for channel in given]
        addresses += [video for video in self.videos if not _VIDEO_ID.fullmatch(video)]
        if wrong := [address for address in addresses if not _SCHEME.match(address)]:
            raise ValueError(
                f"{wrong} are neither ids of 11 characters nor addresses with one of the schemes http://, https:// "
                "and file://."
            )
        require_minimums(self)
        _require_options(self.yt_dlp)

    def may_read(self, address: str) -> bool:
        """Return whether an address is of an allowed scheme, or the id of a video."""
        scheme = _SCHEME.match(address)
        if scheme is None:
            return _VIDEO_ID.fullmatch(address) is not None
        return self.allow_file_urls or scheme[1].lower() != "file"


def _require_options(options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for options that yt-dlp does not have or that this module sets."""
    require_mapping(options, "yt_dlp")
    if ours := sorted(_SET_HERE & set(options)):
        raise ValueError(f"yt_dlp names {ours}, which are set here or would break a fetch; use the other fields.")
    if options:
        from yt_dlp import parse_options

        # What its own command line sets; names with an underscore are not options.
        known = sorted(name for name in parse_options([]).ydl_opts if name not in _SET_HERE and name[0] != "_")
        require_known(options, known, "yt_dlp")


@dataclass
class FetchReport:
    fetched: list[str] = field(default_factory=list)  # Names of the new files.
    num_present: int = 0  # Fetched before.
    num_other_titles: int = 0  # Without a keyword in their title.
    skipped: list[Skipped] = field(default_factory=list)


def fetch(settings: FetchSettings) -> FetchReport:
    """Fetch recordings; a failure does not stop the others. Run it again to resume, or to fetch new recordings."""
    from tqdm import tqdm
    from yt_dlp import YoutubeDL

    output = Path(settings.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    manifest, urls = _read_manifest(output)
    report = FetchReport()
    candidates = {}
    for video in settings.videos:
        is_id = _VIDEO_ID.fullmatch(video) is not None
        candidates[f"youtube {video}"] = f"https://www.youtube.com/watch?v={video}" if is_id else video
    searches = [(f"ytsearch{settings.results_per_search}:{words}", (), None) for words in settings.searches]
    for listed in [*searches, *((one.url, one.title_keywords, one.limit) for one in settings.channels)]:
        candidates |= _list_recordings(settings, *listed, report)
    with YoutubeDL({**_make_options(settings), "download_archive": set(urls), "playlist_items": "0"}) as downloader:
        for item, url in tqdm(candidates.items(), desc="fetch", unit="recording"):
            try:
                row = _download(downloader, url, settings, urls)
            except SkipError as error:
                report.skipped.append(Skipped(item, error.kind, str(error)))
                continue
            if row is None:
                report.num_present += 1
            else:
                manifest.append([row])
                report.fetched.append(row["file"])
    return report


def _read_manifest(output: Path) -> tuple[JsonLines, dict[str, str]]:
    """Return the manifest without lines whose file is missing, and each recording's address by yt-dlp's name."""
    from yt_dlp.utils import make_archive_id

    manifest = JsonLines(output / FETCHED)
    rows = manifest.read()
    needed = {"id", "extractor", "url", "file"}
    kept = [row for row in rows if needed <= set(row) and (output / row["file"]).is_file()]
    if len(kept) < len(rows):
        write_file(manifest.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))
    return manifest, {make_archive_id(row["extractor"], row["id"]): row["url"] for row in kept}


def _make_options(settings: FetchSettings) -> dict[str, Any]:
    from yt_dlp.networking.impersonate import ImpersonateTarget
    from yt_dlp.utils import match_filter_func

    # YAML has texts where yt-dlp takes objects.
    kinds = {"impersonate": ImpersonateTarget.from_str, "cookiesfrombrowser": lambda browser: (browser,)}
    given = {k: kinds[k](v) if k in kinds and isinstance(v, str) else v for k, v in settings.yt_dlp.items()}
    return {
        **given,
        **dict.fromkeys(("retries", "fragment_retries", "extractor_retries"), settings.retries),
        "format": settings.format,
        "outtmpl": str(Path(settings.output_dir).absolute()).replace("%", "%%") + "/%(id)s.%(ext)s",
        "overwrites": False,
        # A live stream has no end.
        "match_filter": match_filter_func("!is_live"),
        "ratelimit": settings.rate_limit_bytes_per_s,
        "sleep_interval": settings.sleep_s,
        "enable_file_urls": settings.allow_file_urls,
        # No description, thumbnail or playlist file: they hold names.
        "allow_playlist_files": False,
        "noprogress": True,
        "quiet": True,
        "color": "never",
        "logger": logger,
    }


def _list_recordings(
    settings: FetchSettings, url: str, keywords: Sequence[str], limit: int | None, report: FetchReport
) -> dict[str, str]:
    """Return the addresses of a channel or search by item, without opening them; failures go into the report."""
    from yt_dlp import YoutubeDL
    from yt_dlp.utils import YoutubeDLError, unsmuggle_url

    item, found = f"youtube {url}", {}
    page = url.rstrip("/") + "/videos" if _CHANNEL_PAGE.fullmatch(url) else url
    try:
        with YoutubeDL({**_make_options(settings), "extract_flat": "in_playlist", "playlistend": limit}) as lister:
            listing = lister.extract_info(page, download=False)
    except (YoutubeDLError, *_EXTRACTOR_BUGS) as error:
        report.skipped.append(Skipped(f"youtube {page}", "listing_failed", _take_first_line(error)))
        return {}
    entries = [entry for entry in (listing or {}).get("entries") or () if entry and entry.get("url")]
    if not entries:
        reason = "lists no recordings; name a single recording under 'videos'."
        report.skipped.append(Skipped(f"youtube {page}", "empty_listing", reason))
    for entry in entries:
        title, address = (entry.get("title") or "").lower(), unsmuggle_url(entry["url"])[0]
        if keywords and not any(keyword.lower() in title for keyword in keywords):
            report.num_other_titles += 1
        elif settings.may_read(address):
            found[f"{item}, {entry.get('id') or address}"] = entry["url"]
        else:
            reason = f"lists {address[:80]!r}; only http:// and https:// are read."
            report.skipped.append(Skipped(item, "scheme_refused", reason))
    return found


def _download(downloader: YoutubeDL, url: str, settings: FetchSettings, urls: dict[str, str]) -> dict[str, Any] | None:
    """Download one recording; return its row of the manifest, or None if it was there before."""
    from yt_dlp.utils import YoutubeDLError, make_archive_id

    try:
        info = downloader.extract_info(url)
    except (YoutubeDLError, *_EXTRACTOR_BUGS) as error:
        raise SkipError("fetch_failed", _take_first_line(error)) from error
    if info is None:
        return None
    if info.get("_type") == "playlist":
        raise SkipError("not_a_recording", "is a list; name it under 'channels'.")
    name, page = make_archive_id(info["extractor_key"], info["id"]), info["webpage_url"]
    if name in urls:
        if urls[name] == page:
            return None
        # Sites number their recordings; elsewhere the id is the file's name, which two files may share.
        reason = f"{urls[name]} has the same name {info['id']!r}; fetch one of them into another folder."
        raise SkipError("duplicate", reason)
    path = Path(next(iter(info.get("requested_downloads") or [{}])).get("filepath", ""))
    if not path.is_file() or path.stat().st_size == 0:
        raise SkipError("fetch_failed", f"{info['id']}: nothing was written; is it a live stream?")
    urls[name] = page
    return {
        "id": info["id"],
        "extractor": info["extractor_key"],
        "url": page,
        "file": path.name,
        "duration_s": info.get("duration"),
        "language": settings.language,
        "license": info.get("license") or settings.license,
    }


def _take_first_line(error: Exception) -> str:
    return str(error).removeprefix("ERROR: ").partition("\n")[0]
