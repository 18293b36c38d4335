"""Download recordings with `yt-dlp` as a library (section B.1: best audio, never overwriting).

Downloads are slow on purpose: one at a time, rate-limited, with a pause before each. A manifest line is written when
its file is complete, so a killed fetch resumes: complete files are not requested again, and a partial file (`.part`)
is continued if the server allows it.

YouTube itself needs what `yt-dlp[default]` installs and a JavaScript runtime such as Deno.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.settings import require_known

from ..episodes import SkipError
from .corpora import DEFAULT_LICENSE, FETCHED


logger = logging.getLogger(__name__)
# Extractor errors after a site has changed; each skips one recording.
_EXTRACTOR_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_VIDEO_ID = re.compile(r"[\w-]{11}")
# A channel's page lists its tabs, not its videos.
_CHANNEL_PAGE = re.compile(r"https?://(?:www\.)?youtube\.com/(?:@[^/]+|(?:channel|c|user)/[^/]+)/?")


@dataclass(frozen=True)
class Channel:
    """A channel, playlist or podcast feed that yt-dlp can list."""

    url: str
    title_keywords: tuple[str, ...] = ("podcast", "interview")  # Case-insensitive; empty: all titles.
    limit: Annotated[int, Field(ge=1)] | None = None  # Check only this many of the newest recordings.


@dataclass(frozen=True)
class FetchSettings:
    output_dir: str
    channels: tuple[Channel, ...] = ()
    videos: tuple[str, ...] = ()  # YouTube ids, or addresses of single recordings.
    searches: tuple[str, ...] = ()
    results_per_search: Annotated[int, Field(ge=1)] = 20
    format: str = "bestaudio/best"
    rate_limit_bytes_per_s: Annotated[int, Field(ge=1)] | None = 4_000_000
    sleep_s: Annotated[float, Field(ge=0)] = 5.0
    retries: Annotated[int, Field(ge=0)] = 5
    language: str = "en"  # BCP-47; sites do not state it reliably.
    license: str = DEFAULT_LICENSE  # For recordings without a licence on the site.
    allow_file_urls: bool = False  # Only for your own lists.
    # Further options of `yt_dlp.YoutubeDL`, such as `cookiefile`.
    yt_dlp: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        addresses = [*(channel.url for channel in self.channels), *self.videos]
        if not (addresses or self.searches):
            raise ValueError("channels, videos and searches are all empty; give at least one.")
        if wrong := [address for address in addresses if not self.may_read(address)]:
            raise ValueError(f"{wrong} are neither ids of 11 characters nor addresses with http:// or https://.")
        if self.yt_dlp:
            from yt_dlp import parse_options

            # Options of its command line that this module does not set; names with an underscore are not options.
            known = {*parse_options([]).ydl_opts} - {*_make_options(replace(self, yt_dlp={}))}
            known = {name for name in known if name[0] != "_"}
            require_known(self.yt_dlp, sorted(known), "yt_dlp (some options are set here)", is_listed=False)

    def may_read(self, address: str) -> bool:
        """Return whether an address has an allowed scheme, or is the id of a video."""
        schemes = ("http://", "https://", "file://") if self.allow_file_urls else ("http://", "https://")
        return bool(_VIDEO_ID.fullmatch(address)) or address.lower().startswith(schemes)


@dataclass
class FetchReport:
    fetched: list[str] = field(default_factory=list)  # Names of new files.
    num_present: int = 0  # Recordings fetched earlier.
    num_other_titles: int = 0  # Recordings without a keyword in the title.
    skipped: list[Skipped] = field(default_factory=list)


def fetch(settings: FetchSettings) -> FetchReport:
    """Fetch recordings; a failure does not stop the others. Run it again to resume, or to fetch new recordings."""
    from tqdm import tqdm
    from yt_dlp import YoutubeDL
    from yt_dlp.utils import make_archive_id

    output = Path(settings.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    report, manifest = FetchReport(), JsonLines(output / FETCHED)
    rows = manifest.read()
    # Lines whose file is missing are removed, and the file is fetched again.
    needed = {"id", "extractor", "url", "file"}
    kept = [row for row in rows if needed <= set(row) and (output / row["file"]).is_file()]
    if len(kept) < len(rows):
        write_file(manifest.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))
    urls = {make_archive_id(row["extractor"], row["id"]): row["url"] for row in kept}
    candidates = {f"youtube {video}": video for video in settings.videos}
    for words in settings.searches:
        candidates |= _list_recordings(settings, Channel(f"ytsearch{settings.results_per_search}:{words}", ()), report)
    for channel in settings.channels:
        candidates |= _list_recordings(settings, channel, report)
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


def _make_options(settings: FetchSettings) -> dict[str, Any]:
    from yt_dlp.networking.impersonate import ImpersonateTarget
    from yt_dlp.utils import match_filter_func

    # YAML has text where yt-dlp expects objects.
    kinds = {"impersonate": ImpersonateTarget.from_str, "cookiesfrombrowser": lambda browser: (browser,)}
    given = {k: kinds[k](v) if k in kinds and isinstance(v, str) else v for k, v in settings.yt_dlp.items()}
    return {
        **given,
        **dict.fromkeys(("retries", "fragment_retries", "extractor_retries"), settings.retries),
        "format": settings.format,
        "outtmpl": str(Path(settings.output_dir).absolute()).replace("%", "%%") + "/%(id)s.%(ext)s",
        "overwrites": False,
        # Live streams do not end.
        "match_filter": match_filter_func("!is_live"),
        "ratelimit": settings.rate_limit_bytes_per_s,
        "sleep_interval": settings.sleep_s,
        "enable_file_urls": settings.allow_file_urls,
        # No description, thumbnail or playlist files, because they contain names.
        **dict.fromkeys(("writeinfojson", "writedescription", "writethumbnail", "write_all_thumbnails"), False),
        **dict.fromkeys(("allow_playlist_files", "simulate", "skip_download", "test"), False),
        **{"noprogress": True, "quiet": True, "color": "never", "logger": logger},
        # For lists and downloads.
        **{"extract_flat": False, "playlistend": None, "playlist_items": None, "download_archive": None},
    }


def _list_recordings(settings: FetchSettings, channel: Channel, report: FetchReport) -> dict[str, str]:
    """Return the addresses in a channel or search, without opening them; failures go into the report."""
    from yt_dlp import YoutubeDL
    from yt_dlp.utils import unsmuggle_url

    url, found = channel.url, {}
    page = url.rstrip("/") + "/videos" if _CHANNEL_PAGE.fullmatch(url) else url
    options = {"extract_flat": "in_playlist", "playlistend": channel.limit}
    try:
        with YoutubeDL({**_make_options(settings), **options}) as lister:
            listing = _extract(lister, page, "listing_failed", download=False)
    except SkipError as error:
        report.skipped.append(Skipped(f"youtube {page}", error.kind, str(error)))
        return {}
    entries = [entry for entry in (listing or {}).get("entries") or () if entry and entry.get("url")]
    if not entries:
        report.skipped.append(Skipped(f"youtube {page}", "empty_listing", "lists nothing; it may be a video."))
    for entry in entries:
        title, address = (entry.get("title") or "").lower(), unsmuggle_url(entry["url"])[0]
        if channel.title_keywords and not any(keyword.lower() in title for keyword in channel.title_keywords):
            report.num_other_titles += 1
        elif settings.may_read(address):
            found[f"youtube {url}, {entry.get('id') or address}"] = entry["url"]
        else:
            reason = f"lists {address[:80]!r}; only http:// and https:// are allowed."
            report.skipped.append(Skipped(f"youtube {url}", "scheme_refused", reason))
    return found


def _download(downloader: Any, url: str, settings: FetchSettings, urls: dict[str, str]) -> dict[str, Any] | None:
    """Download one recording; return its manifest row, or None if it is already present."""
    from yt_dlp.utils import make_archive_id

    info = _extract(downloader, url, "fetch_failed")
    if info is None:
        return None
    if info.get("_type") == "playlist":
        raise SkipError("not_a_recording", "is a list; put it under 'channels'.")
    name, page = make_archive_id(info["extractor_key"], info["id"]), info["webpage_url"]
    if urls.get(name) == page:
        return None
    if name in urls:
        # Sites have unique ids; elsewhere the id is the file name, which two files may share.
        raise SkipError("duplicate", f"{urls[name]} has the same name {info['id']!r}; fetch it into another folder.")
    path = Path(next(iter(info.get("requested_downloads") or [{}])).get("filepath", ""))
    if not path.is_file() or path.stat().st_size == 0:
        raise SkipError("fetch_failed", f"{info['id']}: nothing was written; it may be a live stream.")
    urls[name] = page
    row = {"id": info["id"], "extractor": info["extractor_key"], "url": page, "file": path.name}
    license = info.get("license") or settings.license
    return {**row, "duration_s": info.get("duration"), "language": settings.language, "license": license}


def _extract(downloader: Any, url: str, kind: str, **options: bool) -> Any:
    from yt_dlp.utils import YoutubeDLError

    try:
        return downloader.extract_info(url, **options)
    except (YoutubeDLError, *_EXTRACTOR_BUGS) as error:
        raise SkipError(kind, str(error).removeprefix("ERROR: ").partition("\n")[0]) from error
